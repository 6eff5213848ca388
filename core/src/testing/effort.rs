//! How many entries of a big usage are walked over, moved or copied: what a call costs, without a clock.

use std::cell::Cell;

thread_local! {
    static ENTRIES: Cell<usize> = const { Cell::new(0) };
}

/// Counts one entry.
pub fn entry() {
    ENTRIES.set(ENTRIES.get() + 1);
}

/// How many entries are counted in `run`.
pub fn of<T>(run: impl FnOnce() -> T) -> usize {
    let before = ENTRIES.get();
    run();
    ENTRIES.get() - before
}

/// A field of a usage whose copy counts for more entries than any has.
#[derive(Debug, Default)]
pub struct Copies;

impl Clone for Copies {
    fn clone(&self) -> Copies {
        ENTRIES.set(ENTRIES.get() + 1_000_000);
        Copies
    }
}
