//! Functions of the model for one limit and one usage.

use super::*;

pub(super) fn usage_of<U: PlainUsage>(any: &AnyUsage) -> &U {
    U::of(any).unwrap()
}

pub(super) fn evaluate_any<L: Limit>(limit: &L, any: &AnyUsage, now: Timestamp, request: Request) -> Evaluation
where
    L::Usage: PlainUsage,
{
    evaluate(limit, usage_of::<L::Usage>(any), now, request)
}

pub(super) fn decision<L: Limit>(
    limit: &L,
    any: &AnyUsage,
    now: Timestamp,
    evaluation: &Evaluation,
    is_applied: bool,
) -> Decision
where
    L::Usage: PlainUsage,
{
    evaluation.decision(limit, usage_of(any), now, is_applied)
}

pub(super) fn reset_of<L: Limit>(limit: &L, any: &AnyUsage, now: Timestamp) -> Span
where
    L::Usage: PlainUsage,
{
    limit.reset(usage_of(any), now)
}

pub(super) fn reset(limit: AnyLimit, any: &AnyUsage, now: Timestamp) -> Span {
    let spec = Spec::of(limit, Request::Take(Amount::ZERO));
    with_limit!(spec, limit => reset_of(limit, any, now))
}

pub(super) fn charge<L: Limit>(
    limit: &L,
    any: &mut AnyUsage,
    settlement: &mut Settlement,
    change: Change,
    now: Timestamp,
) where
    L::Usage: PlainUsage,
{
    let usage = L::Usage::of_mut(any).unwrap();
    settlement.before_change(limit, usage, now, change);
    change.apply(limit, usage, now);
    usage.encode_effect(&mut Discard);
}

pub(super) fn identity(spec: &Spec) -> ComponentIdentity {
    match spec.name {
        Some(name) => ComponentIdentity::Name(name.to_vec()),
        None => ComponentIdentity::Window(spec.limit.identity()),
    }
}

pub(super) fn kind_and_fields<Label>(
    any: &AnyUsage<Label>,
) -> (UsageKind, crate::testing::encoded_fields::EncodedFields) {
    (any.kind(), with_usage!(any, usage => crate::testing::encoded_fields::encoded(usage)))
}

/// Returns the units of the active lease of a holder.
pub(super) fn units_held(any: &AnyUsage, holder: &[u8], now: Timestamp) -> Option<Amount> {
    let usage = usage_of::<crate::algorithm::leases::ConcurrencyUsage>(any);
    // After the clock moved backwards, leases are evaluated at the time of their last change.
    let at = now.max(now.plus(usage.ahead(now)));
    let facts = usage.describe(now, None);
    let mut leases = facts
        .iter()
        .filter_map(|(_, fact)| if let crate::limit::InfoField::Leases(leases) = fact { Some(leases) } else { None });
    let mut leases = leases.next().unwrap().iter();
    leases.find(|(name, _, expires_at, _)| **name == *holder && at < *expires_at).map(|(_, units, ..)| *units)
}

/// Returns `true` if a call is charged even past its limits. Limits in shadow mode count only if all limits are in
/// shadow mode.
pub(super) fn is_forced(call: &CompositeRequest, evaluations: &[Evaluation]) -> bool {
    let all_shadow = call.specs.iter().all(|spec| spec.shadow);
    call.specs.iter().zip(evaluations).any(|(spec, evaluation)| evaluation.forced && (all_shadow || !spec.shadow))
}

/// Returns the amount granted to an UPTO.
pub(super) fn granted_by(call: &CompositeRequest, evaluations: &[Evaluation]) -> Option<Amount> {
    let mut enforced = call.specs.iter().zip(evaluations).filter(|(spec, _)| !spec.shadow);
    enforced.find_map(|(_, evaluation)| evaluation.granted).or_else(|| requested_upto(call))
}

/// Returns the requested amount of an UPTO among the enforced limits, or among all limits if none is enforced.
pub(super) fn requested_upto(call: &CompositeRequest) -> Option<Amount> {
    let all_shadow = call.specs.iter().all(|spec| spec.shadow);
    let mut requests = call.specs.iter().filter(|spec| all_shadow || !spec.shadow).map(|spec| spec.request);
    requests.find_map(upto)
}

/// Returns the requested amount of an UPTO.
pub(super) fn upto(request: Request) -> Option<Amount> {
    match request {
        Request::UpTo(max) | Request::ForceUpTo(max) => Some(max),
        _ => None,
    }
}

pub(super) fn is_unused(any: &AnyUsage) -> bool {
    with_usage!(any, usage => usage.is_unused())
}

/// Returns the time to full recovery for kinds whose recovery does not depend on the limit.
pub(super) fn reported_reset(any: &AnyUsage, now: Timestamp) -> Span {
    let limit = match any.kind() {
        UsageKind::StrictWindow => "SLIDING 1 1s STRICT",
        _ => "CONCURRENCY 1 1s me",
    };
    let words = crate::composite::tests::script::words(limit);
    let Ok(KeyRequest::One(spec)) = KeyRequest::take(&mut crate::wire::args::Args::new(&words), None) else {
        unreachable!()
    };
    with_limit!(spec, limit => reset_of(limit, any, now))
}
