//! Several limits on one key: a usage that is made of others.
//!
//! Each is a *part*: a usage of one of the other kinds, with what it is known by and when it will have recovered. A
//! call brings up to eight limits; each finds its part, or starts one. All are looked at before any is charged, and all
//! are charged or none is: see `look.rs`. A part that no limit of a call finds is left as it is until it
//! has recovered, so that nothing is forgiven by calling in another way and back.
//!
//! A limit finds its part by its name, or, without one, by its kind and window. What a plain key remembered before it
//! became one with parts is known by nothing yet: the first limit of its kind takes it over.
//!
//! Beside the parts stand the ids of calls that count once ([`once`]) and the key's [ban](crate::ban).
//!
//! When to use it: two windows on one client, requests and tokens, a rate and a concurrency limit. Its price: memory,
//! two parts take about a fourth more than two plain keys, and four about as much as four. Cost: 96 bytes, 88 a part, and
//! what a part of its kind takes beyond 40.

mod answer;
mod charge;
mod conversion;
mod look;
pub mod once;
mod stored;
mod straight;

use crate::algorithm::any::Single;
#[doc(hidden)]
use crate::algorithm::any::{AnyUsage, with_usage};
use crate::algorithm::leases::ConcurrencyUsage;
use crate::ban::Ban;
use crate::kind::Kind;
use crate::limit::{Known, Recovery, Usage};
use crate::number::{Span, Timestamp};
use crate::syntax::Spec;
pub use answer::Answer;
pub use look::{Held, Seen};
use once::{Charge, Ids, Track};
pub use straight::Straight;

/// How many parts a key may have.
pub const MAX_PARTS: usize = 16;

/// What a key with several limits remembers.
#[derive(Clone, Debug, Default)]
pub struct PartsUsage {
    /// In the order in which they came.
    parts: Vec<Part>,
    /// When any of it was last changed.
    written: Timestamp,
    /// What is rare: most keys have none of it.
    beside: Option<Box<Beside>>,
    /// What the current call has changed.
    delta: Delta,
}

/// What a key remembers beside its parts.
#[derive(Clone, Debug, Default)]
struct Beside {
    ids: Ids,
    ban: Ban,
}

/// One limit's usage.
#[derive(Clone, Debug)]
struct Part {
    /// By which the ids and the effects know it: the smallest that was free. None of a part that has gone is known any
    /// more, since it stays as long as any of its charges may be settled.
    serial: u32,
    known_by: KnownBy,
    usage: AnyUsage,
    /// When it will have recovered, under the limit that charged it last.
    recovers_at: Timestamp,
    /// What settling its charges takes, while there is an id that may be settled.
    track: Option<Box<Track>>,
}

/// What a part is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KnownBy {
    /// Nothing yet: a plain key's usage.
    Nothing,
    /// Its window, or the like.
    Window(Known),
    /// Its name.
    Name(Box<[u8]>),
}

impl KnownBy {
    /// What the limit of a spec is known by.
    fn of(spec: &Spec) -> KnownBy {
        spec.name.map_or_else(|| KnownBy::Window(spec.limit.known_by()), |name| KnownBy::Name(name.into()))
    }

    /// Whether it is that name, or without one that window.
    fn is(&self, name: Option<&[u8]>, window: Known) -> bool {
        match (self, name) {
            (KnownBy::Name(own), Some(name)) => **own == *name,
            (KnownBy::Window(own), None) => *own == window,
            _ => false,
        }
    }
}

/// What one call has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Delta {
    /// The clock has gone back by so much.
    moved_back: Span,
    /// More than that has been done: what has expired was swept, and what has recovered has gone.
    begun: bool,
    /// These parts have changed.
    changed: Vec<Changed>,
    /// Of the ban.
    ban: bool,
}

/// A part that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Changed {
    serial: u32,
    kind: Kind,
    /// Whether it was there before.
    is_new: bool,
    /// Whether it is known by something else now, or new.
    named: bool,
}

