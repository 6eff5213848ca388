//! The ids of calls, and what each call was answered and charged.
//!
//! They are kept by id and by the instant at which they expire, as leases are. The difference: what has expired stays a
//! part of the state until it is swept, as what was charged under it has to be forgotten at the same call on every
//! replica. Each change sweeps the first few by `(expires_at, id)`, and nothing else does; so who makes the same
//! changes in the same order holds the same, to the byte.

use super::idempotency_change::{encode_no_effect, encode_recorded, encode_settled};
use super::recorded_call::{RecordedCall, decode_charges};
use super::settlement::Charge;
use crate::limit::Usage;
use crate::number::lazy_shift::{Mark, Shift};
use crate::number::{Amount, Span, Timestamp};
#[cfg(test)]
use crate::testing::effort;
use crate::wire::codec::{Decoder, Encoder};
use crate::wire::name;
use crate::wire::name::{Kept, Name, size_of_kept};
use hashbrown::HashTable;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many ids that have expired a change sweeps: more than one adds, and few enough to take no longer than the rest
/// of the call.
pub(super) const SWEPT: usize = 16;

/// The ids that a key remembers.
///
/// ```
/// use ratelimit_core::composite::idempotency::{IdempotencyTable, RecordedCall};
/// use ratelimit_core::{Span, Timestamp};
///
/// let (mut ids, now) = (IdempotencyTable::default(), Timestamp::EPOCH);
/// let later = |seconds| now.plus(Span::SECOND.times(seconds));
/// let charges = Box::default();
/// let call = RecordedCall {
///     expires_at: later(60), hold_until: later(2), settled: false, forced: false, granted: None, charges,
/// };
/// ids.remember(b"req-17", call);
/// // Sent again a second later, it is told to wait for one more.
/// assert_eq!(ids.find(b"req-17", later(1)).unwrap().hold_until.since(later(1)), Span::SECOND);
/// assert_eq!(ids.find(b"req-17", later(60)), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct IdempotencyTable {
    by_id: HashTable<IdempotencyEntry>,
    by_expiry: BTreeSet<(Mark, Kept)>,
    /// How far all instants have moved back.
    shift: Shift,
    /// What ids and charges take, in bytes.
    held: usize,
    /// What the current call has changed.
    delta: IdempotencyDelta,
}

/// An id and its call; with the id's hash, so that a table that grows looks no id up.
#[derive(Clone, Debug)]
struct IdempotencyEntry {
    hash: u64,
    id: Kept,
    expires_at: Mark,
    hold_until: Mark,
    settled: bool,
    forced: bool,
    granted: Option<Amount>,
    charges: Box<[Charge]>,
}

impl IdempotencyEntry {
    fn is_of(id: Name) -> impl Fn(&IdempotencyEntry) -> bool {
        move |entry| *entry.id == *id.text
    }

    fn seen(&self, shift: Shift) -> RecordedCall<&[Charge]> {
        RecordedCall {
            expires_at: shift.instant(self.expires_at),
            hold_until: shift.instant(self.hold_until),
            settled: self.settled,
            forced: self.forced,
            granted: self.granted,
            charges: &self.charges,
        }
    }

    /// What it takes beside itself, in bytes.
    fn held(&self) -> usize {
        size_of_kept(&self.id).saturating_add(size_of_val(&*self.charges))
    }
}

/// What a call changes in the ids, besides what it sweeps.
#[derive(Clone, Debug, Default)]
enum IdempotencyDelta {
    #[default]
    Nothing,
    RecordedCall(Kept),
    Settled(Kept),
}

impl IdempotencyTable {
    /// What is remembered of the call of an id; `None` if there is none, or it has expired. `now` is not before the key
    /// was last changed: a look by a clock that has gone back is one at that time.
    #[must_use]
    pub fn find(&self, id: &[u8], now: Timestamp) -> Option<RecordedCall<&[Charge]>> {
        let id = Name::of(id);
        let entry = self.by_id.find(id.hash, IdempotencyEntry::is_of(id))?;
        Some(entry.seen(self.shift)).filter(|seen| now < seen.expires_at)
    }

    /// Whether another id is to be refused: there are `most`, and the first to expire has not.
    #[must_use]
    pub fn is_full(&self, most: usize, now: Timestamp) -> bool {
        let first = self.by_expiry.first();
        self.by_id.len() >= most && first.is_none_or(|(expires_at, _)| now < self.shift.instant(*expires_at))
    }

