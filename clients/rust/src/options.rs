//! How a limiter is set up, and what a call says.

use std::time::Duration;

use crate::limits::{Amount, Time};

/// What holds while the server does not decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOutage {
    /// All calls pass.
    #[default]
    Open,
    /// No call passes.
    Closed,
    /// A call is an [`Error::Unavailable`].
    Raise,
}

/// What a mistake of setup leads to, such as a wrong password. The log has an error in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetupErrors {
    /// A call is an [`Error::Setup`].
    #[default]
    Raise,
    /// What holds in an outage.
    Outage,
}

/// How a limiter is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// What every key begins with. Nothing by default.
    pub prefix: String,
    /// What holds while the server does not decide.
    pub on_outage: OnOutage,
    /// What a mistake of setup leads to.
    pub setup_errors: SetupErrors,
    /// For how long a call waits for its reply: 250 ms. A shorter time limit of the connection's holds too.
    pub timeout: Duration,
    /// How often a call is sent again whose reply was lost: once.
    pub resends: u32,
    /// Whether calls bring an idempotency key where charging them twice would matter: for more than one unit, or more
    /// than a hundredth of a limit. False: none does that does not ask for it, and no call is sent again.
    pub once: bool,
    /// Whether this process answers a denied call for as long as it would be denied again: for a second at most, or by
    /// [`Limiter::beside`](crate::Limiter::beside) until the server says that the key has changed.
    pub remember_denials: bool,
    /// After so many failures in a row nobody asks: 3.
    pub failures: u32,
    /// For how long nobody asks then: a second.
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

/// Which idempotency key a call brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Once {
    /// A new one, where charging twice would matter.
    Needed,
    New,
    Own(String),
    Never,
}

/// What a call takes, and how.
#[derive(Clone, Debug)]
pub struct Take {
    pub(crate) cost: Amount,
    pub(crate) once: Once,
    pub(crate) ttl: Option<Time>,
    pub(crate) force: bool,
    pub(crate) up_to: bool,
    pub(crate) patience: Duration,
    /// Longest wait for units that the call reserves.
    pub(crate) max_wait: Option<Duration>,
}

impl Take {
    /// The cost: units of each limit that has no cost of its own.
    pub fn units(cost: impl Into<Amount>) -> Self {
        let (once, ttl, max_wait) = (Once::Needed, None, None);
        Self { cost: cost.into(), once, ttl, force: false, up_to: false, patience: Duration::ZERO, max_wait }
    }

    /// An idempotency key of yours, remembered for 10 minutes unless [`Take::remembered`] says otherwise.
    pub fn once(self, id: impl Into<String>) -> Self {
        Self { once: Once::Own(id.into()), ..self }
    }

    /// Gives the charge an idempotency key, whatever it costs, so that it can be settled.
    pub fn refundable(self) -> Self {
        if matches!(self.once, Once::Own(_)) { self } else { Self { once: Once::New, ..self } }
    }

    /// Without an idempotency key. The call is not sent again.
    pub fn unnamed(self) -> Self {
        Self { once: Once::Never, ..self }
    }

    /// With an idempotency key that is remembered for so long: the charge may be settled meanwhile.
    pub fn remembered(self, ttl: impl Into<Time>) -> Self {
        Self { ttl: Some(ttl.into()), ..self }
    }

    /// Charges even past the limit: what has been used already.
    pub fn force(self) -> Self {
        Self { force: true, ..self }
    }

    /// Charges as many whole units as there are, up to the cost: [`Decision::granted`](crate::Decision::granted).
    pub fn up_to(self) -> Self {
        Self { up_to: true, ..self }
    }

    /// Waits for up to so long until the call passes. Of token buckets the units are reserved by one call, in turn, and a
    /// wait that is dropped gives them back; other limits are asked again.
    pub fn waiting(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

/// One unit.
impl Default for Take {
    fn default() -> Self {
        Self::units(1)
    }
}
