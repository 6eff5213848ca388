#!/bin/sh
# Builds a Debian package of the gateway or the console: deb.sh gateway|console PROGRAM FOLDER MAINTAINER.
# Its dependencies are read from the program.
set -eu
name="$1" program="$2" folder="$3" maintainer="$4"
repository="$(dirname "$(cd "$(dirname "$0")" && pwd)")"
sources="$repository/$name" package="ratelimit-$name"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' "$repository/gateway/Cargo.toml" | head -1)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
root="$work/root" doc="$work/root/usr/share/doc/$package"
install -D -m 755 "$program" "$root/usr/bin/$package"
install -D -m 644 "$sources/packaging/$package.service" "$root/usr/lib/systemd/system/$package.service"
install -D -m 644 "$repository/docs/$name.md" "$doc/$name.md"
install -D -m 644 "$repository/LICENSE" "$doc/copyright"
if test "$name" = gateway; then
    # Name of the program of envoyproxy/ratelimit, which the gateway replaces.
    ln -s "$package" "$root/usr/bin/ratelimit"
    install -m 644 "$repository/docs/envoy-ratelimit.md" "$doc"
    install -m 644 "$sources/gateway.example.yaml" "$doc"
    install -d "$doc/proxies"
    install -m 644 "$sources/proxies/"* "$doc/proxies"
fi
mkdir "$work/debian"
printf 'Source: %s\n\nPackage: %s\nArchitecture: any\n' "$package" "$package" >"$work/debian/control"
depends="$(cd "$work" && dpkg-shlibdeps -O "root/usr/bin/$package" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')"
test -n "$depends" || { echo "dpkg-shlibdeps found no dependencies" >&2; exit 1; }
architecture="$(dpkg --print-architecture)"
mkdir "$root/DEBIAN"
cat - "$sources/packaging/description" >"$root/DEBIAN/control" <<END
Package: $package
Version: $version-1
Architecture: $architecture
Maintainer: $maintainer
Section: net
Priority: optional
Depends: $depends
Recommends: ca-certificates
END
mkdir -p "$folder"
dpkg-deb --root-owner-group --build "$root" "$folder/${package}_$version-1_$architecture.deb" >/dev/null
echo "$folder/${package}_$version-1_$architecture.deb"