    /// Sweeps a few ids that have expired, and tells of the charges that can be settled no more: to be done first by
    /// each call that changes the key. An id that the call is about to be remembered by (`coming`) goes if it has
    /// expired.
    pub fn sweep(&mut self, now: Timestamp, coming: Option<&[u8]>, mut gone: impl FnMut(&Charge)) {
        self.delta = IdempotencyDelta::Nothing;
        let until = self.shift.mark(now);
        for _ in 0..SWEPT {
            let Some((_, id)) = self.by_expiry.first().filter(|(expires_at, _)| *expires_at <= until) else { break };
            #[cfg(test)]
            effort::entry();
            let id = Arc::clone(id);
            self.remove(Name::of(&id), until, &mut gone);
        }
        if let Some(id) = coming {
            self.remove(Name::of(id), until, &mut gone);
        }
        // As a lease table does.
        if self.by_id.len() < self.by_id.capacity() / 32 {
            self.by_id.shrink_to(self.by_id.len().saturating_mul(2), |entry| entry.hash);
        }
    }

    /// Removes an id if it has expired.
    fn remove(&mut self, id: Name, until: Mark, gone: impl FnMut(&Charge)) {
        let Ok(entry) = self.by_id.find_entry(id.hash, IdempotencyEntry::is_of(id)) else { return };
        if entry.get().expires_at > until {
            return;
        }
        let entry = entry.remove().0;
        self.held = self.held.saturating_sub(entry.held());
        entry.charges.iter().for_each(gone);
        self.by_expiry.remove(&(entry.expires_at, entry.id));
    }

    /// Remembers a call by its id, which [`sweep`](IdempotencyTable::sweep) was told of and
    /// [`find`](IdempotencyTable::find) does not find.
    pub fn remember(&mut self, id: &[u8], call: RecordedCall) {
        let (name, id) = (Name::of(id), Kept::from(id));
        self.delta = IdempotencyDelta::RecordedCall(Arc::clone(&id));
        self.insert(name, id, call);
    }

    /// Adds a call that is remembered by an id, which is no change of the current call.
    pub(super) fn insert_call(&mut self, id: &[u8], call: RecordedCall) {
        self.insert(Name::of(id), Kept::from(id), call);
    }

    fn insert(&mut self, name: Name, id: Kept, call: RecordedCall) {
        let RecordedCall { expires_at, hold_until, settled, forced, granted, charges } = call;
        let (expires_at, hold_until) = (self.shift.mark(expires_at), self.shift.mark(hold_until));
        self.by_expiry.insert((expires_at, Arc::clone(&id)));
        let entry = IdempotencyEntry { hash: name.hash, id, expires_at, hold_until, settled, forced, granted, charges };
        self.held = self.held.saturating_add(entry.held());
        self.by_id.insert_unique(name.hash, entry, |entry| entry.hash);
    }

    /// Marks the call of an id as settled; returns its charges, which their settlements then settle. `None` if there is
    /// nothing to settle: the id is not known, or was settled.
    pub fn settle(&mut self, id: &[u8], now: Timestamp) -> Option<Box<[Charge]>> {
        self.find(id, now).filter(|call| !call.settled)?;
        let id = Name::of(id);
        let entry = self.by_id.find_mut(id.hash, IdempotencyEntry::is_of(id))?;
        entry.settled = true;
        let charges = std::mem::take(&mut entry.charges);
        self.held = self.held.saturating_sub(size_of_val(&*charges));
        self.delta = IdempotencyDelta::Settled(Arc::clone(&entry.id));
        Some(charges)
    }

    /// Moves all instants `back`, because the clock did.
    pub fn move_back(&mut self, back: Span) {
        let before = self.shift;
        self.shift = before.back(back);
        let epoch = self.shift.mark(Timestamp::EPOCH);
        if self.shift.is_far() {
            let far = std::mem::take(&mut self.shift);
            let anew = |mark: Mark| Shift::default().mark(far.instant(mark));
            self.by_expiry = std::mem::take(&mut self.by_expiry).into_iter().map(|(at, id)| (anew(at), id)).collect();
            for entry in &mut self.by_id {
                #[cfg(test)]
                effort::entry();
                (entry.expires_at, entry.hold_until) = (anew(entry.expires_at), anew(entry.hold_until));
            }
            return;
        }
        // Instants end at the epoch; those that meet there are in the order of their ids.
        while let Some((at, id)) = self.by_expiry.first().filter(|(at, _)| *at < epoch) {
            #[cfg(test)]
            effort::entry();
            let (at, id) = (*at, Arc::clone(id));
            let name = Name::of(&id);
            if let Some(entry) = self.by_id.find_mut(name.hash, IdempotencyEntry::is_of(name)) {
                entry.expires_at = epoch;
            }
            let first = (at, id);
            self.by_expiry.remove(&first);
            self.by_expiry.insert((epoch, first.1));
        }
    }

