#!/bin/sh
# Makes a package for Debian and its like: deb.sh PROGRAM FOLDER MAINTAINER. What it depends on is read from the program.
set -eu
program="$1" folder="$2" maintainer="$3"
here="$(cd "$(dirname "$0")" && pwd)"
gateway="$(dirname "$here")"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' "$gateway/Cargo.toml" | head -1)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
root="$work/root" doc="$work/root/usr/share/doc/ratelimit-gateway"
install -D -m 755 "$program" "$root/usr/bin/ratelimit-gateway"
install -D -m 644 "$here/ratelimit-gateway.service" "$root/usr/lib/systemd/system/ratelimit-gateway.service"
install -D -m 644 "$gateway/../docs/gateway.md" "$doc/gateway.md"
install -D -m 644 "$gateway/../LICENSE" "$doc/copyright"
install -m 644 "$gateway/gateway.example.yaml" "$doc"
install -d "$doc/proxies"
install -m 644 "$gateway/proxies/"* "$doc/proxies"
mkdir "$work/debian"
printf 'Source: ratelimit-gateway\n\nPackage: ratelimit-gateway\nArchitecture: any\n' >"$work/debian/control"
depends="$(cd "$work" && dpkg-shlibdeps -O root/usr/bin/ratelimit-gateway 2>/dev/null | sed -n 's/^shlibs:Depends=//p')"
test -n "$depends" || { echo "dpkg-shlibdeps tells of no dependencies" >&2; exit 1; }
architecture="$(dpkg --print-architecture)"
mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<END
Package: ratelimit-gateway
Version: $version-1
Architecture: $architecture
Maintainer: $maintainer
Section: net
Priority: optional
Depends: $depends
Recommends: ca-certificates
Description: rate limits for Envoy and other proxies
 A service that proxies ask whether a request may pass: Envoy's rate limit
 service, and forward auth over HTTP. It decides by the policies of a Redis or
 Valkey server with the module redis-ratelimit.
END
mkdir -p "$folder"
dpkg-deb --root-owner-group --build "$root" "$folder/ratelimit-gateway_$version-1_$architecture.deb" >/dev/null
echo "$folder/ratelimit-gateway_$version-1_$architecture.deb"
