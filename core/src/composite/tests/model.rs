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
    /// Plain key: one usage without any other state.
    plain: bool,
    components: Vec<Component>,
    ids: BTreeMap<Vec<u8>, Id>,
    banned_until: Timestamp,
    /// Window of the strikes, and the time of each strike.
    strikes: (Span, Vec<Timestamp>),
    /// Expiry time of each level of the last ban, earliest first.
    levels: Vec<Timestamp>,
    /// Time between two of them.
    longest: Span,
    written: Timestamp,
    /// Number of components ever created.
    made: usize,
}

#[derive(Clone, Debug)]
struct Component {
    number: usize,
    identity: ComponentIdentity,
    usage: AnyUsage,
    /// Limits of the last charge. Empty if they are not known; two if the policy was scaled.
    charged_by: Vec<AnyLimit>,
    recovers_at: Timestamp,
    /// `true`: `recovers_at` is beyond the last timestamp, where times saturate.
    is_far: bool,
    /// `true`: the component had recovered at its last charge or settlement and is kept for settlements.
    is_over: bool,
    settlement: Settlement,
    to_settle: usize,
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
        strikes: bool,
    },
    Banned,
    /// Repetition: the record of the id, and the remaining delay of the first call.
    Repeated(Id, Span),
    /// The id has been charged before, but its lease does not fit any more.
    LostLease,
    Settles,
    Settled,
    Unknown,
}

impl Component {
    /// "As the slower of both rates asks."
    fn charged_under(&mut self, spec: &Spec, now: Timestamp) {
        self.charged_by = std::iter::once(spec.limit).chain(spec.slower_limit.copied()).collect();
        let reset = self.reset(now);
        let recovers_at = now.plus(reset);
        self.is_over = reset == Span::ZERO;
        (self.recovers_at, self.is_far) = (recovers_at.min(Timestamp::MAX), recovers_at >= Timestamp::MAX);
    }

    /// Returns the time to full recovery, under the limits of the last charge.
    fn reset(&self, now: Timestamp) -> Span {
        self.charged_by.iter().map(|limit| reset(*limit, &self.usage, now)).max().unwrap()
    }

