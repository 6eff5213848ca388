//! Charging modes, which select the limits that a denied request charges.

use clap::ValueEnum;
use serde::Deserialize;

/// Effect of a denied request on the usage under a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChargingMode {
    /// A denied request charges nothing.
    #[default]
    AllOrNone,
    /// The limit is charged if it allows the request, even if another limit denies it.
    Independent,
    /// The limit is charged even beyond its capacity, as envoyproxy/ratelimit does.
    Always,
}

/// Charging mode of a rule, and the default of the rule's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleChargingMode {
    /// Mode that the rule itself sets.
    pub explicit: Option<ChargingMode>,
    /// Mode if neither the rule nor the command line sets one.
    pub default: ChargingMode,
}

impl RuleChargingMode {
    /// Returns the mode that the rule sets, otherwise the mode of the command line, otherwise the default.
    #[must_use]
    pub fn resolve(self, command_line: Option<ChargingMode>) -> ChargingMode {
        self.explicit.or(command_line).unwrap_or(self.default)
    }
}
