//! Metrics of the enforcement of limits: outages and the mode that applies in them, shadow mode, and refused limits.

use crate::outage_mode::OutageMode;
use metrics::{describe_gauge, gauge};
use std::time::{SystemTime, UNIX_EPOCH};

const OUTAGE: &str = "ratelimit_gateway_outage";
const OUTAGE_START: &str = "ratelimit_gateway_outage_start_time_seconds";
const OUTAGE_MODE: &str = "ratelimit_gateway_outage_mode";
const SHADOW: &str = "ratelimit_gateway_shadow";
const REFUSED: &str = "ratelimit_gateway_configuration_refused";

/// Registers the metrics, and sets those of the modes, which never change.
pub fn register(outage_mode: OutageMode, shadow: bool) {
    for (name, help) in [
        (OUTAGE, "Servers that are away."),
        (OUTAGE_START, "Start of the outage in seconds since the Unix epoch, or 0 without an outage."),
        (OUTAGE_MODE, "1 for the mode of --on-outage, by which requests are answered while a server is away."),
        (SHADOW, "1 if the gateway denies no request (--shadow)."),
        (REFUSED, "1 while the last limits of the files or of the control plane are refused and earlier ones stay."),
    ] {
        describe_gauge!(name, help);
    }
    set_outage(0, None);
    set_refused(false);
    gauge!(OUTAGE_MODE, "mode" => outage_mode.to_string()).set(1.0);
    gauge!(SHADOW).set(f64::from(u8::from(shadow)));
}

/// Sets the number of servers that are away, and the start of the outage.
pub fn set_outage(servers: usize, start: Option<SystemTime>) {
    gauge!(OUTAGE).set(u32::try_from(servers).map_or(f64::from(u32::MAX), f64::from));
    let start = start.and_then(|start| start.duration_since(UNIX_EPOCH).ok());
    gauge!(OUTAGE_START).set(start.map_or(0.0, |start| start.as_secs_f64()));
}

/// Sets whether the last limits were refused.
pub fn set_refused(is_refused: bool) {
    gauge!(REFUSED).set(f64::from(u8::from(is_refused)));
}