    fn drop_if_recovered(&self, now: Timestamp) -> bool {
        if self.to_settle > 0 {
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
        let known = !self.charged_by.is_empty() && !self.is_far && !self.is_over;
        self.recovers_at = match recovery {
            // The end of an aligned window is known only to the limit that opened it.
            RecoverySource::Limit => self.recovers_at,
            RecoverySource::MovesBack if ahead == Span::ZERO => self.recovers_at,
            RecoverySource::MovesBack if known => now.plus(self.reset(now)).min(Timestamp::MAX),
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
        self.plain
    }

    pub fn is_missing(&self) -> bool {
        self.components.is_empty() && self.ids.is_empty() && !self.has_ban()
    }

    fn has_ban(&self) -> bool {
        self.banned_until != Timestamp::EPOCH || !self.strikes.1.is_empty() || !self.levels.is_empty()
    }

    /// Expires the key and asserts that no state was left.
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

    /// Asserts that the state equals that of `real`.
    pub fn compare(&self, real: &CompositeUsage) {
        let components = real.components.iter();
        assert_eq!(real.components.len(), self.components.len());
        for (component, own) in components.zip(&self.components) {
            assert_eq!(component.is_unused(), is_unused(&own.usage));
            if !component.is_unused() {
                assert_eq!(bytes(&component.usage), bytes(&own.usage));
                assert_eq!(component.recovers_at, own.recovers_at);
            }
            assert_eq!(component.may_be_settled(real.extras()), own.to_settle > 0);
        }
        let ids = real.extras().map_or(0, |extras| extras.records.len());
        assert_eq!(ids, self.ids.len());
        assert_eq!(real.is_unused(), self.is_missing());
    }

    /// Returns the numbers of the components for the limits of a call. "A spec finds its component by its name, else by
    /// kind and window." The usage of a plain key becomes "the part of the first spec of its kind".
    fn find(&self, call: &CompositeRequest) -> Vec<Option<usize>> {
        let mut found = Vec::new();
        for spec in &call.specs {
            let of_kind = |component: &&Component| component.usage.kind() == spec.limit.kind();
            let leases = spec.limit.kind() == UsageKind::Concurrency;
            let own =
                self.components.iter().filter(of_kind).find(|component| leases || component.identity == identity(spec));
            let unclaimed = self
                .components
                .iter()
                .filter(of_kind)
                .find(|component| component.identity == ComponentIdentity::Nothing);
            let free = unclaimed.filter(|component| !found.contains(&Some(component.number)));
            found.push(own.or(free).map(|component| component.number));
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
        after.components.len() > MAX_COMPONENTS && after.made > self.made && before > 0
    }

    /// Runs a call or a peek; returns the reply, and `true` if it writes. `expires_at` is the expiry of a plain key.
    pub fn call(
        &mut self,
        request: &KeyRequest,
        now: Timestamp,
        peeks: bool,
        expires_at: Option<u64>,
    ) -> (Answer, bool) {
        let call = super::server::call_of(request);
        if self.is_missing() {
            *self = Model { plain: matches!(request, KeyRequest::One(_)), ..Model::default() };
            if self.plain {
                let usage = self.usage(&call.specs[0], None);
                self.components.push(Component::unclaimed(usage));
                self.made = 1;
            }
        }
        let at = if self.plain { now } else { now.max(self.written) };
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
            // The lease of a policy "is decided every time: a settled one takes none".
            let again = spec.is_held_by_id() && known.as_ref().is_none_or(|id| !id.settled);
            let request = if known.is_some() && !again { Request::Take(Amount::ZERO) } else { spec.request };
            let spec = Spec { request, nx: spec.nx && known.is_none(), ..*spec };
            evaluations.push(with_limit!(spec, limit => evaluate_any(limit, &usage, now, request)));
        }
        // "With UPTO: the least that all grant." A limit in shadow mode denies if it grants less than the others. If
        // all are in shadow mode, the amount is the requested one.
        let most = |n: usize| upto(call.specs[n].request);
        let enforced = (0..evaluations.len()).filter(|n| !call.specs[*n].shadow);
        let granted = enforced.filter_map(|n| evaluations[n].granted).min();
        for n in 0..evaluations.len() {
            let (spec, own) = (&call.specs[n], evaluations[n].granted);
            let Some(granted) = granted.or(most(n)).filter(|_| own.is_some()) else { continue };
            if spec.shadow && own.unwrap() < granted {
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
        let strikes = matches!(outcome, Outcome::Denied { strikes: true });
        let writes = !peeks && (changes || strikes);
        if writes {
            self.write(&call, &found, &evaluations, &outcome, now, expires_at);
        } else if !peeks {
            self.move_back(now);
        }
        let mut answer = self.answer(&call, &found, &evaluations, &outcome, now, writes && changes);
        answer.shadow_denied = call.specs.iter().zip(&answer.each).any(|(spec, own)| {
            let decided = match outcome {
                Outcome::Passes if call.purpose == Purpose::Refund => false,
                Outcome::Passes | Outcome::Denied { .. } | Outcome::Banned => true,
                Outcome::Repeated(..) | Outcome::LostLease => spec.is_held_by_id() && !settled,
                Outcome::Settles | Outcome::Settled | Outcome::Unknown => false,
            };
            decided && spec.shadow && !own.verdict.allowed()
        });
        if self.plain {
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
        // "It never denies."
        let enforced: Vec<usize> = (0..evaluations.len()).filter(|n| !call.specs[*n].shadow).collect();
        let denies = |evaluation: &Evaluation| !evaluation.forced && !evaluation.verdict.allowed();
        let is_denied = enforced.iter().any(|n| denies(&evaluations[*n]));
        if at < self.banned_until {
            // "What passes: give-backs, settlements, releases, renewals, the repetition of an admitted id; a FORCE."
            let forced = !is_denied && is_forced(call, evaluations);
            let renews = matches!(enforced[..], [n] if self.renews(&call.specs[n], &evaluations[n], found[n], now));
            return if forced || renews { Outcome::Passes } else { Outcome::Banned };
        }
        if !is_denied {
            return Outcome::Passes;
        }
        // "A take that this key's limits denied for a time: not a look, not one that never passes, not KEEP's or
        // CONCURRENCY's denial."
        let denying = enforced.iter().map(|n| &evaluations[*n]).filter(|evaluation| denies(evaluation));
        let for_a_time = denying.into_iter().all(|evaluation| evaluation.verdict != Verdict::Never);
        let by_a_limit = enforced.iter().any(|n| {
            let (spec, evaluation) = (&call.specs[*n], &evaluations[*n]);
            let whole = Spec { limit: spec.limit.raised_by(spec.keep), keep: Amount::ZERO, ..*spec };
            let usage = self.usage(spec, found[*n]);
            let without_keep = with_limit!(whole, limit => evaluate_any(limit, &usage, now, spec.request));
            denies(evaluation) && denies(&without_keep) && spec.limit.kind() != UsageKind::Concurrency
        });
        let strikes = call.purpose == Purpose::Charge && call.ban.is_some() && for_a_time && by_a_limit;
        Outcome::Denied { strikes }
    }

    /// Returns `true` if the call requests no more than the lease that its holder has.
    fn renews(&self, spec: &Spec, evaluation: &Evaluation, number: Option<usize>, now: Timestamp) -> bool {
        let (AnyLimit::Concurrency(_), Change::Charge(takes)) = (spec.limit, evaluation.change) else { return false };
        let component = self.components.iter().find(|component| Some(component.number) == number);
        component
            .and_then(|component| units_held(&component.usage, spec.holder_or_item, now))
            .is_some_and(|units| takes <= units)
    }

    /// Returns `true` if a settlement releases the lease of its id.
    fn releases(&self, call: &CompositeRequest, now: Timestamp) -> bool {
        let mut holders = call.specs.iter().filter(|spec| spec.is_held_by_id()).map(|spec| spec.holder_or_item);
        let leases = self.components.iter().find(|component| component.usage.kind() == UsageKind::Concurrency);
        let holds = |holder| leases.is_some_and(|leases| units_held(&leases.usage, holder, now).is_some());
        call.purpose == Purpose::Settle && holders.any(holds)
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
            is_over: false,
            settlement: Settlement::default(),
            to_settle: 0,
        }
    }
}
