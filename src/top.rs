//! The keys that this server denies most: the sketch of the core, where denials find it.
//!
//! Everything of ours runs on the server's main thread. Only what a server has denied itself is in its sketch: nothing of
//! it is propagated or stored.

use crate::config::TOP_KEYS;
use ratelimit_core::top::Top;
use std::cell::RefCell;

thread_local! {
    static TOP: RefCell<Top> = RefCell::new(Top::new(0));
}

/// Records that the key of that name has stood in the way of a call.
#[inline(always)]
pub fn record(name: &[u8]) {
    with(|top| top.record(name));
}

/// What `run` makes of the sketch, in the size that the setting says.
#[inline(always)]
pub fn with<T>(run: impl FnOnce(&mut Top) -> T) -> T {
    TOP.with_borrow_mut(|top| {
        let most = usize::try_from(TOP_KEYS.get()).unwrap_or(0);
        if top.most() != most {
            top.resize(most);
        }
        run(top)
    })
}
