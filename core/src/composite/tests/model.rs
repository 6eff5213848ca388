//! Model of a key with several limits. Each limit has a usage of its own, which the limit itself evaluates and charges.
//! Ids are a map. A ban is four fields, with the expiry time of each level. A component is removed once it has
//! recovered under the limit that charged it last, and never before.

mod model_parts;
mod model_writes;

use super::server::unused_of;
use crate::algorithm::any::{AnyLimit, AnyUsage, PlainUsage, with_limit, with_usage};
use crate::ban::BanRule;
use crate::composite::idempotency::{Charge, Settlement};
use crate::composite::{Answer, CompositeUsage, MAX_COMPONENTS};
use crate::evaluate::{Change, Evaluation, Request, evaluate};
use crate::limit::{Decision, Identity, Limit, RecoverySource, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{CompositeRequest, Idempotency, KeyRequest, Purpose, Spec};
use crate::usage_kind::UsageKind;
use crate::wire::codec::Discard;
use model_parts::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct Model {
    /// `true`: the key is a plain key, with one usage and no other state.
    is_plain: bool,
    components: Vec<Component>,
    ids: BTreeMap<Vec<u8>, Id>,
    banned_until: Timestamp,
    /// Window in which strikes are counted, and the time of each strike.
    strikes: (Span, Vec<Timestamp>),
    /// Expiry time of each level of the last ban, earliest first.
    levels: Vec<Timestamp>,
    /// Time between the expiries of two levels.
    longest: Span,
    written: Timestamp,
    /// Number of components ever created.
    created_count: usize,
}

#[derive(Clone, Debug)]
struct Component {
    number: usize,
    identity: ComponentIdentity,
    usage: AnyUsage,
    /// Limits of the last charge: none after a conversion, which does not know them; two if the policy was scaled.
    charged_by: Vec<AnyLimit>,
    recovers_at: Timestamp,
    /// `true`: `recovers_at` is beyond the last timestamp, where times saturate.
    is_far: bool,
    /// `true`: the component had recovered at its last charge or settlement and is kept for settlements.
    had_recovered: bool,
    settlement: Settlement,
    /// Number of charges that can be settled.
    unsettled_count: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum ComponentIdentity {
    Nothing,
    Window(Identity),
    Name(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Id {
    expires_at: Timestamp,
    hold_until: Timestamp,
    settled: bool,
    forced: bool,
    granted: Option<Amount>,
    /// Charges, by the numbers of the components.
    charges: Vec<(usize, Charge)>,
}

#[derive(Clone, Debug)]
enum Outcome {
    Passes,
    Denied {
        is_strike: bool,
    },
    Banned,
    /// Repetition: the record of the id, and the remaining hold of the first call.
    Repeated(Id, Span),
    /// The id has been charged before, but its lease does not fit any more.
    LostLease,
    Settles,
    Settled,
    Unknown,
}

impl Component {
    /// Records the limits of a charge. The component recovers at the slower rate of a scaled policy.
    fn set_charged_by(&mut self, spec: &Spec, now: Timestamp) {
        self.charged_by = std::iter::once(spec.limit).chain(spec.slower_limit.copied()).collect();
        let reset = self.reset(now);
        let recovers_at = now.plus(reset);
        self.had_recovered = reset == Span::ZERO;
        (self.recovers_at, self.is_far) = (recovers_at.min(Timestamp::MAX), recovers_at >= Timestamp::MAX);
    }

    /// Returns the time to full recovery, under the limits of the last charge.
    fn reset(&self, now: Timestamp) -> Span {
        self.charged_by.iter().map(|limit| reset(*limit, &self.usage, now)).max().unwrap()
    }

    fn must_be_dropped(&self, now: Timestamp) -> bool {
        if self.unsettled_count > 0 {
            return false;
        }
        if !self.charged_by.is_empty() && now >= self.recovers_at && !self.is_far {
            assert_eq!(self.reset(now), Span::ZERO, "dropped early");
        }
        is_unused(&self.usage) || now >= self.recovers_at
    }

    fn move_back(&mut self, now: Timestamp) {
        let (ahead, recovery) = with_usage!(&mut self.usage, mut usage => {
            let ahead = usage.ahead(now);
            if ahead != Span::ZERO {
                usage.move_back(now);
                usage.encode_effect(&mut Discard);
            }
            (ahead, usage.recovery_source())
        });
        let reset_is_known = !self.charged_by.is_empty() && !self.is_far && !self.had_recovered;
        self.recovers_at = match recovery {
            // The end of an aligned window is known only to the limit that opened it.
            RecoverySource::Limit => self.recovers_at,
            RecoverySource::MovesBack if ahead == Span::ZERO => self.recovers_at,
            RecoverySource::MovesBack if reset_is_known => now.plus(self.reset(now)).min(Timestamp::MAX),
            RecoverySource::MovesBack => self.recovers_at.minus(ahead),
            // Slots are whole, so the reported recovery may be later than the difference.
            RecoverySource::Usage => {
                let reported = now.plus(reported_reset(&self.usage, now));
                self.recovers_at.minus(ahead).max(reported).min(Timestamp::MAX)
            }
        };
    }
}

impl Model {
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    pub fn is_missing(&self) -> bool {
        self.components.is_empty() && self.ids.is_empty() && !self.has_ban()
    }

    fn has_ban(&self) -> bool {
        self.banned_until != Timestamp::EPOCH || !self.strikes.1.is_empty() || !self.levels.is_empty()
    }

    /// Expires the key, and asserts that all of its state has expired.
    pub fn expire(&mut self, now: Timestamp) {
        for component in &self.components {
            let recovered = match component.charged_by.as_slice() {
                [] => component.recovers_at <= now,
                _ => component.is_far || component.reset(now) == Span::ZERO,
            };
            assert!(recovered, "a component expired early: {component:?}");
        }
        assert!(self.ids.values().all(|id| id.expires_at <= now), "an id expired early");
        assert!(self.banned_until <= now, "a ban expired early");
        let is_far = |level: &&Timestamp| **level > Timestamp::MAX;
        assert!(
            self.levels.last().filter(|level| !is_far(level)).is_none_or(|level| *level <= now),
            "a level expired early"
        );
        assert!(self.strikes.1.first().is_none_or(|first| first.plus(self.strikes.0) <= now), "strikes expired early");
        *self = Model::default();
    }

    /// Asserts that `usage` has the state of the model.
    pub fn compare(&self, usage: &CompositeUsage) {
        assert_eq!(usage.components.len(), self.components.len());
        for (component, expected) in usage.components.iter().zip(&self.components) {
            assert_eq!(component.is_unused(), is_unused(&expected.usage));
            if !component.is_unused() {
                assert_eq!(kind_and_fields(&component.usage), kind_and_fields(&expected.usage));
                assert_eq!(component.recovers_at, expected.recovers_at);
            }
            assert_eq!(component.may_be_settled(usage.extras()), expected.unsettled_count > 0);
        }
        let ids = usage.extras().map_or(0, |extras| extras.records.len());
        assert_eq!(ids, self.ids.len());
        assert_eq!(usage.is_unused(), self.is_missing());
    }

    /// Returns the numbers of the components for the limits of a call. A limit finds its component by its name or,
    /// without a name, by its kind and window. The first limit of a kind claims the usage of a former plain key.
    fn find(&self, call: &CompositeRequest) -> Vec<Option<usize>> {
        let mut found = Vec::new();
        for spec in &call.specs {
            let of_kind = |component: &&Component| component.usage.kind() == spec.limit.kind();
            let is_lease = spec.limit.kind() == UsageKind::Concurrency;
            let claimed = self
                .components
                .iter()
                .filter(of_kind)
                .find(|component| is_lease || component.identity == identity(spec));
            let unclaimed = self
                .components
                .iter()
                .filter(of_kind)
                .find(|component| component.identity == ComponentIdentity::Nothing);
            let unclaimed = unclaimed.filter(|component| !found.contains(&Some(component.number)));
            found.push(claimed.or(unclaimed).map(|component| component.number));
        }
        found
    }

    fn component(&mut self, number: usize) -> &mut Component {
        self.components.iter_mut().find(|component| component.number == number).unwrap()
    }

    fn usage(&self, spec: &Spec, number: Option<usize>) -> AnyUsage {
        let component = self.components.iter().find(|component| Some(component.number) == number);
        component.map_or_else(|| with_limit!(spec, limit => unused_of(limit)), |component| component.usage.clone())
    }

    /// Returns `true` if the call would exceed the maximum number of components.
    pub fn has_no_room(&self, request: &KeyRequest, now: Timestamp) -> bool {
        let before = self.components.len();
        let mut after = self.clone();
        after.call(request, now, false, None);
        after.components.len() > MAX_COMPONENTS && after.created_count > self.created_count && before > 0
    }

    /// Runs a call or a peek. Returns the reply, and `true` if the call writes. `expires_at` is the expiry of a plain
    /// key.
    pub fn call(
        &mut self,
        request: &KeyRequest,
        now: Timestamp,
        peeks: bool,
        expires_at: Option<u64>,
    ) -> (Answer, bool) {
        let call = super::server::call_of(request);
        if self.is_missing() {
            *self = Model { is_plain: matches!(request, KeyRequest::One(_)), ..Model::default() };
            if self.is_plain {
                let usage = self.usage(&call.specs[0], None);
                self.components.push(Component::unclaimed(usage));
                self.created_count = 1;
            }
        }
        let at = if self.is_plain { now } else { now.max(self.written) };
        let found = self.find(&call);
        let known = match call.idempotency {
            Idempotency::Once { id, .. } | Idempotency::Settle { id, .. } => {
                self.ids.get(id).filter(|id| at < id.expires_at)
            }
            Idempotency::Every => None,
        };
        let known = known.cloned();
        let mut evaluations = Vec::new();
        for (spec, number) in call.specs.iter().zip(&found) {
            let usage = self.usage(spec, *number);
            // A repetition renews the lease of its id, unless the id has been settled.
            let renews_lease = spec.is_held_by_id() && known.as_ref().is_none_or(|id| !id.settled);
            let request = if known.is_some() && !renews_lease { Request::Take(Amount::ZERO) } else { spec.request };
            let spec = Spec { request, nx: spec.nx && known.is_none(), ..*spec };
            evaluations.push(with_limit!(spec, limit => evaluate_any(limit, &usage, now, request)));
        }
        // UPTO grants the smallest amount that an enforced limit grants, or the requested amount if all limits are in
        // shadow mode. A limit in shadow mode that would grant less would deny the call.
        let enforced = (0..evaluations.len()).filter(|n| !call.specs[*n].shadow);
        let smallest_grant = enforced.filter_map(|n| evaluations[n].granted).min();
        for n in 0..evaluations.len() {
            let spec = &call.specs[n];
            let Some(limit_grant) = evaluations[n].granted else { continue };
            let Some(granted) = smallest_grant.or(upto(spec.request)) else { continue };
            if spec.shadow && limit_grant < granted {
                let (usage, request) = (self.usage(spec, found[n]), Request::Take(granted));
                evaluations[n] = with_limit!(spec, limit => evaluate_any(limit, &usage, now, request));
                assert!(!evaluations[n].verdict.allowed());
            }
            evaluations[n].cap_grant(granted);
        }
        let settled = known.as_ref().is_some_and(|id| id.settled);
        let outcome = self.outcome(&call, &found, &evaluations, known, now, at);
        let releases = self.releases(&call, now);
        let changes = match outcome {
            Outcome::Passes | Outcome::Repeated(..) => {
                evaluations.iter().any(|evaluation| evaluation.change != Change::Nothing)
            }
            Outcome::Settles => true,
            _ => releases,
        };
        let is_strike = matches!(outcome, Outcome::Denied { is_strike: true });
        let writes = !peeks && (changes || is_strike);
        if writes {
            self.write(&call, &found, &evaluations, &outcome, now, expires_at);
        } else if !peeks {
            self.move_back(now);
        }
        let mut answer = self.answer(&call, &found, &evaluations, &outcome, now, writes && changes);
        answer.shadow_denied = call.specs.iter().zip(&answer.each).any(|(spec, decision)| {
            let decides = match outcome {
                Outcome::Passes if call.purpose == Purpose::Refund => false,
                Outcome::Passes | Outcome::Denied { .. } | Outcome::Banned => true,
                Outcome::Repeated(..) | Outcome::LostLease => spec.is_held_by_id() && !settled,
                Outcome::Settles | Outcome::Settled | Outcome::Unknown => false,
            };
            decides && spec.shadow && !decision.verdict.allowed()
        });
        if self.is_plain {
            // An unused plain key does not exist.
            self.components.retain(|component| !is_unused(&component.usage));
        }
        (answer, writes)
    }

    fn outcome(
        &self,
        call: &CompositeRequest,
        found: &[Option<usize>],
        evaluations: &[Evaluation],
        known: Option<Id>,
        now: Timestamp,
        at: Timestamp,
    ) -> Outcome {
        match (call.purpose, known) {
            (Purpose::Settle, Some(id)) if id.settled => return Outcome::Settled,
            (Purpose::Settle, Some(_)) => return Outcome::Settles,
            (Purpose::Settle, None) => return Outcome::Unknown,
            (_, Some(id)) => {
                let mut leases =
                    call.specs.iter().zip(evaluations).filter(|(spec, _)| spec.is_held_by_id() && !spec.shadow);
                if !id.settled && leases.any(|(_, evaluation)| !evaluation.verdict.allowed()) {
                    return Outcome::LostLease;
                }
                let hold = id.hold_until.since(at);
                return Outcome::Repeated(id, hold);
            }
            (Purpose::Refund, None) => return Outcome::Passes,
            (Purpose::Charge | Purpose::Peek, None) => {}
        }
        let enforced: Vec<usize> = (0..evaluations.len()).filter(|n| !call.specs[*n].shadow).collect();
        let denies = |evaluation: &Evaluation| !evaluation.forced && !evaluation.verdict.allowed();
        let is_denied = enforced.iter().any(|n| denies(&evaluations[*n]));
        if at < self.banned_until {
            // A FORCE and the renewal of a lease are granted in spite of the ban.
            let forced = !is_denied && is_forced(call, evaluations);
            let renews = matches!(enforced[..], [n] if self.renews(&call.specs[n], &evaluations[n], found[n], now));
            return if forced || renews { Outcome::Passes } else { Outcome::Banned };
        }
        if !is_denied {
            return Outcome::Passes;
        }
        // A strike is a call that may be granted later. It is not a peek, and not denied by KEEP or CONCURRENCY alone.
        let denying = enforced.iter().map(|n| &evaluations[*n]).filter(|evaluation| denies(evaluation));
        let may_be_granted_later = denying.into_iter().all(|evaluation| evaluation.verdict != Verdict::Never);
        let is_denied_by_a_rate = enforced.iter().any(|n| {
            let (spec, evaluation) = (&call.specs[*n], &evaluations[*n]);
            let without_keep = Spec { limit: spec.limit.raised_by(spec.keep), keep: Amount::ZERO, ..*spec };
            let usage = self.usage(spec, found[*n]);
            let without_keep = with_limit!(without_keep, limit => evaluate_any(limit, &usage, now, spec.request));
            denies(evaluation) && denies(&without_keep) && spec.limit.kind() != UsageKind::Concurrency
        });
        let counts_strikes = call.purpose == Purpose::Charge && call.ban.is_some();
        Outcome::Denied { is_strike: counts_strikes && may_be_granted_later && is_denied_by_a_rate }
    }

    /// Returns `true` if the call requests no more than the lease that its holder has.
    fn renews(&self, spec: &Spec, evaluation: &Evaluation, number: Option<usize>, now: Timestamp) -> bool {
        let (AnyLimit::Concurrency(_), Change::Charge(cost)) = (spec.limit, evaluation.change) else { return false };
        let component = self.components.iter().find(|component| Some(component.number) == number);
        component
            .and_then(|component| units_held(&component.usage, spec.holder_or_item, now))
            .is_some_and(|units| cost <= units)
    }

    /// Returns `true` if a settlement releases the lease of its id.
    fn releases(&self, call: &CompositeRequest, now: Timestamp) -> bool {
        let mut holders = call.specs.iter().filter(|spec| spec.is_held_by_id()).map(|spec| spec.holder_or_item);
        let leases = self.components.iter().find(|component| component.usage.kind() == UsageKind::Concurrency);
        let has_lease = |holder| leases.is_some_and(|leases| units_held(&leases.usage, holder, now).is_some());
        call.purpose == Purpose::Settle && holders.any(has_lease)
    }
}

impl Component {
    fn unclaimed(usage: AnyUsage) -> Component {
        let (number, identity, recovers_at) = (1, ComponentIdentity::Nothing, Timestamp::EPOCH);
        Component {
            number,
            identity,
            usage,
            charged_by: Vec::new(),
            recovers_at,
            is_far: false,
            had_recovered: false,
            settlement: Settlement::default(),
            unsettled_count: 0,
        }
    }
}
