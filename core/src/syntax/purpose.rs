//! Purpose and idempotency of a call as a whole.

use super::words::{Word, out_of_place};
use crate::evaluate::Request;
use crate::number::{Amount, Period, Span};
use crate::wire::error::{Error, Reason, Syntax};
use crate::wire::name;

/// Maximum length of an id, in bytes.
pub const MAX_ID: usize = name::MAX_NAME;

/// Command family: commands that charge and commands that only evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Take,
    Peek,
}

impl Verb {
    /// Returns the syntax of a call on one key with specs.
    pub(super) fn syntax(self) -> &'static Syntax {
        match self {
            Verb::Take => &Syntax { word: "RL.TAKE", arguments: "key [options] spec [spec ...]" },
            Verb::Peek => &Syntax { word: "RL.PEEK", arguments: "key [options] spec [spec ...]" },
        }
    }

    /// Returns the syntax of a call on one key with a policy.
    pub(super) fn syntax_by_policy(self) -> &'static Syntax {
        match self {
            Verb::Take => &Syntax { word: "RL.TAKE", arguments: "key POLICY name" },
            Verb::Peek => &Syntax { word: "RL.PEEK", arguments: "key POLICY name" },
        }
    }

    /// Returns the idempotency that applies: a peek ignores ONCE and rejects SETTLE.
    pub(super) fn idempotency(self, idempotency: Idempotency) -> Result<Idempotency, Error> {
        match (self, idempotency) {
            (Verb::Take, idempotency) => Ok(idempotency),
            (Verb::Peek, Idempotency::Settle { .. }) => Err(out_of_place(Word::Settle, Reason::PeekCannotSettle)),
            (Verb::Peek, _) => Ok(Idempotency::Every),
        }
    }
}

/// Idempotency of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idempotency<'a> {
    /// The call is charged every time.
    #[default]
    Every,
    /// The call is charged once while its id is stored (ONCE).
    Once {
        /// Id of the call, 1 to [`MAX_ID`] bytes.
        id: &'a [u8],
        /// Lifetime of the id.
        ttl: Period,
    },
    /// The call corrects an earlier charge to its actual cost (SETTLE).
    Settle {
        /// Id of the earlier call.
        id: &'a [u8],
        /// Actual cost of the earlier call.
        amount: Amount,
    },
}

impl<'a> Idempotency<'a> {
    /// Returns the id and its lifetime if the call is charged once.
    #[inline]
    #[must_use]
    pub fn once(self) -> Option<(&'a [u8], Period)> {
        if let Idempotency::Once { id, ttl } = self { Some((id, ttl)) } else { None }
    }
}

/// Time for which RL.ACQUIRE waits for a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Block {
    /// The call returns at once.
    #[default]
    No,
    /// The call waits for at most this span.
    For(Span),
    /// The call waits without a timeout.
    Forever,
}

/// Purpose of a call as a whole.
///
/// A spec with a cost of its own, or a limit of leases, is charged only by [`Purpose::Charge`]. Any other purpose
/// evaluates it with a cost of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The call charges its cost.
    Charge,
    /// The cost is 0: the call only evaluates.
    Peek,
    /// The cost is negative: the call refunds and is never denied.
    Refund,
    /// The call settles an earlier charge (SETTLE). It is never denied, and the request of each spec has a cost of 0.
    Settle,
}

impl Purpose {
    /// Returns the purpose of a call that consists of one request.
    #[must_use]
    pub fn of(request: Request) -> Purpose {
        match request {
            Request::Refund(_) => Purpose::Refund,
            request if request.is_peek() => Purpose::Peek,
            Request::Take(_)
            | Request::Force(_)
            | Request::ForceUpTo(_)
            | Request::Within(..)
            | Request::UpTo(_)
            | Request::PeekPastLimit => Purpose::Charge,
        }
    }
}

/// Options that only RL.ACQUIRE has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcquireOptions {
    /// Time to wait for a lease (BLOCK).
    pub block: Block,
    /// `true` if the lease gets a fencing token (FENCE).
    pub fence: bool,
}
