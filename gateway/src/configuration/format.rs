//! YAML format of the configuration files. Unknown keys are rejected.

use crate::charge::ChargingMode;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;
use std::collections::BTreeMap;

/// Document of a file: a domain, or the rules of forward auth.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Ignored name, which Envoy Gateway writes beside the domain.
    #[serde(default, rename = "name")]
    pub _name: Option<IgnoredAny>,
    /// Name of the domain.
    pub domain: Option<Spanned<String>>,
    /// First entries of the descriptors of the domain.
    pub descriptors: Option<Vec<DescriptorEntry>>,
    /// Rules of forward auth, instead of a domain.
    pub http: Option<HttpSection>,
}

/// Entry of a descriptor, with the entries that may follow it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "the options of the file")]
pub struct DescriptorEntry {
    /// Key of the entry.
    pub key: Spanned<String>,
    /// Value of the entry, in which `*` matches any text. Empty for every value.
    #[serde(default)]
    pub value: String,
    /// Limit of a descriptor that ends with this entry. Without a limit, the descriptor is never denied.
    pub rate_limit: Option<RateLimitEntry>,
    /// Entries that may follow this entry.
    #[serde(default)]
    pub descriptors: Option<Vec<DescriptorEntry>>,
    /// Shadow mode: denials are counted but not enforced.
    #[serde(default)]
    pub shadow_mode: bool,
    /// Quota mode: the limit denies only if all quotas of the request are exceeded.
    #[serde(default)]
    pub quota_mode: bool,
    /// `true` if all values that a `*` matches share one limit.
    #[serde(default)]
    pub share_threshold: bool,
    /// `true` if metrics have a label for each whole descriptor.
    #[serde(default)]
    pub detailed_metric: bool,
    /// `true` if metrics have a label for each value of this entry.
    #[serde(default)]
    pub value_to_metric: bool,
    /// Metadata in the response to Envoy, unless the limit is exceeded.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Limit of a descriptor.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimitEntry {
    /// Unit of the window: `second` to `year`.
    pub unit: Option<Spanned<String>>,
    /// Requests allowed per window.
    pub requests_per_unit: Option<u32>,
    /// Length of the window in units. Default: 1.
    pub unit_multiplier: Option<u32>,
    /// `true` if every request passes without a call to the server.
    #[serde(default)]
    pub unlimited: bool,
    /// Name by which `replaces` refers to this limit.
    #[serde(default)]
    pub name: String,
    /// Limits that do not apply to a request to which this limit applies. A list element without a value is `None`.
    #[serde(default, deserialize_with = "nullable_list")]
    pub replaces: Vec<Option<Replaces>>,
    /// Policies of the server, of which the first that exists applies. Not in envoyproxy/ratelimit.
    pub policy: Option<OneOrMore>,
    /// Arguments of `RL.TAKE` after its key. Not in envoyproxy/ratelimit.
    pub limit: Option<Spanned<String>>,
    /// Charging mode. Not in envoyproxy/ratelimit.
    pub charge: Option<ChargingMode>,
    /// Accepted and ignored: responses have the metadata of the descriptor.
    #[serde(default, rename = "metadata")]
    pub _metadata: Option<IgnoredAny>,
}

/// Reference to another limit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replaces {
    /// `name` of the other limit.
    pub name: Option<String>,
}

/// Deserializes a list. A key without a value is a list of one element without a value.
fn nullable_list<'d, D: Deserializer<'d>, T: Deserialize<'d>>(deserializer: D) -> Result<Vec<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(|list| list.unwrap_or_else(|| vec![None]))
}

/// Name, or list of names.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    /// Returns the names in their order.
    pub fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMore::One(name) => vec![name],
            OneOrMore::More(names) => names,
        }
    }
}

/// Section with the rules of forward auth.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSection {
    /// Networks of the proxies whose `X-Forwarded-For` is trusted.
    pub trusted: Option<Vec<Spanned<String>>>,
    /// Length of the IPv6 networks that count as one client.
    pub ipv6_prefix: Option<Spanned<i64>>,
    /// Rules, of which the first that matches applies.
    pub rules: Option<Vec<RuleEntry>>,
}

/// Rule of forward auth.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleEntry {
    /// Methods that the rule matches. Default: all.
    pub method: Option<OneOrMore>,
    /// Pattern of the paths that the rule matches. Default: all.
    pub path: Option<Spanned<String>>,
    /// `true` if paths are matched and counted without regard to the case of ASCII letters.
    #[serde(default)]
    pub ignore_case: bool,
    /// Headers that a request must have, with patterns of their values.
    #[serde(default)]
    pub header: BTreeMap<String, String>,
    /// Policies of the server, of which the first that exists applies.
    pub policy: Option<OneOrMore>,
    /// Arguments of `RL.TAKE` after its key, instead of policies.
    pub limit: Option<Spanned<String>>,
    /// Template of the key, with the fields `{client}`, `{method}`, `{path}` and `{header.NAME}`.
    pub key: Spanned<String>,
    /// Template of the cost, with the same fields. Default: 1.
    pub cost: Option<Spanned<String>>,
    /// Charging mode.
    pub charge: Option<ChargingMode>,
}
