//! Several limits on one key: a usage made of the usages of other kinds.
//!
//! Each of these usages is a *component*, with an identity and the time of its full recovery. A call has up to eight
//! limits. Each limit finds its component, or creates one, and is evaluated at the component (`limit_evaluation.rs`).
//! All limits are evaluated before any is charged, and all are charged or none is (`composite_evaluation.rs`). A
//! component that no limit of a call finds stays unchanged until it has recovered, so a call with other limits does not
//! reset usage.
//!
//! A limit finds its component by its name, or, without a name, by its kind and window. The usage of a plain key that
//! is converted to a composite key has no identity at first: the first limit of its kind claims it.
//!
//! Beside the components, a key holds the records that make calls idempotent ([`idempotency`]) and its
//! [ban](crate::ban).
//!
//! **When to use it:** two windows for one client, requests and tokens, a rate and a concurrency limit. **Cost:** 32
//! bytes per key and 32 bytes per component. A usage of more than 16 bytes is boxed and takes its own size as well.

mod answer;
mod charge;
mod component;
mod component_head;
mod composite_effect;
mod composite_evaluation;
mod conversion;
mod extras;
mod fast_path;
pub mod idempotency;
mod identity;
mod limit_evaluation;
mod stored_usage;
mod usage_impl;

use crate::algorithm::any::PlainUsage;
use crate::algorithm::leases::ConcurrencyUsage;
use crate::ban::Ban;
use crate::limit::{Identity, Usage};
use crate::number::{Span, Timestamp};
use crate::syntax::Spec;
use crate::usage_kind::UsageKind;
pub use answer::Answer;
use component::{Component, ComponentChange};
pub use composite_evaluation::CompositeEvaluation;
use extras::Extras;
pub use fast_path::FastEvaluation;
use identity::{ComponentIdentity, ShortIdentity};
pub use stored_usage::StoredUsage;

/// Maximum number of components per key.
pub const MAX_COMPONENTS: usize = 16;

/// Number of serial numbers: enough for [`MAX_COMPONENTS`], and for the 8 components that a call can create before it
/// removes recovered ones.
const MAX_SERIALS: u8 = 24;

/// State of a key with several limits.
#[derive(Clone, Debug, Default)]
pub struct CompositeUsage {
    /// Components, in the order of their creation.
    components: Box<[Component]>,
    /// Time of the last change.
    written: Timestamp,
    /// Idempotency records, ban and long identities; most keys have none.
    extras: Option<Box<Extras>>,
}

impl CompositeUsage {
    /// Returns the index of the component for the limit of `spec`. Tries the index `first` first. `found` lists the
    /// indexes that other specs of the call have found. An unclaimed component among them is skipped.
    fn index_of(&self, spec: &Spec, first: usize, found: &[Option<usize>]) -> Option<usize> {
        let kind = spec.limit.kind();
        self.claimed_index_of(spec, first).or_else(|| {
            let unclaimed = |component: &Component| component.kind() == kind && component.is_unclaimed();
            self.components.iter().position(unclaimed).filter(|index| !found.contains(&Some(*index)))
        })
    }

    /// Returns the index of the component with the identity of the limit of `spec`. Tries the index `first` first.
    #[inline(always)]
    fn claimed_index_of(&self, spec: &Spec, first: usize) -> Option<usize> {
        match self.components.get(first) {
            Some(component) if self.matches_spec(component, spec) => Some(first),
            _ => self.search_claimed(spec),
        }
    }

    fn search_claimed(&self, spec: &Spec) -> Option<usize> {
        self.components.iter().position(|component| self.matches_spec(component, spec))
    }

    /// Returns `true` if `component` has the identity of the limit of `spec`.
    #[inline(always)]
    fn matches_spec(&self, component: &Component, spec: &Spec) -> bool {
        let (kind, window) = (spec.limit.kind(), spec.limit.identity());
        // A key has one table of leases, whatever the name of the limit.
        component.kind() == kind
            && (kind == UsageKind::Concurrency
                || match component.usage.label().identity {
                    ShortIdentity::Long => self.has_long_identity(component, spec.name, window),
                    short => spec.name.is_none() && short.matches(window),
                })
    }

    /// Returns `true` if the long identity of `component` is `name` or, without a name, `window`.
    #[cold]
    fn has_long_identity(&self, component: &Component, name: Option<&[u8]>, window: Identity) -> bool {
        let identity = self.extras().and_then(|extras| extras.long_identity(component.serial()));
        identity.is_some_and(|identity| identity.matches(name, window))
    }

    #[inline(always)]
    fn extras(&self) -> Option<&Extras> {
        self.extras.as_deref()
    }

    fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// Returns the number of components after `added` are added and the recovered ones are removed. A component stays
    /// if `is_charged` returns `true` for it, or if it may be settled.
    fn component_count_with(
        &self,
        added: usize,
        is_charged: impl Fn(usize, &Component) -> bool,
        now: Timestamp,
    ) -> usize {
        let stays = |(index, component): &(usize, &Component)| {
            component.may_be_settled(self.extras())
                || self.effective_time(now) < component.recovers_at
                || is_charged(*index, component)
        };
        self.components.iter().enumerate().filter(stays).count().saturating_add(added)
    }

    /// Returns the smallest serial number that is not in use.
    fn free_serial(&self) -> u8 {
        (0..MAX_SERIALS).find(|serial| self.component(*serial).is_none()).unwrap_or(MAX_SERIALS)
    }

    /// Adds a component. Reserves no spare capacity, because a key has few components and keeps them long.
    fn push(&mut self, component: Component) {
        let mut components = std::mem::take(&mut self.components).into_vec();
        components.reserve_exact(1);
        components.push(component);
        self.components = components.into();
    }

