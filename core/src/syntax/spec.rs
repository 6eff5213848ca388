//! A limit, and what a call asks of it.

use crate::algorithm::any::AnyLimit;
use crate::algorithm::leases::Token;
use crate::evaluate::Request;
use crate::number::Amount;
use crate::wire::error::{Error, Hint, MustBe, Reason};

/// The longest name of a limit among several, in bytes.
pub const MAX_SPEC_NAME: usize = 32;

/// How many specs one call on a key may have.
pub const MAX_SPECS: usize = 8;

const NAMES: MustBe = MustBe::other("different from each other for limits of one kind", "AS requests");

/// A limit, and what a call asks of it.
///
/// ```
/// use ratelimit_core::wire::args::Args;
/// use ratelimit_core::syntax::KeyRequest;
/// use ratelimit_core::{Amount, AnyLimit, Request};
///
/// let words: [&[u8]; 6] = [b"RL.TAKE", b"fixed", b"1000", b"1d", b"COST", b"-1"];
/// let KeyRequest::One(spec) = KeyRequest::take(&mut Args::new(&words))? else { unreachable!() };
/// assert!(matches!(spec.limit, AnyLimit::FixedWindow(_)));
/// assert_eq!(spec.request, Request::GiveBack(Amount::ONE));
/// # Ok::<(), ratelimit_core::wire::error::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a word of its own")]
pub struct Spec<'a> {
    /// The limit, lowered by what is kept: to decide under it is exact, and a decision is told with
    /// [`Decision::keeping`](crate::limit::Decision::keeping).
    pub limit: AnyLimit,
    /// What is asked.
    pub request: Request,
    /// The holder that asks for a lease, or the item of a sketch; empty for any other limit.
    pub holder: &'a [u8],
    /// How much of the limit is to stay available after the call (KEEP), up to all of it.
    pub kept: Amount,
    /// What its component of the key is known by (AS): 1 to [`MAX_SPEC_NAME`] bytes.
    pub name: Option<&'a [u8]>,
    /// Whether a COST stands behind its own numbers: what it was charged, a settlement leaves alone.
    pub own_cost: bool,
    /// Whether it is for a first lease only (NX).
    pub nx: bool,
    /// The fencing token that its lease gets, unless it has one (FENCE). The charge path makes it.
    pub fence: Option<Token>,
    /// Whether it decides only for itself (SHADOW, in a policy).
    pub shadow: bool,
    /// Whether it is a policy's: then the policy is the truth of its key, which may hold what another definition left.
    pub by_policy: bool,
    /// A limit under which usage recovers more slowly, and may again before it has: that of a policy that is scaled.
    pub slower: Option<&'a AnyLimit>,
}

/// What an algorithm's numbers and flags say.
#[derive(Clone, Copy, Debug)]
pub struct ParsedLimit<'a> {
    /// The limit.
    pub(super) limit: AnyLimit,
    /// The holder that asks for a lease, or the item of a sketch; empty for any other limit.
    pub(super) holder: &'a [u8],
}

impl ParsedLimit<'_> {
    /// Of a limit that anyone may ask.
    #[inline(always)]
    pub(super) fn of(limit: AnyLimit) -> Self {
        ParsedLimit { limit, holder: &[] }
    }
}

impl Spec<'_> {
    /// Refuses a ban behind the first spec of a call or a policy, which may be that of a sketch.
    pub(super) fn refuse_ban(&self) -> Result<(), Error> {
        let alone = self.limit.kind().stands_alone();
        if alone { Err(Error::unexpected(b"BAN", Reason::MergedInSketch)) } else { Ok(()) }
    }
}

impl<'a> Spec<'a> {
    /// A cost of 1, with nothing else said.
    #[must_use]
    #[inline(always)]
    pub fn plain(ParsedLimit { limit, holder }: ParsedLimit<'a>) -> Spec<'a> {
        let request = Request::Take(Amount::ONE);
        Spec {
            limit,
            request,
            holder,
            kept: Amount::ZERO,
            name: None,
            own_cost: false,
            nx: false,
            fence: None,
            shadow: false,
            by_policy: false,
            slower: None,
        }
    }

    /// A limit, and what is asked of it; nothing else was said.
    #[must_use]
    pub fn of(limit: AnyLimit, request: Request) -> Spec<'a> {
        Spec { request, ..Spec::plain(ParsedLimit::of(limit)) }
    }

    /// Whether its holder is the call's id: the lease of a policy.
    #[must_use]
    pub fn is_held_by_id(&self) -> bool {
        self.by_policy && matches!(self.limit, AnyLimit::Concurrency(_))
    }

    /// The item of a sketch that it is about.
    #[must_use]
    #[inline(always)]
    pub fn item(&self) -> Option<&'a [u8]> {
        matches!(self.limit, AnyLimit::Sketch(_)).then_some(self.holder)
    }

    /// The spec under a limit that is lower by `kept`, which stays available for others (KEEP).
    pub(crate) fn keeping(self, kept: Amount) -> Spec<'a> {
        let limit = self.limit.limit();
        // More than there is never stays available, not even after nothing.
        let request = if kept > limit && self.request.is_look() { Request::LookPastLimit } else { self.request };
        let kept = kept.min(limit);
        Spec { limit: self.limit.lowered_by(kept), request, kept, ..self }
    }

    /// Refuses a spec that cannot be beside another, or would find the same component of a key.
    pub(super) fn refuse_twin(&self, other: &Spec) -> Result<(), Error> {
        if self.limit.kind().stands_alone() || other.limit.kind().stands_alone() {
            return Err(Error::unexpected(b"SKETCH", Reason::SketchStandsAlone));
        }
        if self.limit.kind() != other.limit.kind() {
            return Ok(());
        }
        match (self.name, other.name) {
            _ if matches!(self.limit, AnyLimit::Concurrency(_)) => {
                Err(Error::unexpected(b"CONCURRENCY", Reason::OneOfLeases))
            }
            (Some(name), Some(twin)) if name == twin => Err(Error::hinted("names", &NAMES, name, Hint::Twice)),
            (None, None) if self.limit.identity() == other.limit.identity() => {
                let limits = [other, self].map(|spec| spec.limit.raised_by(spec.kept).to_string());
                Err(Error::SameWindow(Box::new(limits)))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a limit can have that name.
#[must_use]
pub fn is_name(text: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=MAX_SPEC_NAME).contains(&text.len()) && text.iter().all(plain)
}
