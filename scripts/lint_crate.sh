#!/bin/sh
# As RUSTC_WORKSPACE_WRAPPER of cargo: compiles a crate with Clippy's lints, and checks its documentation.
#
# `cargo doc` does the latter, too, but compiles all that the crate depends on once more: 20 CPU seconds for the module.
set -eu
tools="$("$1" --print sysroot)/bin"
"$tools/clippy-driver" "$@"

# cargo also asks the compiler about itself, and compiles tests.
test -n "${CARGO_PRIMARY_PACKAGE:-}" || exit 0
case " $* " in (*" --test "*) exit ;; esac

# The words for rustc, but for what is written, and where.
shift
for word in "$@"; do
    shift
    case "$word" in
    (--emit=*) continue ;;
    (/*/deps) word="${word%/*/deps}/doc" ;;
    esac
    set -- "$@" "$word"
done
# Nobody sees a program's items but here, so that it may link to what is private. `cargo doc` does the same.
case " $* " in (*" --crate-type bin "*) set -- "$@" -Arustdoc::private-intra-doc-links ;; esac
exec "$tools/rustdoc" "$@" --document-private-items -Dwarnings
