//! Charging modes: the limits that a denied request is charged.

use clap::ValueEnum;
use serde::Deserialize;

/// Charging mode of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Charge {
    /// A denied request is not charged.
    #[default]
    AllOrNone,
    /// The limit is charged if it allows the request, even if another denies.
    Independent,
    /// The limit is charged even beyond its capacity, as envoyproxy/ratelimit does.
    Always,
}

/// Charging mode of a rule, and the default of the rule's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCharge {
    /// Mode of the rule, if it has one.
    pub own: Option<Charge>,
    /// Mode if neither the rule nor the command line has one.
    pub default: Charge,
}

impl RuleCharge {
    /// Returns the mode of the rule, else that of the command line (`option`), else the default.
    #[must_use]
    pub fn or(self, option: Option<Charge>) -> Charge {
        self.own.or(option).unwrap_or(self.default)
    }
}
