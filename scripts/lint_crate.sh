#!/bin/sh
# RUSTC_WORKSPACE_WRAPPER of cargo that compiles a crate with Clippy's lints and checks its documentation.
#
# `cargo doc` would compile all dependencies again, which takes 20 CPU seconds for the module.
set -eu
tools="$("$1" --print sysroot)/bin"
"$tools/clippy-driver" "$@"

# Queries of the compiler and tests have no documentation.
test -n "${CARGO_PRIMARY_PACKAGE:-}" || exit 0
case " $* " in (*" --test "*) exit ;; esac

# Arguments of rustc, except for the kinds and the folder of the output.
shift
for word in "$@"; do
    shift
    case "$word" in
    (--emit=*) continue ;;
    (/*/deps) word="${word%/*/deps}/doc" ;;
    esac
    set -- "$@" "$word"
done
# The documentation of a program may link to private items, as with `cargo doc`.
case " $* " in (*" --crate-type bin "*) set -- "$@" -Arustdoc::private-intra-doc-links ;; esac
exec "$tools/rustdoc" "$@" --document-private-items -Dwarnings
