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

/// How many entries are counted in `run`, which asks for less memory than a copy of thousands of entries takes.
pub fn without_copies<T>(run: impl FnOnce() -> T) -> usize {
    let mut walked = 0;
    let asked = allocation_counter::measure(|| walked = of(run));
    assert!(asked.bytes_total < 32 * 1024, "{} bytes", asked.bytes_total);
    walked
}
