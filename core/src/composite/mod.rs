//! Several limits on one key: a usage that is made of others.
//!
//! Each is a *component*: a usage of one of the other kinds, with what it is known by and when it will have recovered.
//! A call brings up to eight limits; each finds its component, or starts one, and is evaluated at it
//! (`limit_evaluation.rs`). All are evaluated before any is charged, and all are charged or none is
//! (`composite_evaluation.rs`). A component that no limit of a call finds is left as it is until it has recovered, so
//! that nothing is forgiven by calling in another way and back.
//!
//! A limit finds its component by its name, or, without one, by its kind and window. What a plain key remembered before
//! it became one with components is known by nothing yet: the first limit of its kind takes it over.
//!
//! Beside the components stand what makes calls idempotent ([`idempotency`]) and the key's [ban](crate::ban).
//!
//! When to use it: two windows on one client, requests and tokens, a rate and a concurrency limit. Cost: 80 bytes and
//! 88 for each component; a usage of more than 40 bytes is boxed, and takes its own size as well.

mod answer;
mod charge;
mod composite_evaluation;
mod conversion;
mod fast_path;
mod held;
pub mod idempotency;
mod limit_evaluation;
mod stored;

use crate::algorithm::any::Single;
#[doc(hidden)]
use crate::algorithm::any::{AnyUsage, with_usage};
use crate::algorithm::leases::ConcurrencyUsage;
use crate::ban::Ban;
use crate::kind::Kind;
use crate::limit::{Identity, Recovery, Usage};
use crate::number::{Span, Timestamp};
use crate::syntax::Spec;
pub use answer::Answer;
pub use composite_evaluation::CompositeEvaluation;
pub use fast_path::FastEvaluation;
pub use held::Held;
use idempotency::{Charge, IdempotencyTable, Settlement};

/// How many components a key may have.
pub const MAX_COMPONENTS: usize = 16;

/// What a key with several limits remembers.
#[derive(Clone, Debug, Default)]
pub struct CompositeUsage {
    /// In the order in which they came.
    components: Vec<Component>,
    /// When any of it was last changed.
    written: Timestamp,
    /// What is rare: most keys have none of it.
    extras: Option<Box<Extras>>,
    /// What the current call has changed.
    delta: CompositeDelta,
}

/// What a key remembers beside its components.
#[derive(Clone, Debug, Default)]
struct Extras {
    ids: IdempotencyTable,
    ban: Ban,
}

/// One limit's usage.
#[derive(Clone, Debug)]
struct Component {
    /// By which the ids and the effects know it: the smallest that was free. None of a component that has gone is known
    /// any more, since it stays as long as any of its charges may be settled.
    serial: u32,
    identity: ComponentIdentity,
    usage: AnyUsage,
    /// When it will have recovered, under the limit that charged it last.
    recovers_at: Timestamp,
    /// What settling its charges takes, while there is an id that may be settled.
    settlement: Option<Box<Settlement>>,
}

/// What a component is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ComponentIdentity {
    /// Nothing yet: a plain key's usage.
    Nothing,
    /// Its window, or the like.
    Window(Identity),
    /// Its name.
    Name(Box<[u8]>),
}

impl ComponentIdentity {
    /// What the limit of a spec is known by.
    fn of(spec: &Spec) -> ComponentIdentity {
        spec.name.map_or_else(
            || ComponentIdentity::Window(spec.limit.identity()),
            |name| ComponentIdentity::Name(name.into()),
        )
    }

    /// Whether it is that name, or without one that window.
    fn is(&self, name: Option<&[u8]>, window: Identity) -> bool {
        match (self, name) {
            (ComponentIdentity::Name(own), Some(name)) => **own == *name,
            (ComponentIdentity::Window(own), None) => *own == window,
            _ => false,
        }
    }
}

/// What one call has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CompositeDelta {
    /// By how much the clock has gone back.
    moved_back: Span,
    /// More than that has been done: what has expired was swept, and what has recovered has gone.
    begun: bool,
    /// These components have changed.
    changed: Vec<Changed>,
    /// Of the ban.
    ban: bool,
}

/// A component that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Changed {
    serial: u32,
    kind: Kind,
    /// Whether it was there before.
    is_new: bool,
    /// Whether it is known by something else now, or new.
    named: bool,
}

impl CompositeUsage {
    /// The place of the component that the limit of a spec finds, among those that no other spec of the call has
    /// `taken`.
    fn place(&self, spec: &Spec, taken: &[Option<usize>]) -> Option<usize> {
        let kind = spec.limit.kind();
        let place = self.components.iter().position(|component| component.is_of(spec));
        place.or_else(|| {
            let unknown = |component: &Component| {
                component.usage.kind() == kind && component.identity == ComponentIdentity::Nothing
            };
            self.components.iter().position(unknown).filter(|place| !taken.contains(&Some(*place)))
        })
    }

    /// How many components there would be once `more` have come, some have been `charged`, and those that have recovered
    /// have gone.
    fn components_with(&self, more: usize, charged: impl Fn(usize, &Component) -> bool, now: Timestamp) -> usize {
        let stays = |(place, component): &(usize, &Component)| {
            component.may_be_settled() || self.at(now) < component.recovers_at || charged(*place, component)
        };
        self.components.iter().enumerate().filter(stays).count().saturating_add(more)
    }

    /// The smallest serial number that no component has.
    fn free_serial(&self) -> u32 {
        (0..u32::MAX).find(|serial| self.component(*serial).is_none()).unwrap_or(u32::MAX)
    }

    /// One more. A key has few and keeps them long, so it keeps no room for others.
    fn push(&mut self, component: Component) {
        self.components.reserve_exact(1);
        self.components.push(component);
    }

