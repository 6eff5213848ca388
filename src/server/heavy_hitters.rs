//! Keys that this server denies most: the core's [`SpaceSaving`] in a `RefCell`.
//!
//! The table counts only denials by this server; it is neither propagated nor stored.

use super::settings::TOP_KEYS;
use ratelimit_core::Timestamp;
use ratelimit_core::space_saving::SpaceSaving;
use std::cell::RefCell;
use std::rc::Rc;

/// Keys that this server has denied most.
#[derive(Debug)]
pub struct HeavyHitters(RefCell<SpaceSaving>);

impl Default for HeavyHitters {
    fn default() -> HeavyHitters {
        HeavyHitters(RefCell::new(SpaceSaving::new(0)))
    }
}

impl HeavyHitters {
    /// Counts a denial by the key `name`, or by its `item`, at `now`. Also records the policy that sets the limits of
    /// the key, if there is one.
    #[inline(always)]
    pub fn record(&self, name: &[u8], item: Option<&[u8]>, policy: Option<&Rc<[u8]>>, now: Timestamp) {
        self.with(|table| table.record(name, item, policy, now));
    }

    /// Resizes the table to the setting, and returns the result of `run` on it.
    #[inline(always)]
    pub fn with<T>(&self, run: impl FnOnce(&mut SpaceSaving) -> T) -> T {
        let table = &mut self.0.borrow_mut();
        let max_entries = usize::try_from(TOP_KEYS.get()).unwrap_or(0);
        if table.max_entries() != max_entries {
            table.resize(max_entries);
        }
        run(table)
    }
}
