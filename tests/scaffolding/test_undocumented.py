"""scripts/undocumented.py finds what is pub and has no doc, and nothing else."""

import subprocess
import sys
from pathlib import Path

from support.server import REPOSITORY

ROOT = """
//! The crate.

mod inner;
/// Has its doc here.
pub mod told;
pub mod silent;
#[cfg(test)]
mod tests;
pub use inner::Inner;

/// A struct.
#[derive(
    Clone,
    Copy,
)]
// Why it is one.
pub struct Told {
    /// A field.
    pub field: u8,
    pub silent_field: u8,
    own: u8,
}

impl Told {
    #[cfg(test)]
    pub fn of_tests(&self) -> bool {
        pub_it();
    }

    pub const fn silent_function(&self) {}
}

pub(crate) enum SilentEnum {
    Variant,
}

macro_rules! functions {
    ($(#[doc = $doc:literal])+ $name:ident) => {
        $(#[doc = $doc])+
        pub fn $name() {}
    };
}

#[cfg(test)]
mod of_tests {
    pub fn nobody_asks() {}
}

#[must_use]
pub(super) fn silent_item() {}
"""


def found(tmp_path: Path) -> list[str]:
    script = REPOSITORY / "scripts/undocumented.py"
    ran = subprocess.run(
        [sys.executable, script, tmp_path / "lib.rs"], capture_output=True, text=True, check=False
    )
    return [line.split(": ", 1)[1] for line in ran.stderr.splitlines()[1:]]


def test_undocumented_public_items_are_found(tmp_path: Path) -> None:
    (tmp_path / "lib.rs").write_text(ROOT)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/deeper.rs").write_text("//! Told.\n\npub static SILENT_STATIC: u8 = 1;\n")
    (tmp_path / "inner/mod.rs").write_text("//! Told.\n\npub mod deeper;\npub trait Silent {}\n")
    (tmp_path / "told.rs").write_text("/// Told.\npub const TOLD: u8 = 1;\n")
    (tmp_path / "silent.rs").write_text("pub type SilentType = u8;\n")
    (tmp_path / "tests.rs").write_text("pub fn nobody_asks() {}\n")

    assert found(tmp_path) == [
        "pub mod silent;",
        "pub silent_field: u8,",
        "pub const fn silent_function(&self) {}",
        "pub(crate) enum SilentEnum {",
        "pub(super) fn silent_item() {}",
        "pub trait Silent {}",
        "pub static SILENT_STATIC: u8 = 1;",
        "pub type SilentType = u8;",
    ]