    fn component(&self, serial: u32) -> Option<&Component> {
        self.components.iter().find(|component| component.serial == serial)
    }

    fn component_mut(&mut self, serial: u32) -> Option<&mut Component> {
        self.components.iter_mut().find(|component| component.serial == serial)
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
        let leases = self.components.iter().find_map(|component| ConcurrencyUsage::of(&component.usage))?;
        leases.lease_until(holder, now)
    }

    fn take_back(&mut self, holders: &[&[u8]], now: Timestamp) -> usize {
        let mut components = self.components.iter_mut();
        let leases = components.find_map(|component| {
            Some((component.serial, &mut component.recovers_at, ConcurrencyUsage::of_mut(&mut component.usage)?))
        });
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
        self.extras.get_or_insert_default().ban.by_hand(duration, now);
        self.delta.ban = true;
        self.end(now);
    }

    /// Whether that would change anything: a ban is never shortened, and none cannot be lifted.
    #[must_use]
    pub fn can_ban(&self, duration: Span, now: Timestamp) -> bool {
        let before = self.extras.as_ref().map_or(Ban::default(), |extras| extras.ban);
        let mut after = before;
        after.by_hand(duration, self.at(now));
        after != before
    }

    /// How long the key is banned, on its own clock.
    #[must_use]
    pub fn banned(&self, now: Timestamp) -> Span {
        self.extras.as_ref().map_or(Span::ZERO, |extras| extras.ban.left(self.at(now)))
    }

    /// The instant, on the key's own clock, that a look at `now` is at: one from before it was last changed sees it as
    /// it was then.
    fn at(&self, now: Timestamp) -> Timestamp {
        now.max(self.written)
    }

    /// How long until all of it has recovered.
    #[must_use]
    pub fn reset(&self, now: Timestamp) -> Span {
        let components = self.components.iter().map(|component| component.recovers_at).max().unwrap_or_default();
        let extras = self.extras.as_ref();
        let extras = extras.map_or(Timestamp::EPOCH, |extras| {
            extras.ids.last_expiry().unwrap_or_default().max(extras.ban.expires_at())
        });
        components.max(extras).since(self.at(now))
    }

    /// Begins a change: what has expired is swept. The call may be about to be remembered by an id.
    fn begin(&mut self, now: Timestamp, coming: Option<&[u8]>) {
        self.delta.begun = true;
        for component in &mut self.components {
            if !component.may_be_settled() {
                component.settlement = None;
            }
        }
        if let Some(extras) = &mut self.extras {
            let components = &mut self.components;
            extras.ids.sweep(now, coming, |charge| forget(components, charge));
            extras.ban.forget(now);
        }
    }

    /// Ends it: what has recovered by now goes.
    fn end(&mut self, now: Timestamp) {
        self.written = now;
        self.components.retain(|component| component.stays(now));
        self.extras.take_if(|extras| extras.is_empty());
        debug_assert!(self.components.iter().all(|component| component.is_sound(now)), "{self:?} cannot be read");
        debug_assert!(self.extras.as_ref().is_none_or(|extras| extras.ban.is_sound(now)), "{self:?} cannot be read");
    }
}

/// Forgets a charge that can be settled no more.
fn forget(components: &mut [Component], charge: &Charge) {
    let component = components.iter_mut().find(|component| component.serial == charge.component);
    if let Some(settlement) = component.and_then(|component| component.settlement.as_mut()) {
        settlement.forget(charge);
    }
}

impl Extras {
    fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.ban.is_empty()
    }
}

impl Component {
    /// Whether there is anything to remember of it: it has not recovered, or may be settled.
    fn stays(&self, now: Timestamp) -> bool {
        self.may_be_settled() || (now < self.recovers_at && !self.is_unused())
    }

    /// Whether a key that was last changed at `written` can have it: it stays, and was changed no later than the key.
    /// (A later one would move back with the clock by more than the instant at which it goes.)
    fn is_sound(&self, written: Timestamp) -> bool {
        self.stays(written) && with_usage!(&self.usage, usage => !usage.is_after(written))
    }

    fn is_unused(&self) -> bool {
        with_usage!(&self.usage, usage => usage.is_unused())
    }

    /// Whether it is known by what the limit of a spec is known by.
    #[inline(always)]
    fn is_of(&self, spec: &Spec) -> bool {
        let kind = spec.limit.kind();
        // A key has one table of leases, whatever it is called by.
        let only = kind == Kind::Concurrency;
        self.usage.kind() == kind && (only || self.identity.is(spec.name, spec.limit.identity()))
    }

    /// Whether any of its charges may be settled.
    fn may_be_settled(&self) -> bool {
        self.settlement.as_ref().is_some_and(|settlement| !settlement.is_idle())
    }

    /// Moves back with the clock, and with it what the ids remember of it.
    fn move_back(&mut self, ids: Option<&mut IdempotencyTable>, now: Timestamp) {
        if let Some(ids) = ids {
            with_usage!(&self.usage, usage => ids.move_charges_back(self.serial, usage, now));
        }
        let (ahead, recovery) = with_usage!(&mut self.usage, mut usage => {
            let ahead = usage.ahead(now);
            if ahead != Span::ZERO {
                usage.move_back(now);
                // It moves back with all else, which is an effect by itself: no part of the next.
                usage.encode_effect(&mut crate::effect::Discard);
            }
            (ahead, usage.recovery())
        });
        let moved = self.recovers_at.minus(ahead);
        self.recovers_at = match recovery {
            Recovery::MovesAlong => moved,
            // Of what a plain key remembered it may be told sooner than the component goes.
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
