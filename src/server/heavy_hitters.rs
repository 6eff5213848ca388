//! Keys that this server denies most: the sketch of the core in a `RefCell`.
//!
//! The sketch counts only denials by this server; it is neither propagated nor stored.

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
    /// Records that the key of that name, or an item of it, denied a call at `now`, and the policy that sets its
    /// limits, if any.
    #[inline(always)]
    pub fn record(&self, name: &[u8], item: Option<&[u8]>, policy: Option<&Rc<[u8]>>, now: Timestamp) {
        self.with(|top| {
            if let (Some(place), Some(policy)) = (top.record(name, item, now), policy) {
                top.set_policy(place, policy);
            }
        });
    }

    /// Returns the result of `run` on the sketch, after resizing it to the setting.
    #[inline(always)]
    pub fn with<T>(&self, run: impl FnOnce(&mut SpaceSaving) -> T) -> T {
        let top = &mut self.0.borrow_mut();
        let most = usize::try_from(TOP_KEYS.get()).unwrap_or(0);
        if top.most() != most {
            top.resize(most);
        }
        run(top)
    }
}