    /// Moves the charges of a component along with its usage, which is about to be moved back to `now`.
    pub fn move_charges_back<U: Usage>(&mut self, component: u8, usage: &U, now: Timestamp) {
        if usage.place().is_none() || !usage.is_after(now) {
            return;
        }
        for entry in &mut self.by_id {
            #[cfg(test)]
            effort::entry();
            entry
                .charges
                .iter_mut()
                .filter(|charge| charge.component == component)
                .for_each(|charge| charge.move_back(usage, now));
        }
    }

    /// How many there are, some of which may have expired.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// When the last one expires.
    #[must_use]
    pub fn last_expiry(&self) -> Option<Timestamp> {
        self.by_expiry.last().map(|(expires_at, _)| self.shift.instant(*expires_at))
    }

    /// The charges that can be settled.
    pub fn charges(&self) -> impl Iterator<Item = &Charge> {
        self.by_id.iter().flat_map(|entry| &entry.charges)
    }

    /// How many bytes it holds beside itself, about.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        // As for leases: a node of the tree has room for 11 and holds 6 or more, but for the only one; the table has a
        // byte beside each of its places, an eighth of which stay free.
        const NODE: usize = 288;
        const PLACE: usize = size_of::<IdempotencyEntry>() + 1;
        let nodes = self.by_expiry.len().div_ceil(6).saturating_mul(NODE);
        let places = self.by_id.capacity().saturating_mul(8).div_ceil(7).saturating_mul(PLACE);
        nodes.saturating_add(places).saturating_add(self.held)
    }

    /// How many allocations it takes to free it, about.
    #[must_use]
    pub fn effort(&self) -> usize {
        self.by_id.len()
    }

    /// The ids and their calls, in the order in which they expire.
    pub(super) fn calls(&self) -> impl Iterator<Item = (&Kept, RecordedCall<&[Charge]>)> {
        self.by_expiry.iter().filter_map(|(_, id)| {
            let name = Name::of(id);
            let entry = self.by_id.find(name.hash, IdempotencyEntry::is_of(name))?;
            Some((id, entry.seen(self.shift)))
        })
    }

    /// Writes it out, field by field.
    pub fn encode(&self, to: &mut impl Encoder) {
        to.integer(u64::try_from(self.by_id.len()).unwrap_or(0));
        for (id, call) in self.calls() {
            to.bytes(id);
            call.encode(to);
            to.integer(u64::try_from(call.charges.len()).unwrap_or(0));
            for charge in call.charges {
                charge.encode(to);
            }
        }
    }

    /// Reads what [`encode`](IdempotencyTable::encode) wrote of a key that was last changed at `written`. `None` unless
    /// calls can have led to it. The settlements then count its [`charges`](IdempotencyTable::charges).
    pub fn decode(from: &mut impl Decoder, written: Timestamp) -> Option<IdempotencyTable> {
        let mut ids = IdempotencyTable::default();
        for _ in 0..from.integer()? {
            let id = name::decode(from)?;
            let call = RecordedCall::decode(from, written, ())?;
            let charges = decode_charges(from, Charge::decode, |charge| charge.component)?;
            let last = ids.by_expiry.last();
            let in_order = last.is_none_or(|(at, last)| (*at, last) < (ids.shift.mark(call.expires_at), &id));
            let name = Name::of(&id);
            let twice = ids.by_id.find(name.hash, IdempotencyEntry::is_of(name)).is_some();
            if !in_order || twice || call.settled && !charges.is_empty() {
                return None;
            }
            ids.insert(name, Arc::clone(&id), call.with(charges));
        }
        Some(ids)
    }

    /// Writes out what has changed since the last time that this was asked, but for what was swept. To be asked after
    /// every change, even if nothing is propagated.
    pub fn encode_effect(&mut self, to: &mut impl Encoder) {
        match std::mem::take(&mut self.delta) {
            IdempotencyDelta::Nothing => encode_no_effect(to),
            IdempotencyDelta::Settled(id) => encode_settled(&id, to),
            IdempotencyDelta::RecordedCall(id) => {
                let name = Name::of(&id);
                if let Some(entry) = self.by_id.find(name.hash, IdempotencyEntry::is_of(name)) {
                    encode_recorded(&id, &entry.seen(self.shift), to);
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn has_changed(&self) -> bool {
        !matches!(self.delta, IdempotencyDelta::Nothing)
    }
}

#[cfg(test)]
mod tests;
