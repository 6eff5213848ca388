//! Parts of a request: one for each descriptor of Envoy, or one for a forward auth request.

use crate::call::Call;
use crate::configuration::MetricName;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Part of a request, resolved to a rule.
#[derive(Clone, Debug)]
pub enum RequestPart {
    /// No rule matches: the part passes.
    NoLimit,
    /// The rule is unlimited: the part passes.
    Unlimited,
    /// The cost is higher than any limit allows: the part is denied.
    CostTooHigh,
    /// The server decides by this call.
    Call(RuleCall),
}

/// Call to the server, with the options of the rule that it belongs to.
#[derive(Clone, Debug)]
pub struct RuleCall {
    /// Call that the server decides.
    pub call: Call,
    /// Shadow mode of the rule: denials are counted but not enforced.
    pub shadow: bool,
    /// Quota mode: the rule denies only if all quotas of the request are exceeded.
    pub quota: bool,
    /// Name of the rule in metrics, or `None` for the name of the policy that applies.
    pub metric: Option<MetricName>,
    /// Metadata of the rule, for Envoy.
    pub metadata: Option<Arc<Map<String, Value>>>,
}

impl RuleCall {
    /// Creates an enforced call that belongs to no rule of a file.
    #[must_use]
    pub fn new(call: Call) -> RuleCall {
        RuleCall { call, shadow: false, quota: false, metric: None, metadata: None }
    }
}
