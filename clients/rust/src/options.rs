//! Options of a limiter, and of a call.

use std::time::Duration;

use crate::limits::{Amount, Time};

/// Fallback while the server does not decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOutage {
    /// Allows every call.
    #[default]
    Open,
    /// Denies every call.
    Closed,
    /// Returns [`Error::Unavailable`](crate::Error::Unavailable).
    Raise,
}

/// Reaction to a misconfiguration, such as a wrong password. In either case an error is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetupErrors {
    /// Returns [`Error::Setup`](crate::Error::Setup).
    #[default]
    Raise,
    /// Falls back as in an outage.
    Outage,
}

/// Options of a limiter.
#[derive(Clone, Debug)]
pub struct Options {
    /// Prefix of every key. Empty by default.
    pub prefix: String,
    /// Fallback while the server does not decide.
    pub on_outage: OnOutage,
    /// Reaction to a misconfiguration.
    pub setup_errors: SetupErrors,
    /// Timeout of a call. 250 ms by default. A shorter timeout of the connection takes precedence.
    pub timeout: Duration,
    /// Number of times that a call is resent if its reply is lost. 1 by default.
    pub resends: u32,
    /// `true`, the default, if calls get an idempotency key where charging them twice would matter: for more than one
    /// unit, or more than a hundredth of a limit. If `false`, only calls that ask for an idempotency key have one, and
    /// no other call is resent.
    pub once: bool,
    /// `true`, the default, if this process itself answers a denied call while the server would deny it again: for a
    /// second at most, or with [`Limiter::beside`](crate::Limiter::beside) until the server reports that the key has
    /// changed.
    pub remember_denials: bool,
    /// Number of consecutive failures after which no call is sent for `pause`. 3 by default.
    pub failures: u32,
    /// Time without calls after `failures`, until one call probes the server. A second by default.
    pub pause: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: String::new(),
            on_outage: OnOutage::default(),
            setup_errors: SetupErrors::default(),
            timeout: Duration::from_millis(250),
            resends: 1,
            once: true,
            remember_denials: true,
            failures: 3,
            pause: Duration::from_secs(1),
        }
    }
}

/// Idempotency key of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Once {
    /// Generated where charging twice would matter.
    Needed,
    /// Generated for any cost.
    New,
    /// Chosen by the caller.
    Own(String),
    /// Absent for any cost.
    Never,
}

/// Cost and options of a call.
#[derive(Clone, Debug)]
pub struct Take {
    pub(crate) cost: Amount,
    pub(crate) once: Once,
    /// Lifetime of the idempotency key.
    pub(crate) ttl: Option<Time>,
    pub(crate) force: bool,
    pub(crate) up_to: bool,
    /// Longest time for which the caller waits.
    pub(crate) wait: Duration,
    /// Longest wait for units that the call reserves.
    pub(crate) max_wait: Option<Duration>,
}

impl Take {
    /// Creates a take of this cost, in units of each limit that has no cost of its own.
    pub fn units(cost: impl Into<Amount>) -> Self {
        let (once, ttl, max_wait) = (Once::Needed, None, None);
        Self { cost: cost.into(), once, ttl, force: false, up_to: false, wait: Duration::ZERO, max_wait }
    }

    /// Sets your own idempotency key, with a lifetime of 10 minutes unless [`Take::remembered`] sets it.
    pub fn once(self, id: impl Into<String>) -> Self {
        Self { once: Once::Own(id.into()), ..self }
    }

    /// Gives the charge an idempotency key, whatever its cost, so that it can be settled.
    pub fn refundable(self) -> Self {
        if matches!(self.once, Once::Own(_)) { self } else { Self { once: Once::New, ..self } }
    }

    /// Sends no idempotency key. The call is not resent.
    pub fn unnamed(self) -> Self {
        Self { once: Once::Never, ..self }
    }

    /// Sends an idempotency key with this lifetime, within which the charge can be settled.
    pub fn remembered(self, ttl: impl Into<Time>) -> Self {
        Self { ttl: Some(ttl.into()), ..self }
    }

    /// Charges even past the limit, for units that were used already.
    pub fn force(self) -> Self {
        Self { force: true, ..self }
    }

    /// Charges as many whole units as there are, up to the cost. [`Decision::granted`](crate::Decision::granted) is
    /// their number.
    pub fn up_to(self) -> Self {
        Self { up_to: true, ..self }
    }

    /// Waits until the call passes, for up to `timeout`. Units of token buckets are reserved by one call, in the order
    /// of the calls, and dropping the future gives them back. For other limits, the call is repeated.
    pub fn waiting(self, timeout: Duration) -> Self {
        Self { wait: timeout, ..self }
    }
}

/// Charge of one unit.
impl Default for Take {
    fn default() -> Self {
        Self::units(1)
    }
}