    /// Sets the identity of a component.
    fn set_identity(&mut self, index: usize, identity: ComponentIdentity) {
        let Some(component) = self.components.get_mut(index) else { return };
        let short = identity.short();
        component.usage.label_mut().identity = short;
        if short == ShortIdentity::Long {
            let serial = component.serial();
            self.extras_mut().set_long_identity(serial, Some(identity));
        }
    }

    fn component(&self, serial: u8) -> Option<&Component> {
        self.components.iter().find(|component| component.serial() == serial)
    }

    fn index_of_serial(&self, serial: u8) -> Option<usize> {
        self.components.iter().position(|component| component.serial() == serial)
    }

    /// Releases the active leases of `holders` and returns their number.
    pub fn release(&mut self, holders: &[&[u8]], now: Timestamp) -> usize {
        let released = self.release_leases(holders, now);
        // A release of no lease has no effect to propagate, so it must not change the state.
        if released > 0 {
            self.begin(now, None);
            self.end(now);
        }
        released
    }

    /// Returns the usage of the concurrency limit, if the key has one.
    #[must_use]
    pub fn leases(&self) -> Option<&ConcurrencyUsage> {
        self.components.iter().find_map(|component| ConcurrencyUsage::of(&component.usage))
    }

    fn release_leases(&mut self, holders: &[&[u8]], now: Timestamp) -> usize {
        let mut components = self.components.iter_mut();
        let component = components.find(|component| component.kind() == UsageKind::Concurrency);
        let Some(component) = component else { return 0 };
        let Some(leases) = ConcurrencyUsage::of_mut(&mut component.usage) else { return 0 };
        let released = leases.release(holders, now);
        if released > 0 {
            component.recovers_at = now.plus(leases.time_to_recovery(now)).min(Timestamp::MAX);
            component.set_change(ComponentChange::Usage);
        }
        released
    }

    /// Bans the key manually for `duration`; zero lifts the ban.
    pub fn ban(&mut self, duration: Span, now: Timestamp) {
        self.begin(now, None);
        self.extras_mut().change_ban(|ban| ban.set_manual(duration, now));
        self.end(now);
    }

    /// Returns `true` if [`ban`](CompositeUsage::ban) would change the state. A ban is never shortened, and a missing
    /// ban cannot be lifted.
    #[must_use]
    pub fn is_changed_by_ban(&self, duration: Span, now: Timestamp) -> bool {
        let before = self.extras().map_or(Ban::default(), Extras::ban);
        let mut after = before;
        after.set_manual(duration, self.effective_time(now));
        after != before
    }

    /// Returns the remaining duration of the ban, or zero if there is none.
    #[must_use]
    pub fn remaining_ban(&self, now: Timestamp) -> Span {
        self.extras().map_or(Span::ZERO, |extras| extras.ban().remaining(self.effective_time(now)))
    }

    /// Returns the time at which to evaluate the state at `now`: not before the last change.
    fn effective_time(&self, now: Timestamp) -> Timestamp {
        now.max(self.written)
    }

    /// Returns the time until the whole state has recovered.
    #[must_use]
    pub fn reset(&self, now: Timestamp) -> Span {
        let components = self.components.iter().map(|component| component.recovers_at).max().unwrap_or_default();
        let extras = self.extras().map_or(Timestamp::EPOCH, |extras| {
            extras.records.last_expiry().unwrap_or_default().max(extras.ban().expires_at())
        });
        components.max(extras).since(self.effective_time(now))
    }

    /// Begins a change: removes a few expired idempotency records, and the expired parts of the ban. The record of
    /// `new_id`, the id that the call is about to record, is removed, too, if it has expired.
    #[inline(always)]
    fn begin(&mut self, now: Timestamp, new_id: Option<&[u8]>) {
        if let Some(extras) = &mut self.extras {
            if let Some(delta) = &mut extras.delta {
                delta.only_moved = false;
            }
            extras.records.sweep(now, new_id);
            if !extras.has_no_ban_state() {
                let mut ban = extras.ban();
                ban.clear_expired(now);
                extras.set_ban(ban);
            }
        }
    }

    /// Ends a change: removes the components that have recovered.
    #[inline(always)]
    fn end(&mut self, now: Timestamp) {
        self.written = now;
        if !self.components.iter().all(|component| component.must_be_kept(self.extras(), now)) {
            self.drop_recovered(now);
        }
        self.extras.take_if(|extras| extras.is_unneeded());
        debug_assert!(
            self.components.iter().all(|component| component.is_sound(self.extras(), now)),
            "{self:?} cannot be decoded"
        );
        debug_assert!(self.extras().is_none_or(|extras| extras.ban().is_sound(now)), "{self:?} cannot be decoded");
    }

    #[cold]
    fn drop_recovered(&mut self, now: Timestamp) {
        let mut removed = Vec::new();
        let mut components = std::mem::take(&mut self.components).into_vec();
        components.retain(|component| {
            let must_be_kept = component.must_be_kept(self.extras(), now);
            if !must_be_kept {
                removed.push((component.serial(), component.kind(), component.change()));
            }
            must_be_kept
        });
        self.components = components.into();
        for (serial, kind, change) in removed {
            if let Some(extras) = &mut self.extras {
                extras.set_long_identity(serial, None);
            }
            // Replicas do not know a component that the current call has created.
            if matches!(change, ComponentChange::Usage | ComponentChange::UsageAndIdentity) {
                self.extras_mut().delta().removed_components.push((serial, kind));
            }
        }
    }
}

#[cfg(test)]
mod tests;
