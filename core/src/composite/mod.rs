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
//! When to use it: two windows on one client, requests and tokens, a rate and a concurrency limit. Cost: 32 bytes, and
//! 32 for each component; a usage of more than 16 bytes is boxed, and takes its own size as well.

mod answer;
mod charge;
mod component;
mod component_fields;
mod component_head;
mod composite_effect;
mod composite_evaluation;
mod conversion;
mod extras;
mod fast_path;
mod held;
pub mod idempotency;
mod identity;
mod limit_evaluation;
mod stored;

use crate::algorithm::any::Single;
use crate::algorithm::leases::{ConcurrencyUsage, Token};
use crate::ban::Ban;
use crate::kind::Kind;
use crate::limit::Identity;
use crate::number::{Span, Timestamp};
use crate::syntax::Spec;
pub use answer::Answer;
use component::{Component, ComponentChange};
pub use composite_evaluation::CompositeEvaluation;
use extras::Extras;
pub use fast_path::FastEvaluation;
pub use held::Held;
use identity::{ComponentIdentity, ShortIdentity};

/// How many components a key may have.
pub const MAX_COMPONENTS: usize = 16;

/// How many components there can be at once, while a call goes on: those that there were, and those that it makes.
const MOST_SERIALS: u8 = 24;

/// What a key with several limits remembers.
#[derive(Clone, Debug, Default)]
pub struct CompositeUsage {
    /// In the order in which they came.
    components: Box<[Component]>,
    /// When any of it was last changed.
    written: Timestamp,
    /// What is rare: most keys have none of it.
    extras: Option<Box<Extras>>,
}

impl CompositeUsage {
    /// The place of the component that the limit of a spec finds, which most likely stands `at` there, among those that
    /// no other spec of the call has `taken`.
    fn place(&self, spec: &Spec, at: usize, taken: &[Option<usize>]) -> Option<usize> {
        let kind = spec.limit.kind();
        self.place_known(spec, at).or_else(|| {
            let unknown = |component: &Component| component.kind() == kind && component.is_unclaimed();
            self.components.iter().position(unknown).filter(|place| !taken.contains(&Some(*place)))
        })
    }

    /// The place of the component that is known by what the limit of a spec is known by, which most likely stands `at`
    /// there.
    #[inline(always)]
    fn place_known(&self, spec: &Spec, at: usize) -> Option<usize> {
        match self.components.get(at) {
            Some(component) if self.is_known_by(component, spec) => Some(at),
            _ => self.place_known_elsewhere(spec),
        }
    }

    fn place_known_elsewhere(&self, spec: &Spec) -> Option<usize> {
        self.components.iter().position(|component| self.is_known_by(component, spec))
    }

    /// Whether a component is known by what the limit of a spec is known by.
    #[inline(always)]
    fn is_known_by(&self, component: &Component, spec: &Spec) -> bool {
        let (kind, window) = (spec.limit.kind(), spec.limit.identity());
        // A key has one table of leases, whatever it is called by.
        component.kind() == kind
            && (kind == Kind::Concurrency
                || match component.usage.label().identity {
                    ShortIdentity::Long => self.is_known_as(component, spec.name, window),
                    short => spec.name.is_none() && short.is(window),
                })
    }

    /// Whether a component whose identity is long is known by that name, or without one by that window.
    #[cold]
    fn is_known_as(&self, component: &Component, name: Option<&[u8]>, window: Identity) -> bool {
        let identity = self.extras().and_then(|extras| extras.long_identity(component.serial()));
        identity.is_some_and(|identity| identity.is(name, window))
    }

    #[inline(always)]
    fn extras(&self) -> Option<&Extras> {
        self.extras.as_deref()
    }

    #[cfg(test)]
    fn has_delta(&self) -> bool {
        let noted = |component: &Component| component.change() != ComponentChange::Nothing;
        self.components.iter().any(noted) || self.extras().is_some_and(Extras::has_delta)
    }

    fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// How many components there would be once `more` have come, some have been `charged`, and those that have
    /// recovered have gone.
    fn components_with(&self, more: usize, charged: impl Fn(usize, &Component) -> bool, now: Timestamp) -> usize {
        let stays = |(place, component): &(usize, &Component)| {
            component.may_be_settled(self.extras())
                || self.at(now) < component.recovers_at
                || charged(*place, component)
        };
        self.components.iter().enumerate().filter(stays).count().saturating_add(more)
    }

    /// The smallest serial number that no component has.
    fn free_serial(&self) -> u8 {
        (0..MOST_SERIALS).find(|serial| self.component(*serial).is_none()).unwrap_or(MOST_SERIALS)
    }

    /// One more. A key has few and keeps them long, so it keeps no room for others.
    fn push(&mut self, component: Component) {
        let mut components = std::mem::take(&mut self.components).into_vec();
        components.reserve_exact(1);
        components.push(component);
        self.components = components.into();
    }

