//! Fencing tokens of leases, by holder: only of those that asked for one.
//!
//! A token is larger than those of all leases before it. The holder of the lease sends it along with each write, and
//! the place that is written to refuses a token that is smaller than one that it has seen. So a holder that has lost
//! its lease without noticing cannot write over what its successor wrote.

use std::collections::BTreeMap;

use crate::limit::Token;

/// The tokens of a key's leases. A token may outlive its lease here, until the holder has another lease or many are
/// left behind: it counts for a lease that is live, and is written out for none other.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens(Option<Box<TokensByHolder>>);

#[derive(Clone, Debug, Default)]
struct TokensByHolder {
    by_holder: BTreeMap<Box<[u8]>, Token>,
    /// The latest token that any lease has had here.
    latest: u64,
}

impl Tokens {
    /// The token of a holder's lease.
    #[inline(always)]
    pub(super) fn of(&self, holder: &[u8]) -> Option<Token> {
        self.0.as_ref().and_then(|held| held.by_holder.get(holder).copied())
    }

    /// Has a holder's new lease have that token, or none.
    #[inline(always)]
    pub(super) fn set(&mut self, holder: &[u8], token: Option<Token>) {
        if token.is_some() || self.0.is_some() {
            self.set_any(holder, token);
        }
    }

    #[cold]
    fn set_any(&mut self, holder: &[u8], token: Option<Token>) {
        let held = self.0.get_or_insert_default();
        match token {
            Some(token) => {
                held.by_holder.insert(holder.into(), token);
                held.latest = held.latest.max(token.get());
            }
            None => {
                held.by_holder.remove(holder);
            }
        }
    }

    /// Whether so many are left behind by `leases` leases that it is time to forget them.
    #[inline(always)]
    pub(super) fn are_many(&self, leases: usize) -> bool {
        const SPARE: usize = 16;
        let most = || leases.saturating_mul(2).saturating_add(SPARE);
        self.0.as_ref().is_some_and(|held| held.by_holder.len() > most())
    }

    /// Keeps the tokens of the holders that are still there.
    #[cold]
    pub(super) fn retain(&mut self, is_there: impl Fn(&[u8]) -> bool) {
        if let Some(held) = &mut self.0 {
            held.by_holder.retain(|holder, _| is_there(holder));
        }
    }

    /// The latest token that any lease has had here; 0 if none had one.
    pub(super) fn latest(&self) -> u64 {
        self.0.as_ref().map_or(0, |held| held.latest)
    }

    /// How many bytes they take, about.
    pub(super) fn heap_size(&self) -> usize {
        const ENTRY: usize = 64;
        let of_one = |holder: &[u8]| holder.len().saturating_add(ENTRY);
        let held = self.0.iter().flat_map(|held| held.by_holder.keys());
        held.map(|holder| of_one(holder)).fold(0, usize::saturating_add)
    }
}
