//! Counter of the entries of a large usage that are visited, moved or copied: the cost of a call, without a clock.

use std::cell::Cell;

thread_local! {
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// Counts one entry.
pub fn step() {
    STEPS.set(STEPS.get() + 1);
}

/// Returns the number of entries that `run` counts.
pub fn count<T>(run: impl FnOnce() -> T) -> usize {
    let before = STEPS.get();
    run();
    STEPS.get() - before
}

/// Returns the number of entries that `run` counts. Asserts that `run` allocates less than a copy of thousands of
/// entries.
pub fn count_without_copies<T>(run: impl FnOnce() -> T) -> usize {
    let mut steps = 0;
    let allocated = allocation_counter::measure(|| steps = count(run));
    assert!(allocated.bytes_total < 32 * 1024, "{} bytes", allocated.bytes_total);
    steps
}
