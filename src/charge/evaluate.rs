//! Evaluation of any request at any contents of a key. It chooses the form of the evaluation by the request and the
//! type of the key.

use super::commit::{KeyEvaluation, Target};
use super::one_limit::OneLimit;
use super::several_limits::SeveralLimits;
use crate::redis::key::{Contents, Stored};
use ratelimit_core::composite::{Answer, CompositeUsage, StoredUsage};
use ratelimit_core::policy::CountedOutcome;
use ratelimit_core::syntax::{CompositeRequest, Idempotency, KeyRequest, ManyKeysRequest, Purpose, Spec};
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Limit, PlainUsage, Timestamp, UsageKind, with_limit, with_usage_type};
use std::borrow::Cow;

/// Request of one key, evaluated at its contents. Nothing has been changed yet.
pub enum EvaluatedRequest<'s, 'a> {
    /// Single limit at a plain key or a missing one.
    One(OneLimit, &'s Spec<'a>),
    /// Everything else. Boxed: it is ten times as large.
    Several(Box<SeveralLimits<'s, 'a>>),
}

/// Evaluates one key of a call on several keys. `key_request` is the part of the call that concerns the key.
///
/// # Errors
/// Returns an error if the key holds another type.
#[inline(always)]
pub fn evaluate<'s, 'a>(
    key: &Contents,
    call: &ManyKeysRequest<'a>,
    key_request: &'s KeyRequest<'a>,
    now: Timestamp,
    out_of_memory: impl FnOnce() -> bool,
) -> Result<EvaluatedRequest<'s, 'a>, Error> {
    if let KeyRequest::One(spec) = key_request
        && call.idempotency == Idempotency::Every
        && spec.name.is_none()
        && let Some(evaluation) = with_limit!(spec, limit => evaluate_one(key, limit, spec, now))
    {
        return Ok(EvaluatedRequest::One(evaluation, spec));
    }
    evaluate_several(key, call, key_request, now, out_of_memory)
}

/// Evaluates a spec at a key; `None` if the key holds another type.
#[inline(always)]
fn evaluate_one<L: Limit<Usage: PlainUsage>>(
    key: &Contents,
    limit: &L,
    spec: &Spec,
    now: Timestamp,
) -> Option<OneLimit> {
    let usage = key.usage::<L::Usage>()?;
    Some(OneLimit::evaluate(limit, &*usage, key.is_missing(), spec.request, now))
}

#[inline(never)]
fn evaluate_several<'s, 'a>(
    key: &Contents,
    call: &ManyKeysRequest<'a>,
    key_request: &'s KeyRequest<'a>,
    now: Timestamp,
    out_of_memory: impl FnOnce() -> bool,
) -> Result<EvaluatedRequest<'s, 'a>, Error> {
    let request = match key_request {
        KeyRequest::One(spec) if call.idempotency == Idempotency::Every && spec.name.is_none() => {
            Cow::Owned(composite_of_one(key, spec, call.purpose)?)
        }
        KeyRequest::One(spec) => {
            Cow::Owned(CompositeRequest { idempotency: call.idempotency, ..composite_request(spec, call.purpose) })
        }
        KeyRequest::Composite(request) => Cow::Borrowed(&**request),
        // Unreachable: the command has replaced the name of a policy by its limits.
        KeyRequest::Policy(_) => return Err(Error::Internal),
    };
    let empty = CompositeUsage::default();
    let stored = stored_usage(key, &request, &empty)?;
    Ok(EvaluatedRequest::Several(Box::new(SeveralLimits::evaluate(
        request,
        stored,
        key.is_missing(),
        now,
        out_of_memory,
    ))))
}

/// Returns the request of one spec as a composite one, for a key that holds another type. Accepts a plain key of
/// another kind if the spec comes from a policy, whose earlier definition may have left the key.
///
/// # Errors
/// Returns an error if the key holds a type that the spec cannot use.
pub fn composite_of_one<'a>(key: &Contents, spec: &Spec<'a>, purpose: Purpose) -> Result<CompositeRequest<'a>, Error> {
    let stands_alone = spec.limit.kind().stands_alone();
    match key.stored() {
        Stored::Composite if !stands_alone => {}
        Stored::Plain(kind) if spec.by_policy && !stands_alone && !kind.stands_alone() => {}
        stored => return Err(stored.wrong_type(spec.limit.kind().name())),
    }
    Ok(composite_request(spec, purpose))
}

/// Returns the contents of a key for a composite request; `empty` if the key is missing. A plain key is returned as it
/// is: only a commit converts it.
///
/// # Errors
/// Returns an error if the key holds a type that the request cannot use.
pub fn stored_usage<'k>(
    key: &'k Contents,
    request: &CompositeRequest,
    empty: &'k CompositeUsage,
) -> Result<StoredUsage<'k>, Error> {
    let standalone_kind = request.specs.iter().map(|spec| spec.limit.kind()).find(|kind| kind.stands_alone());
    if let (None, Some(usage)) = (standalone_kind, key.existing_usage()) {
        return Ok(StoredUsage::Composite(usage));
    }
    match (key.stored(), request.specs.as_slice()) {
        (stored @ Stored::Plain(kind), _)
            if (standalone_kind.is_some() || kind.stands_alone()) && standalone_kind != Some(kind) =>
        {
            Err(stored.wrong_type(standalone_kind.unwrap_or(UsageKind::Limits).name()))
        }
        (stored @ Stored::Composite, _) => Err(stored.wrong_type(standalone_kind.unwrap_or(UsageKind::Limits).name())),
        (Stored::Missing, _) => Ok(standalone_kind.map_or(StoredUsage::Composite(empty), StoredUsage::missing)),
        (stored @ Stored::Plain(kind), [Spec { limit, by_policy: false, .. }]) if limit.kind() != kind => {
            Err(stored.wrong_type(limit.kind().name()))
        }
        (Stored::Plain(kind), _) => {
            with_usage_type!(kind, Plain => key.existing_usage::<Plain>().map(StoredUsage::plain), None)
                .ok_or(Error::Internal)
        }
        (stored, _) => Err(stored.wrong_type(UsageKind::Limits.name())),
    }
}

