//! What a call is for as a whole.

use super::words::{Word, out_of_place};
use crate::evaluate::Request;
use crate::number::{Amount, Period, Span};
use crate::wire::error::{Error, Reason, Syntax};
use crate::wire::name;

/// The longest id of a call, in bytes.
pub const MAX_ID: usize = name::MAX_NAME;

/// Whether a call that is admitted charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Take,
    Peek,
}

impl Verb {
    /// The syntax of a call on one key that brings its own specs.
    pub(super) fn syntax(self) -> &'static Syntax {
        match self {
            Verb::Take => &Syntax { word: "RL.TAKE", arguments: "key [options] spec [spec ...]" },
            Verb::Peek => &Syntax { word: "RL.PEEK", arguments: "key [options] spec [spec ...]" },
        }
    }

    /// The syntax of a call on one key that names a policy.
    pub(super) fn syntax_by_policy(self) -> &'static Syntax {
        match self {
            Verb::Take => &Syntax { word: "RL.TAKE", arguments: "key POLICY name" },
            Verb::Peek => &Syntax { word: "RL.PEEK", arguments: "key POLICY name" },
        }
    }

    /// What ONCE and SETTLE mean to the command: a peek disregards ONCE, and cannot settle.
    pub(super) fn idempotency(self, idempotency: Idempotency) -> Result<Idempotency, Error> {
        match (self, idempotency) {
            (Verb::Take, idempotency) => Ok(idempotency),
            (Verb::Peek, Idempotency::Settle { .. }) => Err(out_of_place(Word::Settle, Reason::LookSettlesNothing)),
            (Verb::Peek, _) => Ok(Idempotency::Every),
        }
    }
}

/// Whether a call is charged each time that it comes, or once for its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idempotency<'a> {
    /// Every time.
    #[default]
    Every,
    /// Once, as long as its id is remembered.
    Once {
        /// 1 to [`MAX_ID`] bytes.
        id: &'a [u8],
        /// For how long it is.
        ttl: Period,
    },
    /// As what a call before turned out to cost.
    Settle {
        /// That call's.
        id: &'a [u8],
        /// What it turned out to cost.
        amount: Amount,
    },
}

/// For how long a call would rather wait than be denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Block {
    /// It does not wait.
    #[default]
    No,
    /// For so long.
    For(Span),
    /// As long as it takes.
    Forever,
}

/// What a call as a whole is for. A spec with a cost of its own, or of leases, is charged only by a call that charges;
/// else it is looked at with a cost of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It charges.
    Charge,
    /// Its cost is 0.
    Check,
    /// Its cost is negative. Nothing denies it.
    GiveBack,
    /// SETTLE. Nothing denies it, and what is asked of each spec is a cost of 0.
    Settle,
}

impl Purpose {
    /// Of a call that asks no more than that.
    #[must_use]
    pub fn of(request: Request) -> Purpose {
        match request {
            Request::GiveBack(_) => Purpose::GiveBack,
            request if request.is_look() => Purpose::Check,
            Request::Take(_)
            | Request::Force(_)
            | Request::ForceUpTo(_)
            | Request::Within(..)
            | Request::UpTo(_)
            | Request::LookPastLimit => Purpose::Charge,
        }
    }
}

/// What only a call of RL.ACQUIRE says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acquiring {
    /// For how long it waits (BLOCK).
    pub block: Block,
    /// Whether it asks for a fencing token (FENCE).
    pub fence: bool,
}
