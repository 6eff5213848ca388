#!/bin/sh
# Prints a line for each missing program that `make` cannot install: needs.sh [python]
# It is plain sh, because anything else may be missing. Programs print their version on stdout. Their stderr is not
# captured, because rustup reports downloads there.

status=0
missing() {
	echo "missing: $*" >&2
	status=1
}

python=${PYTHON3:-python3}
if [ "${1-}" = python ]; then
	if ! version=$("$python" -c 'import platform; print(platform.python_version())' 2>/dev/null); then
		missing "Python 3.11 or later: $python does not run. Name another, such as PYTHON3=python3.12"
	elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
		missing "Python 3.11 or later: $python is $version. Name another, such as PYTHON3=python3.12"
	elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
		missing "the venv module of $python (Debian, Ubuntu: apt install ${python##*/}-venv)"
	fi
fi

if ! command -v cc >/dev/null; then
	missing "a C compiler (Debian, Ubuntu: apt install gcc libc6-dev)"
elif ! echo '#include <stdlib.h>' | cc -E - >/dev/null 2>&1; then
	missing "the headers of the C library (Debian, Ubuntu: apt install libc6-dev)"
fi

rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
if ! command -v cargo >/dev/null; then
	missing "Rust $rust or later: no cargo is on the PATH (https://rustup.rs)"
elif ! version=$(rustc --version); then
	missing "Rust $rust or later: rustc does not run"
elif ! printf '%s\n' "$version" | grep -q '^rustc [0-9]'; then
	missing "Rust $rust or later: rustc prints no version, but: $version"
elif ! printf 'rustc %s\n%s\n' "$rust" "$version" | sort -VC; then
	missing "Rust $rust or later: this is $version (https://rustup.rs)"
fi

exit $status
