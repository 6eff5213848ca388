//! A request on one of many keys: evaluated at whatever the key stores, and committed.

use super::commit::{Apply, Target, commit_to};
use super::key_evaluation::KeyEvaluation;
use super::one_limit::OneLimit;
use super::several_limits::SeveralLimits;
use crate::redis::key::{Contents, Stored};
use ratelimit_core::composite::{Answer, CompositeUsage, Held};
use ratelimit_core::policy::CountedOutcome;
use ratelimit_core::syntax::{CompositeRequest, Idempotency, KeyRequest, ManyKeysRequest, Purpose, Spec};
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Kind, Limit, Timestamp, with_limit, with_usage_type};
use std::borrow::Cow;

/// A request that was evaluated.
pub enum EvaluatedRequest<'s, 'a> {
    /// At a plain key, or a missing one.
    One(OneLimit, &'s Spec<'a>),
    /// At a composite key, or one that has to become that.
    Several(Box<SeveralLimits<'s, 'a>>),
}

/// Evaluates what the request on many keys has for one of them, at what that key stores.
pub fn evaluate<'s, 'a>(
    key: &Contents,
    whole: &ManyKeysRequest<'a>,
    of_key: &'s KeyRequest<'a>,
    now: Timestamp,
    out_of_memory: impl FnOnce() -> bool,
) -> Result<EvaluatedRequest<'s, 'a>, Error> {
    let request = match of_key {
        KeyRequest::One(spec) if whole.idempotency == Idempotency::Every && spec.name.is_none() => {
            if let Some(evaluation) = with_limit!(spec, limit => evaluate_one(key, limit, spec, now)) {
                return Ok(EvaluatedRequest::One(evaluation, spec));
            }
            Cow::Owned(composite_of_one(key, spec, whole.purpose)?)
        }
        KeyRequest::One(spec) => {
            Cow::Owned(CompositeRequest { idempotency: whole.idempotency, ..of_purpose(spec, whole.purpose) })
        }
        KeyRequest::Composite(request) => Cow::Borrowed(&**request),
        KeyRequest::Policy(_) => return Err(Error::Internal),
    };
    let unused = CompositeUsage::default();
    let held = held(key, &request, &unused)?;
    Ok(EvaluatedRequest::Several(Box::new(SeveralLimits::at(request, held, key.is_missing(), now, out_of_memory))))
}

/// Evaluates a spec at a key that is of its kind, or missing.
#[inline(always)]
fn evaluate_one<L: Limit>(key: &Contents, limit: &L, spec: &Spec, now: Timestamp) -> Option<OneLimit> {
    let usage = key.usage::<L::Usage>()?;
    Some(OneLimit::at(limit, &*usage, key.is_missing(), spec.request, now))
}

/// The request of one spec as a composite one, at a key of another kind. What another definition of a policy
/// left is no mistake.
pub fn composite_of_one<'a>(key: &Contents, spec: &Spec<'a>, purpose: Purpose) -> Result<CompositeRequest<'a>, Error> {
    // Some usage can be beside no other.
    let alone = spec.limit.kind().stands_alone();
    match key.stored() {
        Stored::Composite if !alone => {}
        Stored::Plain(kind) if spec.by_policy && !alone && !kind.stands_alone() => {}
        stored => return Err(stored.wrong_type(spec.limit.kind().name())),
    }
    Ok(of_purpose(spec, purpose))
}

/// What a key holds for a composite request: `unused` if it is missing. A plain key has to become composite if the
/// call changes what no other can remember; a denied call or a look never does.
pub fn held<'k>(key: &'k Contents, request: &CompositeRequest, unused: &'k CompositeUsage) -> Result<Held<'k>, Error> {
    let alone = request.specs.iter().map(|spec| spec.limit.kind()).find(|kind| kind.stands_alone());
    if let (None, Some(usage)) = (alone, key.present()) {
        return Ok(Held::Composite(usage));
    }
    match (key.stored(), request.specs.as_slice()) {
        // Not even what another definition of a policy left.
        (stored @ Stored::Plain(kind), _) if (alone.is_some() || kind.stands_alone()) && alone != Some(kind) => {
            Err(stored.wrong_type(alone.unwrap_or(Kind::Limits).name()))
        }
        (stored @ Stored::Composite, _) => Err(stored.wrong_type(alone.unwrap_or(Kind::Limits).name())),
        (Stored::Missing, _) => Ok(alone.map_or(Held::Composite(unused), Held::missing)),
        // One limit alone that meets another kind is a mistake.
        (stored @ Stored::Plain(kind), [Spec { limit, by_policy: false, .. }]) if limit.kind() != kind => {
            Err(stored.wrong_type(limit.kind().name()))
        }
        (Stored::Plain(kind), _) => {
            with_usage_type!(kind, Plain => key.present::<Plain>().map(Held::plain), None).ok_or(Error::Internal)
        }
        (stored, _) => Err(stored.wrong_type(Kind::Limits.name())),
    }
}

