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
    /// Returns [`Error::Unavailable`].
    Raise,
}

/// Reaction to a misconfiguration such as a wrong password. Both log an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetupErrors {
    /// Returns [`Error::Setup`].
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
    /// Timeout of a call: 250 ms. A shorter timeout of the connection applies, too.
    pub timeout: Duration,
    /// Number of times that a call is resent after its reply was lost: 1.
    pub resends: u32,
    /// Give calls an idempotency key where charging them twice would matter: for more than one unit, or more than a
    /// hundredth of a limit. `false`: only calls that ask for one have it, and no call is resent.
    pub once: bool,
    /// Answer a denied call in this process while it would be denied again: for a second at most, or with
    /// [`Limiter::beside`](crate::Limiter::beside) until the server reports that the key has changed.
    pub remember_denials: bool,
    /// Number of consecutive failures after which no call is sent for `pause`: 3.
    pub failures: u32,
    /// Time until one call tries again: a second.
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
    /// Generates one where charging twice would matter.
    Needed,
    New,
    Own(String),
    Never,
}

/// Charge of a call, with its options.
#[derive(Clone, Debug)]
pub struct Take {
    pub(crate) cost: Amount,
    pub(crate) once: Once,
    pub(crate) ttl: Option<Time>,
    pub(crate) force: bool,
    pub(crate) up_to: bool,
    pub(crate) wait: Duration,
    /// Longest wait for units that the call reserves.
    pub(crate) max_wait: Option<Duration>,
}

impl Take {
    /// Sets the cost: units of each limit that has no cost of its own.
    pub fn units(cost: impl Into<Amount>) -> Self {
        let (once, ttl, max_wait) = (Once::Needed, None, None);
        Self { cost: cost.into(), once, ttl, force: false, up_to: false, wait: Duration::ZERO, max_wait }
    }

    /// Sets your own idempotency key, with a lifetime of 10 minutes unless [`Take::remembered`] sets it.
    pub fn once(self, id: impl Into<String>) -> Self {
        Self { once: Once::Own(id.into()), ..self }
    }

    /// Gives the charge an idempotency key at any cost, so that it can be settled.
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

    /// Charges as many whole units as there are, up to the cost: [`Decision::granted`](crate::Decision::granted).
    pub fn up_to(self) -> Self {
        Self { up_to: true, ..self }
    }

    /// Waits until the call passes, for up to `timeout`. Units of token buckets are reserved by one call, in order, and
    /// dropping the wait gives them back; for other limits the call is repeated.
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
