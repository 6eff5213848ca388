#!/bin/sh
# Installs the Debian packages that tests use: servers, tools, and libraries for Go, Ruby and PHP. Needs root. Packages
# that are missing afterwards are printed, and their tests are skipped.
set -eu
packages="redis-server valgrind prometheus-redis-exporter prometheus chromium golang-go golang-github-gomodule-redigo-dev
    ruby-redis ruby-rack-attack ruby-minitest ruby-sidekiq php-cli php-redis phpunit php-symfony-rate-limiter
    php-symfony-messenger php-illuminate-cache php-illuminate-pipeline"
missing() {
    for package in $packages; do
        dpkg-query --show --showformat='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
    done
}
install() { apt-get install --yes --no-install-recommends "$@"; }

if test "$(id -u)" = 0 && command -v apt-get >/dev/null && test -n "$(missing)"; then
    apt-get update || true
    install $(missing) || for package in $(missing); do install "$package" || true; done
fi
for package in $(missing); do echo "not installed: $package"; done