impl PartsUsage {
    /// The place of the part that the limit of a spec finds, among those that no other spec of the call has `taken`.
    fn place(&self, spec: &Spec, taken: &[Option<usize>]) -> Option<usize> {
        let kind = spec.limit.kind();
        let place = self.parts.iter().position(|part| part.is_of(spec));
        place.or_else(|| {
            let unknown = |part: &Part| part.usage.kind() == kind && part.known_by == KnownBy::Nothing;
            self.parts.iter().position(unknown).filter(|place| !taken.contains(&Some(*place)))
        })
    }

    /// How many parts there would be once so many more have come, some have been `charged`, and what has recovered has
    /// gone.
    fn parts_with(&self, more: usize, charged: impl Fn(usize, &Part) -> bool, now: Timestamp) -> usize {
        let stays = |(place, part): &(usize, &Part)| {
            part.may_be_settled() || self.at(now) < part.recovers_at || charged(*place, part)
        };
        self.parts.iter().enumerate().filter(stays).count().saturating_add(more)
    }

    /// The smallest serial number that no part has.
    fn free_serial(&self) -> u32 {
        (0..u32::MAX).find(|serial| self.part(*serial).is_none()).unwrap_or(u32::MAX)
    }

    /// One more. A key has few and keeps them long, so it keeps no room for others.
    fn push(&mut self, part: Part) {
        self.parts.reserve_exact(1);
        self.parts.push(part);
    }

    fn part(&self, serial: u32) -> Option<&Part> {
        self.parts.iter().find(|part| part.serial == serial)
    }

    fn part_mut(&mut self, serial: u32) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.serial == serial)
    }

    /// Takes the live leases of `holders` back; how many there were.
    pub fn release(&mut self, holders: &[&[u8]], now: Timestamp) -> usize {
        let released = self.take_back(holders, now);
        // Nothing is propagated of none, so nothing may change.
        if released > 0 {
            self.begin(now, None);
            self.end(now);
        }
        released
    }

    /// When a holder's lease expires; `None` if it has none.
    #[must_use]
    pub fn lease_until(&self, holder: &[u8], now: Timestamp) -> Option<Timestamp> {
        let leases = self.parts.iter().find_map(|part| ConcurrencyUsage::of(&part.usage))?;
        leases.lease_until(holder, now)
    }

    fn take_back(&mut self, holders: &[&[u8]], now: Timestamp) -> usize {
        let mut parts = self.parts.iter_mut();
        let leases = parts
            .find_map(|part| Some((part.serial, &mut part.recovers_at, ConcurrencyUsage::of_mut(&mut part.usage)?)));
        let Some((serial, recovers_at, leases)) = leases else { return 0 };
        let released = leases.release(holders, now);
        if released > 0 {
            *recovers_at = now.plus(leases.time_to_last_expiry(now)).min(Timestamp::MAX);
            let kind = Kind::Concurrency;
            self.delta.changed.push(Changed { serial, kind, is_new: false, named: false });
        }
        released
    }

    /// Bans the key by hand, or lifts its ban.
    pub fn ban(&mut self, duration: Span, now: Timestamp) {
        self.begin(now, None);
        self.beside.get_or_insert_default().ban.by_hand(duration, now);
        self.delta.ban = true;
        self.end(now);
    }

    /// Whether that would change anything: a ban is never shortened, and none cannot be lifted.
    #[must_use]
    pub fn can_ban(&self, duration: Span, now: Timestamp) -> bool {
        let before = self.beside.as_ref().map_or(Ban::default(), |beside| beside.ban);
        let mut after = before;
        after.by_hand(duration, self.at(now));
        after != before
    }

    /// How long the key is banned, on its own clock.
    #[must_use]
    pub fn banned(&self, now: Timestamp) -> Span {
        self.beside.as_ref().map_or(Span::ZERO, |beside| beside.ban.left(self.at(now)))
    }

    /// The instant, on the key's own clock, that a look at `now` is at: one from before it was last changed sees it as
    /// it was then.
    fn at(&self, now: Timestamp) -> Timestamp {
        now.max(self.written)
    }

    /// How long until all of it has recovered.
    #[must_use]
    pub fn reset(&self, now: Timestamp) -> Span {
        let parts = self.parts.iter().map(|part| part.recovers_at).max().unwrap_or_default();
        let beside = self.beside.as_ref();
        let beside = beside.map_or(Timestamp::EPOCH, |beside| {
            beside.ids.last_expiry().unwrap_or_default().max(beside.ban.expires_at())
        });
        parts.max(beside).since(self.at(now))
    }

    /// Begins a change: what has expired is swept. The call may be about to be remembered by an id.
    fn begin(&mut self, now: Timestamp, coming: Option<&[u8]>) {
        self.delta.begun = true;
        for part in &mut self.parts {
            if !part.may_be_settled() {
                part.track = None;
            }
        }
        if let Some(beside) = &mut self.beside {
            let parts = &mut self.parts;
            beside.ids.sweep(now, coming, |charge| forget(parts, charge));
            beside.ban.forget(now);
        }
    }

    /// Ends it: what has recovered by now goes.
    fn end(&mut self, now: Timestamp) {
        self.written = now;
        self.parts.retain(|part| part.stays(now));
        self.beside.take_if(|beside| beside.is_empty());
        debug_assert!(self.parts.iter().all(|part| part.is_sound(now)), "{self:?} cannot be read");
        debug_assert!(self.beside.as_ref().is_none_or(|beside| beside.ban.is_sound(now)), "{self:?} cannot be read");
    }
}

