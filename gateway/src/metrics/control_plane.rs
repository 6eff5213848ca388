//! Metrics of the control plane, which the gateway shows only if it has a control plane.

use super::{enforcement, envoyproxy};
use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::PrometheusHandle;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

const CONNECTED: &str = "ratelimit_gateway_xds_connected";
const PUSHES_TOTAL: &str = "ratelimit_gateway_xds_pushes_total";
const VERSION_INFO: &str = "ratelimit_gateway_xds_version_info";

/// Version of the last configuration that was applied. It is not a label in the recorder, which would keep all
/// versions.
static VERSION: Mutex<Option<String>> = Mutex::new(None);

/// Registers the metrics.
pub fn register() {
    describe_gauge!(CONNECTED, "1 while the control plane is connected.");
    describe_counter!(PUSHES_TOTAL, "Configurations of the control plane, by their result.");
    set_connected(false);
    for result in ["applied", "refused"] {
        counter!(PUSHES_TOTAL, "result" => result).absolute(0);
    }
}

/// Sets the state of the connection.
pub fn set_connected(is_connected: bool) {
    gauge!(CONNECTED).set(f64::from(u8::from(is_connected)));
}

/// Counts a configuration that was applied, and remembers its version.
pub fn count_applied(version: &str) {
    *VERSION.lock().unwrap_or_else(PoisonError::into_inner) = Some(version.to_owned());
    count_push("applied");
    enforcement::set_refused(false);
    envoyproxy::count_configuration(true);
}

/// Counts a configuration that was refused.
pub fn count_refused() {
    count_push("refused");
    enforcement::set_refused(true);
    envoyproxy::count_configuration(false);
}

fn count_push(result: &'static str) {
    counter!(PUSHES_TOTAL, "result" => result).increment(1);
}

/// Renders all metrics of the recorder, and the version of the configuration.
pub fn render(recorder: &PrometheusHandle) -> String {
    let mut page = recorder.render();
    if let Some(version) = &*VERSION.lock().unwrap_or_else(PoisonError::into_inner) {
        let version = version.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        // Writing to a string never fails.
        let _ = write!(
            page,
            "# HELP {VERSION_INFO} Version of the last configuration of the control plane.\n\
             # TYPE {VERSION_INFO} gauge\n{VERSION_INFO}{{version=\"{version}\"}} 1\n"
        );
    }
    page
}