    /// Makes a component known by that.
    fn name(&mut self, place: usize, identity: ComponentIdentity) {
        let Some(component) = self.components.get_mut(place) else { return };
        let short = identity.short();
        component.usage.label_mut().identity = short;
        if short == ShortIdentity::Long {
            let serial = component.serial();
            self.extras_mut().keep_identity(serial, identity);
        }
    }

    fn component(&self, serial: u8) -> Option<&Component> {
        self.components.iter().find(|component| component.serial() == serial)
    }

    fn place_of_serial(&self, serial: u8) -> Option<usize> {
        self.components.iter().position(|component| component.serial() == serial)
    }

    /// Takes the live leases of `holders` back; how many there were.
    pub fn release(&mut self, holders: &[&[u8]], now: Timestamp) -> usize {
        let released = self.release_leases(holders, now);
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
        self.leases()?.lease_until(holder, now)
    }

    /// The fencing token of a holder's lease; `None` if it has no lease, or did not ask for a token.
    #[must_use]
    pub fn lease_token(&self, holder: &[u8], now: Timestamp) -> Option<Token> {
        self.leases()?.lease_token(holder, now)
    }

    fn leases(&self) -> Option<&ConcurrencyUsage> {
        self.components.iter().find_map(|component| ConcurrencyUsage::of(&component.usage))
    }

    fn release_leases(&mut self, holders: &[&[u8]], now: Timestamp) -> usize {
        let mut components = self.components.iter_mut();
        let component = components.find(|component| component.kind() == Kind::Concurrency);
        let Some(component) = component else { return 0 };
        let Some(leases) = ConcurrencyUsage::of_mut(&mut component.usage) else { return 0 };
        let released = leases.release(holders, now);
        if released > 0 {
            component.recovers_at = now.plus(leases.time_to_last_expiry(now)).min(Timestamp::MAX);
            component.note(ComponentChange::Usage);
        }
        released
    }

    /// Bans the key by hand, or lifts its ban.
    pub fn ban(&mut self, duration: Span, now: Timestamp) {
        self.begin(now, None);
        self.extras_mut().change_ban(|ban| ban.by_hand(duration, now));
        self.end(now);
    }

    /// Whether that would change anything: a ban is never shortened, and none cannot be lifted.
    #[must_use]
    pub fn can_ban(&self, duration: Span, now: Timestamp) -> bool {
        let before = self.extras().map_or(Ban::default(), Extras::ban);
        let mut after = before;
        after.by_hand(duration, self.at(now));
        after != before
    }

    /// How long the key is banned, on its own clock.
    #[must_use]
    pub fn banned(&self, now: Timestamp) -> Span {
        self.extras().map_or(Span::ZERO, |extras| extras.ban().left(self.at(now)))
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
        let extras = self.extras().map_or(Timestamp::EPOCH, |extras| {
            extras.records.last_expiry().unwrap_or_default().max(extras.ban().expires_at())
        });
        components.max(extras).since(self.at(now))
    }

    /// Begins a change: what has expired is swept. The call may be about to be remembered by an id.
    #[inline(always)]
    fn begin(&mut self, now: Timestamp, coming: Option<&[u8]>) {
        if let Some(extras) = &mut self.extras {
            extras.begin();
            extras.records.sweep(now, coming);
            let mut ban = extras.ban();
            ban.forget(now);
            extras.set_ban(ban);
        }
    }

    /// Ends it: what has recovered by now goes.
    #[inline(always)]
    fn end(&mut self, now: Timestamp) {
        self.written = now;
        if !self.components.iter().all(|component| component.stays(self.extras(), now)) {
            self.drop_recovered(now);
        }
        self.extras.take_if(|extras| extras.is_needless());
        debug_assert!(
            self.components.iter().all(|component| component.is_sound(self.extras(), now)),
            "{self:?} cannot be read"
        );
        debug_assert!(self.extras().is_none_or(|extras| extras.ban().is_sound(now)), "{self:?} cannot be read");
    }

    #[cold]
    fn drop_recovered(&mut self, now: Timestamp) {
        let mut gone = Vec::new();
        let mut components = std::mem::take(&mut self.components).into_vec();
        components.retain(|component| {
            let stays = component.stays(self.extras(), now);
            if !stays {
                gone.push((component.serial(), component.kind(), component.change()));
            }
            stays
        });
        self.components = components.into();
        for (serial, kind, change) in gone {
            if let Some(extras) = &mut self.extras {
                extras.forget_identity(serial);
            }
            // Of one that the call has made nobody else knows.
            if matches!(change, ComponentChange::Usage | ComponentChange::Named) {
                self.extras_mut().delta().gone.push((serial, kind));
            }
        }
    }
}

#[cfg(test)]
mod tests;