impl EvaluatedRequest<'_, '_> {
    /// Returns `true` if the commit may write to the key.
    #[inline(always)]
    pub fn may_write(&self) -> bool {
        match self {
            EvaluatedRequest::One(evaluation, _) => evaluation.may_write(),
            EvaluatedRequest::Several(_) => true,
        }
    }

    /// Returns the decision of a call that changes nothing, at the key at which it was evaluated.
    pub fn answer(&self, key: &Contents, now: Timestamp) -> Option<Decision> {
        match self {
            EvaluatedRequest::One(evaluation, spec) => with_limit!(spec, limit => {
                Some(evaluation.answer(limit, spec.request, &*key.usage()?, now).with_keep(spec.keep))
            }),
            EvaluatedRequest::Several(evaluation) => evaluation.answer(key, now).map(|answer| answer.decision),
        }
    }

    /// Applies the change of the call to its key if `changes_key` is `true`. In either case, moves timestamps back if
    /// the clock has moved backwards. `count` receives the outcome for the counts of a policy.
    #[inline(always)]
    pub fn commit<'r, 'c: 'r>(
        self,
        target: impl Target<'r, 'c>,
        changes_key: bool,
        count: Option<impl FnOnce(CountedOutcome)>,
        now: Timestamp,
    ) -> Decision {
        match self {
            EvaluatedRequest::One(evaluation, spec) => {
                let decision =
                    with_limit!(spec, limit => commit_one(target, evaluation, limit, spec, changes_key, now));
                if let Some(count) = count {
                    count(CountedOutcome::of(&decision, Purpose::of(spec.request)));
                }
                decision
            }
            EvaluatedRequest::Several(evaluation) => {
                let answer = evaluation.commit(target, changes_key, now);
                if let Some(count) = count {
                    count(counted_outcome(&answer, evaluation.request().purpose));
                }
                answer.decision
            }
        }
    }

    /// Returns the item that is requested of a sketch.
    pub fn item(&self) -> Option<&[u8]> {
        match self {
            EvaluatedRequest::One(_, spec) => spec.item(),
            EvaluatedRequest::Several(evaluation) => evaluation.request().item(),
        }
    }
}

/// Commits a call of one limit. If other modules have replaced the key since, decides the call and changes nothing.
#[inline(always)]
fn commit_one<'r, 'c: 'r, L: Limit<Usage: PlainUsage>>(
    target: impl Target<'r, 'c>,
    evaluation: OneLimit,
    limit: &L,
    spec: &Spec,
    changes_key: bool,
    now: Timestamp,
) -> Decision {
    let decision = match target.resume(now) {
        Some(key) => evaluation.commit(limit, spec.request, key, changes_key, now),
        None => evaluation.answer(limit, spec.request, &L::Usage::default(), now),
    };
    decision.with_keep(spec.keep)
}

/// Runs `$body` with `$evaluation` bound to the evaluation of any form.
macro_rules! with_evaluation {
    ($evaluated:expr, $evaluation:ident => $body:expr) => {
        match $evaluated {
            EvaluatedRequest::One($evaluation, _) => $body,
            EvaluatedRequest::Several($evaluation) => $body,
        }
    };
}

impl KeyEvaluation for EvaluatedRequest<'_, '_> {
    #[inline(always)]
    fn denies(&self) -> bool {
        with_evaluation!(self, evaluation => evaluation.denies())
    }

    fn allows(&self) -> bool {
        with_evaluation!(self, evaluation => evaluation.allows())
    }

    fn has_record(&self) -> bool {
        with_evaluation!(self, evaluation => evaluation.has_record())
    }

    #[inline(always)]
    fn check_room(&self) -> Result<(), Error> {
        with_evaluation!(self, evaluation => evaluation.check_room())
    }

    #[inline(always)]
    fn grows(&self) -> bool {
        with_evaluation!(self, evaluation => evaluation.grows())
    }

    #[inline(always)]
    fn changes_key(&self, allowed: bool) -> bool {
        with_evaluation!(self, evaluation => evaluation.changes_key(allowed))
    }

    #[inline(always)]
    fn count(&self, allowed: bool) {
        with_evaluation!(self, evaluation => evaluation.count(allowed));
    }
}

/// Returns the outcome of a call for the counts of its policy.
pub fn counted_outcome(answer: &Answer, purpose: Purpose) -> CountedOutcome {
    let Answer { decision, shadow_denied, banned, repeated, .. } = answer;
    let (shadow_denied, banned, repeated) = (*shadow_denied, *banned, *repeated);
    CountedOutcome { shadow_denied, banned, repeated, ..CountedOutcome::of(decision, purpose) }
}

/// Returns the composite request of one spec. Unless `purpose` is `Charge`, it replaces the purpose of the spec.
fn composite_request<'a>(spec: &Spec<'a>, purpose: Purpose) -> CompositeRequest<'a> {
    let request = CompositeRequest::of_one(*spec);
    let purpose = if purpose == Purpose::Charge { request.purpose } else { purpose };
    CompositeRequest { purpose, ..request }
}