/// Forgets a charge that can be settled no more.
fn forget(parts: &mut [Part], charge: &Charge) {
    let part = parts.iter_mut().find(|part| part.serial == charge.part);
    if let Some(track) = part.and_then(|part| part.track.as_mut()) {
        track.forget(charge);
    }
}

impl Beside {
    fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.ban.is_empty()
    }
}

impl Part {
    /// Whether there is anything to remember of it: it has not recovered, or may be settled.
    fn stays(&self, now: Timestamp) -> bool {
        self.may_be_settled() || (now < self.recovers_at && !self.is_unused())
    }

    /// Whether a key that was last changed at `written` can have it: it stays, and was changed no later than the key. (A
    /// later one would move back with the clock by more than the instant at which it goes.)
    fn is_sound(&self, written: Timestamp) -> bool {
        self.stays(written) && with_usage!(&self.usage, usage => !usage.is_after(written))
    }

    fn is_unused(&self) -> bool {
        with_usage!(&self.usage, usage => usage.is_unused())
    }

    /// Whether it is known by what the limit of a spec is known by.
    fn is_of(&self, spec: &Spec) -> bool {
        let kind = spec.limit.kind();
        // A key has one table of leases, whatever it is called by.
        let only = kind == Kind::Concurrency;
        self.usage.kind() == kind && (only || self.known_by.is(spec.name, spec.limit.known_by()))
    }

    /// Whether any of its charges may be settled.
    fn may_be_settled(&self) -> bool {
        self.track.as_ref().is_some_and(|track| !track.is_idle())
    }

    /// Moves back with the clock, and with it what the ids remember of it.
    fn move_back(&mut self, ids: Option<&mut Ids>, now: Timestamp) {
        if let Some(ids) = ids {
            with_usage!(&self.usage, usage => ids.move_charges_back(self.serial, usage, now));
        }
        let (ahead, recovery) = with_usage!(&mut self.usage, mut usage => {
            let ahead = usage.ahead(now);
            if ahead != Span::ZERO {
                usage.move_back(now);
                // It moves back with all else, which is an effect by itself: no part of the next.
                usage.encode_effect(&mut crate::effect::Nobody);
            }
            (ahead, usage.recovery())
        });
        let moved = self.recovers_at.minus(ahead);
        self.recovers_at = match recovery {
            Recovery::MovesAlong => moved,
            // Of what a plain key remembered it may be told sooner than the part goes.
            Recovery::IsTold => {
                let reset = with_usage!(&self.usage, usage => usage.time_to_recovery(now));
                moved.max(now.plus(reset)).min(Timestamp::MAX)
            }
            // It comes no later than before.
            Recovery::IsHidden => self.recovers_at,
        }
    }
}

#[cfg(test)]
mod tests;
