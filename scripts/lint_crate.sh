#!/bin/sh
# As RUSTC_WORKSPACE_WRAPPER of cargo: compiles a crate with Clippy's lints, and checks the documentation of a library.
#
# `cargo doc` does the latter, too, but compiles all that the library depends on once more: 20 CPU seconds.
set -eu
rustc="$1"
tools="$("$rustc" --print sysroot)/bin"
"$tools/clippy-driver" "$@"

# cargo also asks the compiler about itself, and compiles tests and programs.
test -n "${CARGO_PRIMARY_PACKAGE:-}" || exit 0
case " $* " in
(*" --test "*) exit ;;
(*" --crate-type lib "* | *" --crate-type cdylib "*) ;;
(*) exit ;;
esac

before=
# Of the words for rustc, those that are not about what it writes.
shift
for word in "$@"; do
    shift
    case "$word" in
    (--emit=*) continue ;;
    (*/deps) test "$before" != --out-dir || word="${word%/*/deps}/doc" ;;
    esac
    set -- "$@" "$word"
    before="$word"
done
exec "$tools/rustdoc" "$@" --document-private-items -Dwarnings
