//! The keys that this server denies most: the sketch of the core, where denials find it.
//!
//! Only what a server has denied itself is in its sketch: nothing of it is propagated or stored.

use super::settings::TOP_KEYS;
use ratelimit_core::Timestamp;
use ratelimit_core::space_saving::{DenialPlace, SpaceSaving};
use std::cell::RefCell;
use std::rc::Rc;

/// The keys that this server has denied most.
#[derive(Debug)]
pub struct HeavyHitters(RefCell<SpaceSaving>);

impl Default for HeavyHitters {
    fn default() -> HeavyHitters {
        HeavyHitters(RefCell::new(SpaceSaving::new(0)))
    }
}

impl HeavyHitters {
    /// Records that the key of that name, or an item of it, has stood in the way of a call at `now`; where that is noted.
    #[inline(always)]
    pub fn record(&self, name: &[u8], item: Option<&[u8]>, now: Timestamp) -> Option<DenialPlace> {
        self.with(|top| top.record(name, item, now))
    }

    /// Records that the key of that name, or an item of it, has stood in the way of a call at `now`, and by which policy,
    /// if one has ruled.
    #[inline(never)]
    pub fn record_ruled(&self, name: &[u8], item: Option<&[u8]>, policy: Option<&Rc<[u8]>>, now: Timestamp) {
        self.with(|top| {
            if let (Some(place), Some(policy)) = (top.record(name, item, now), policy) {
                top.ruled(place, policy);
            }
        });
    }

    /// Records by which policy it did, where that was noted.
    #[inline(never)]
    pub fn ruled(&self, place: DenialPlace, policy: &Rc<[u8]>) {
        self.0.borrow_mut().ruled(place, policy);
    }

    /// What `run` makes of the sketch, in the size that the setting says.
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
