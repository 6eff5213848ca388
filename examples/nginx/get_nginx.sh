#!/bin/sh
# Downloads Debian's nginx with its Lua module into a folder: `sh get_nginx.sh FOLDER`. It installs nothing and needs no
# root. Packages that the system has are left out.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
rm -rf "$folder/new" "$folder/debs"
mkdir -p "$folder/lists/partial" "$folder/debs/partial"

# Uses its own package lists, because those of the system may be old or missing.
apt() {
	apt-get --quiet=2 -o Debug::NoLocking=true -o APT::Sandbox::User= -o Acquire::Languages=none \
		-o Dir::State::Lists="$folder/lists" -o Dir::Cache="$folder" -o Dir::Cache::Archives="$folder/debs" "$@"
}
apt update
apt install --download-only --yes --no-install-recommends nginx libnginx-mod-http-lua >"$folder/apt.log"
for package in "$folder"/debs/*.deb; do
	dpkg-deb --extract "$package" "$folder/new"
done
# A rename, so that an interruption leaves no incomplete folder.
rm -rf "$folder/root"
mv "$folder/new" "$folder/root"
rm -r "$folder/lists" "$folder/debs"