impl EvaluatedRequest<'_, '_> {
    /// Whether its commit may write to the key.
    pub fn may_write(&self) -> bool {
        match self {
            EvaluatedRequest::One(evaluation, _) => evaluation.may_write(),
            EvaluatedRequest::Several(_) => true,
        }
    }

    /// The answer of a call that changes nothing, at the key that it was evaluated at.
    pub fn answer(&self, key: &Contents, now: Timestamp) -> Option<Answer> {
        match self {
            EvaluatedRequest::One(evaluation, spec) => with_limit!(spec, limit => {
                let usage = key.usage()?;
                Some(of_one(evaluation.under(limit).answer(&*usage, now), spec))
            }),
            EvaluatedRequest::Several(evaluation) => evaluation.answer(key, now),
        }
    }

    /// Makes the change of a call that `changes_key`, and sees to a clock gone back in any case. Nothing can fail any more.
    pub fn commit<'r, 'c: 'r>(&self, target: impl Target<'r, 'c>, changes_key: bool, now: Timestamp) -> Answer {
        match self {
            EvaluatedRequest::One(evaluation, spec) => with_limit!(spec, limit => {
                of_one(commit_to(target, &evaluation.under(limit), changes_key, now), spec)
            }),
            EvaluatedRequest::Several(evaluation) => evaluation.commit(target, changes_key, now),
        }
    }

    /// Which item it asks for, if its limit is one of a sketch.
    pub fn item(&self) -> Option<&[u8]> {
        match self {
            EvaluatedRequest::One(_, spec) => spec.item(),
            EvaluatedRequest::Several(evaluation) => evaluation.request().item(),
        }
    }

    /// Its outcome, for its policy's counts.
    pub fn outcome(&self, answer: &Answer) -> CountedOutcome {
        match self {
            EvaluatedRequest::One(_, spec) => outcome(answer, Purpose::of(spec.request)),
            EvaluatedRequest::Several(evaluation) => outcome(answer, evaluation.request().purpose),
        }
    }
}

/// Runs `$body` with `$evaluation` as what has been evaluated.
macro_rules! of_either {
    ($evaluated:expr, $evaluation:ident => $body:expr) => {
        match $evaluated {
            EvaluatedRequest::One($evaluation, _) => $body,
            EvaluatedRequest::Several($evaluation) => $body,
        }
    };
}

impl KeyEvaluation for EvaluatedRequest<'_, '_> {
    fn allows(&self) -> bool {
        of_either!(self, evaluation => evaluation.allows())
    }

    fn denies(&self) -> bool {
        of_either!(self, evaluation => evaluation.denies())
    }

    fn knows(&self) -> bool {
        of_either!(self, evaluation => evaluation.knows())
    }

    fn check_room(&self) -> Result<(), Error> {
        of_either!(self, evaluation => evaluation.check_room())
    }

    fn grows(&self) -> bool {
        of_either!(self, evaluation => evaluation.grows())
    }

    fn changes_key(&self, allowed: bool) -> bool {
        of_either!(self, evaluation => evaluation.changes_key(allowed))
    }

    fn count(&self, allowed: bool) {
        of_either!(self, evaluation => evaluation.count(allowed));
    }
}

/// The answer of one spec, under its whole limit.
fn of_one(decision: Decision, spec: &Spec) -> Answer {
    Answer::of(decision.keeping(spec.kept))
}

/// The outcome of a call, for its policy's counts.
pub fn outcome(answer: &Answer, purpose: Purpose) -> CountedOutcome {
    let Answer { decision, shadow_denied, banned, repeated, .. } = answer;
    let (shadow_denied, banned, repeated) = (*shadow_denied, *banned, *repeated);
    CountedOutcome { shadow_denied, banned, repeated, ..CountedOutcome::of(decision, purpose) }
}

/// The composite request of one spec, in a call on many keys for that purpose.
fn of_purpose<'a>(spec: &Spec<'a>, purpose: Purpose) -> CompositeRequest<'a> {
    let request = CompositeRequest::of_one(*spec);
    let purpose = if purpose == Purpose::Charge { request.purpose } else { purpose };
    CompositeRequest { purpose, ..request }
}
