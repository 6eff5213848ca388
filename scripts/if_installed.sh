#!/bin/sh
# Runs a command if programs or Debian packages are installed: if_installed.sh FOLDER NAME... -- COMMAND...
# Otherwise prints the folder that is not tested. In CI, a missing Node.js 20 with npm (node) is an error.
set -eu
folder="$1" missing=
shift
while test "$1" != --; do
    case "$1" in
    (node) node -e 'process.exit(process.versions.node.split(".")[0] < 20 ? 1 : 0)' 2>/dev/null && npm --version >/dev/null ;;
    (*) command -v "$1" >/dev/null || dpkg-query --show --showformat='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed ;;
    esac || missing="$missing $1"
    shift
done
shift
test -n "$missing" || exec "$@"
echo "not tested: $folder, without$missing"
case "${CI-} $missing" in ("true "*node*) exit 1 ;; esac
