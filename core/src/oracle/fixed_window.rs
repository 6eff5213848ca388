//! Fixed windows.

use super::contract::{Contract, Exact, exact, period, saturated};
use crate::Amount;
use crate::calls::{amounts, lengths};
use crate::fixed_window::FixedWindow;
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) struct FixedTerms {
    limit: u64,
    window: u64,
    aligned: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Counted {
    used: Exact,
    instant: i128,
    aligned: bool,
}

impl FixedTerms {
    pub(super) fn any() -> impl Strategy<Value = FixedTerms> {
        (amounts(), lengths(), any::<bool>()).prop_map(|(limit, window, aligned)| FixedTerms { limit, window, aligned })
    }
}

impl Contract for FixedTerms {
    type Limit = FixedWindow;
    type Memory = Counted;

    fn implementation(&self) -> FixedWindow {
        FixedWindow::new(Amount::saturating(self.limit), period(self.window), self.aligned)
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn used(&self, memory: &Counted, at: i128) -> Exact {
        let window = i128::from(self.window);
        let counts = if self.aligned && memory.aligned {
            memory.instant / window == at / window
        } else {
            at < memory.instant + window
        };
        if counts { memory.used.clone() } else { exact(0) }
    }

    fn opened(&self, now: i128, cost: Exact) -> Counted {
        Counted { used: cost, instant: now, aligned: self.aligned }
    }

    fn changed(&self, memory: Counted, now: i128, by: Exact) -> Counted {
        let instant = if self.aligned { now } else { memory.instant };
        Counted { used: saturated(memory.used + by), instant, aligned: self.aligned }
    }

    fn see(memory: &mut Counted, now: i128) {
        memory.instant = memory.instant.min(now);
    }
}
