//! Charging modes: a denied request may use nothing, what each limit allows, or its cost in full.

use clap::ValueEnum;
use serde::Deserialize;

/// Charging mode of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Charge {
    /// A denied request has used nothing of the limit.
    #[default]
    AllOrNone,
    /// The limit is charged if it allows the request, even if another denies.
    Independent,
    /// The limit is charged even past its end, as with envoyproxy/ratelimit.
    Always,
}

/// Charging mode that a rule names, and the one of its format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCharge {
    /// Mode that the rule names.
    pub own: Option<Charge>,
    /// Mode of rules that name none, unless the command line does.
    pub default: Charge,
}

impl RuleCharge {
    /// Returns the mode of the rule; `option` is that of the command line.
    #[must_use]
    pub fn or(self, option: Option<Charge>) -> Charge {
        self.own.or(option).unwrap_or(self.default)
    }
}
