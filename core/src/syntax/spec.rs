//! Spec: a limit together with the request of a call.

use crate::algorithm::any::AnyLimit;
use crate::algorithm::leases::Token;
use crate::evaluate::Request;
use crate::number::Amount;
use crate::wire::error::{Error, Hint, MustBe, Reason};

/// Maximum length of a limit's name, in bytes.
pub const MAX_SPEC_NAME: usize = 32;

/// Maximum number of specs in a call on one key.
pub const MAX_SPECS: usize = 8;

const NAMES: MustBe = MustBe::other("different from each other for limits of one kind", "AS requests");

/// Limit together with the request of a call.
///
/// ```
/// use ratelimit_core::wire::args::Args;
/// use ratelimit_core::syntax::KeyRequest;
/// use ratelimit_core::{Amount, AnyLimit, Request};
///
/// let words: [&[u8]; 6] = [b"RL.TAKE", b"fixed", b"1000", b"1d", b"COST", b"-1"];
/// let KeyRequest::One(spec) = KeyRequest::take(&mut Args::new(&words), None)? else { unreachable!() };
/// assert!(matches!(spec.limit, AnyLimit::FixedWindow(_)));
/// assert_eq!(spec.request, Request::Refund(Amount::ONE));
/// # Ok::<(), ratelimit_core::wire::error::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option")]
pub struct Spec<'a> {
    /// Limit, lowered by the amount to keep. Evaluating the lowered limit is exact;
    /// [`Decision::with_keep`](crate::limit::Decision::with_keep) then restores the original limit for the reply.
    pub limit: AnyLimit,
    /// Requested cost and mode.
    pub request: Request,
    /// Holder of a lease, or item of a sketch. Empty for any other limit.
    pub holder_or_item: &'a [u8],
    /// Amount that must stay available after the call (KEEP), at most the whole limit.
    pub keep: Amount,
    /// Name of the component in a composite key (AS), 1 to [`MAX_SPEC_NAME`] bytes.
    pub name: Option<&'a [u8]>,
    /// `true` if the spec has a COST of its own. A settlement of the call does not correct such a cost.
    pub has_own_cost: bool,
    /// `true` if only a holder without a lease is granted one (NX).
    pub nx: bool,
    /// Fencing token of a new lease (FENCE). Set by the charge path.
    pub fence: Option<Token>,
    /// Shadow mode: the decision is recorded but not enforced (SHADOW, in a policy).
    pub shadow: bool,
    /// `true` if the spec comes from a policy. The call then removes components of earlier definitions of the policy.
    pub by_policy: bool,
    /// Unscaled limit of a scaled policy, if usage recovers more slowly under that limit, which applies again when the
    /// scale ends.
    pub slower_limit: Option<&'a AnyLimit>,
}

/// Parsed numbers and flags of an algorithm.
#[derive(Clone, Copy, Debug)]
pub struct ParsedLimit<'a> {
    /// Parsed limit.
    pub(super) limit: AnyLimit,
    /// Holder of a lease, or item of a sketch. Empty for any other limit.
    pub(super) holder_or_item: &'a [u8],
}

impl ParsedLimit<'_> {
    /// Creates the result for a limit without a holder or an item.
    #[inline(always)]
    pub(super) fn of(limit: AnyLimit) -> Self {
        ParsedLimit { limit, holder_or_item: &[] }
    }
}

impl Spec<'_> {
    /// Rejects BAN if the limit is a sketch.
    pub(super) fn check_bannable(&self) -> Result<(), Error> {
        let is_sketch = self.limit.kind().stands_alone();
        if is_sketch { Err(Error::unexpected(b"BAN", Reason::MergedInSketch)) } else { Ok(()) }
    }
}

impl<'a> Spec<'a> {
    /// Creates a spec with a cost of 1 and no options.
    #[must_use]
    #[inline(always)]
    pub fn plain(ParsedLimit { limit, holder_or_item }: ParsedLimit<'a>) -> Spec<'a> {
        let request = Request::Take(Amount::ONE);
        Spec {
            limit,
            request,
            holder_or_item,
            keep: Amount::ZERO,
            name: None,
            has_own_cost: false,
            nx: false,
            fence: None,
            shadow: false,
            by_policy: false,
            slower_limit: None,
        }
    }

    /// Creates a spec with a request and no options.
    #[must_use]
    pub fn of(limit: AnyLimit, request: Request) -> Spec<'a> {
        Spec { request, ..Spec::plain(ParsedLimit::of(limit)) }
    }

    /// Returns `true` if the holder of the lease is the id of the call, as in a policy.
    #[must_use]
    pub fn is_held_by_id(&self) -> bool {
        self.by_policy && matches!(self.limit, AnyLimit::Concurrency(_))
    }

    /// Returns the item if the limit is a sketch.
    #[must_use]
    #[inline(always)]
    pub fn item(&self) -> Option<&'a [u8]> {
        matches!(self.limit, AnyLimit::Sketch(_)).then_some(self.holder_or_item)
    }

    /// Lowers the limit by `keep`, which stays available for other calls (KEEP).
    pub(crate) fn with_keep(self, keep: Amount) -> Spec<'a> {
        let limit = self.limit.limit();
        // A limit cannot keep more than it has, so even a request that only evaluates is denied.
        let request = if keep > limit && self.request.is_peek() { Request::PeekPastLimit } else { self.request };
        let keep = keep.min(limit);
        Spec { limit: self.limit.lowered_by(keep), request, keep, ..self }
    }

    /// Rejects a spec that cannot be combined with `other`, or would share its component of the key.
    pub(super) fn check_conflict(&self, other: &Spec) -> Result<(), Error> {
        if self.limit.kind().stands_alone() || other.limit.kind().stands_alone() {
            return Err(Error::unexpected(b"SKETCH", Reason::BesideSketch));
        }
        if self.limit.kind() != other.limit.kind() {
            return Ok(());
        }
        match (self.name, other.name) {
            _ if matches!(self.limit, AnyLimit::Concurrency(_)) => {
                Err(Error::unexpected(b"CONCURRENCY", Reason::SecondConcurrency))
            }
            (Some(name), Some(other)) if name == other => Err(Error::hinted("names", &NAMES, name, Hint::Twice)),
            (None, None) if self.limit.identity() == other.limit.identity() => {
                let limits = [other, self].map(|spec| spec.limit.raised_by(spec.keep).to_string());
                Err(Error::SameIdentity(Box::new(limits)))
            }
            _ => Ok(()),
        }
    }
}

/// Returns `true` if `text` is a valid name of a limit.
#[must_use]
pub fn is_name(text: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=MAX_SPEC_NAME).contains(&text.len()) && text.iter().all(is_allowed)
}
