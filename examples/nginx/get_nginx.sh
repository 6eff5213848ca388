#!/bin/sh
# Gets Debian's nginx with its Lua module into a folder: `sh get_nginx.sh FOLDER`. It installs nothing and needs no root.
# Packages that the system has are left out.
set -eu
mkdir -p "$1"
to=$(cd "$1" && pwd)
rm -rf "$to/new" "$to/debs"
mkdir -p "$to/lists/partial" "$to/debs/partial"

# Uses its own package lists, because those of the system may be old or missing.
apt() {
	apt-get --quiet=2 -o Debug::NoLocking=true -o APT::Sandbox::User= -o Acquire::Languages=none \
		-o Dir::State::Lists="$to/lists" -o Dir::Cache="$to" -o Dir::Cache::Archives="$to/debs" "$@"
}
apt update
apt install --download-only --yes --no-install-recommends nginx libnginx-mod-http-lua >"$to/apt.log"
for package in "$to"/debs/*.deb; do
	dpkg-deb --extract "$package" "$to/new"
done
# A rename, so that an interruption leaves no incomplete folder.
rm -rf "$to/root"
mv "$to/new" "$to/root"
rm -r "$to/lists" "$to/debs"
