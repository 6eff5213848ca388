//! Counter of the entries of a large usage that are visited, moved or copied: the cost of a call, without a clock.

use std::cell::Cell;

thread_local! {
    static ENTRIES: Cell<usize> = const { Cell::new(0) };
}

/// Counts one entry.
pub fn entry() {
    ENTRIES.set(ENTRIES.get() + 1);
}

/// Returns the number of entries that `run` counts.
pub fn of<T>(run: impl FnOnce() -> T) -> usize {
    let before = ENTRIES.get();
    run();
    ENTRIES.get() - before
}

/// Returns the number of entries that `run` counts. Asserts that `run` allocates less than a copy of thousands of
/// entries.
pub fn without_copies<T>(run: impl FnOnce() -> T) -> usize {
    let mut walked = 0;
    let allocated = allocation_counter::measure(|| walked = of(run));
    assert!(allocated.bytes_total < 32 * 1024, "{} bytes", allocated.bytes_total);
    walked
}
