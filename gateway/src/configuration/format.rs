//! The words of the files. Unknown ones are refused.

use crate::charge::Charge;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;
use std::collections::BTreeMap;

/// One document: a domain, or the rules of HTTP.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Read and ignored: Envoy Gateway prints one beside the domain.
    #[serde(default, rename = "name")]
    pub _name: Option<IgnoredAny>,
    /// The domain whose descriptors these are.
    pub domain: Option<Spanned<String>>,
    /// The first entries of its descriptors.
    pub descriptors: Option<Vec<DescriptorEntry>>,
    /// The rules of forward auth, in place of a domain.
    pub http: Option<HttpSection>,
}

/// An entry of a descriptor, and what may stand below it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "the words of the file")]
pub struct DescriptorEntry {
    /// The key of the entry.
    pub key: Spanned<String>,
    /// The value of the entry, in which `*` stands for anything; empty for every value.
    #[serde(default)]
    pub value: String,
    /// The limit of a descriptor that ends here; without one it is never denied.
    pub rate_limit: Option<RateLimitEntry>,
    /// The entries that may follow this one.
    #[serde(default)]
    pub descriptors: Option<Vec<DescriptorEntry>>,
    /// Counts, and never denies.
    #[serde(default)]
    pub shadow_mode: bool,
    /// A request is denied only if all of its quotas are used up.
    #[serde(default)]
    pub quota_mode: bool,
    /// All values that a `*` matches share one limit.
    #[serde(default)]
    pub share_threshold: bool,
    /// Metrics have a label for each whole descriptor.
    #[serde(default)]
    pub detailed_metric: bool,
    /// Metrics have a label for each value of this entry.
    #[serde(default)]
    pub value_to_metric: bool,
    /// Metadata for Envoy in the answer to a request that the limit does not deny.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// What is allowed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimitEntry {
    /// The length of the window: `second` to `year`.
    pub unit: Option<Spanned<String>>,
    /// How many requests may pass in a window.
    pub requests_per_unit: Option<u32>,
    /// The length of the window in units; without it, 1.
    pub unit_multiplier: Option<u32>,
    /// Every request passes, without a question to the server.
    #[serde(default)]
    pub unlimited: bool,
    /// The name by which `replaces` refers to this limit.
    #[serde(default)]
    pub name: String,
    /// The limits that do not hold for a request that this one matches. An entry without a value is `None`.
    #[serde(default, deserialize_with = "entries")]
    pub replaces: Vec<Option<Replaces>>,
    /// Policies of the server, of which the first that exists rules. Not in envoyproxy/ratelimit.
    pub policy: Option<OneOrMore>,
    /// The words of `RL.TAKE` after its key. Not in envoyproxy/ratelimit.
    pub limit: Option<Spanned<String>>,
    /// Charging mode. Not in envoyproxy/ratelimit.
    pub charge: Option<Charge>,
    /// Read, and not sent to Envoy.
    #[serde(default, rename = "metadata")]
    pub _metadata: Option<IgnoredAny>,
}

/// A reference to another limit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replaces {
    /// The `name` of that limit.
    pub name: Option<String>,
}

/// Reads a list; a key without a value is a list of one entry without a value.
fn entries<'d, D: Deserializer<'d>, T: Deserialize<'d>>(from: D) -> Result<Vec<Option<T>>, D::Error> {
    Option::deserialize(from).map(|list| list.unwrap_or_else(|| vec![None]))
}

/// A name, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    /// The names in their order.
    pub fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMore::One(name) => vec![name],
            OneOrMore::More(names) => names,
        }
    }
}

/// The rules of forward auth.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSection {
    /// The networks of the proxies whose `X-Forwarded-For` is believed.
    pub trusted: Option<Vec<Spanned<String>>>,
    /// Length of the IPv6 networks that count as one client.
    pub ipv6_prefix: Option<Spanned<i64>>,
    /// The rules, of which the first that matches decides.
    pub rules: Option<Vec<RuleEntry>>,
}

/// The requests that a rule is about, and their limit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleEntry {
    /// The methods that the rule matches; without it, all.
    pub method: Option<OneOrMore>,
    /// The pattern of the paths that the rule matches; without it, all.
    pub path: Option<Spanned<String>>,
    /// Paths match, and are counted, without regard to the case of ASCII letters.
    #[serde(default)]
    pub ignore_case: bool,
    /// The headers that a request must have, and the patterns of their values.
    #[serde(default)]
    pub header: BTreeMap<String, String>,
    /// Policies of the server, of which the first that exists rules.
    pub policy: Option<OneOrMore>,
    /// The words of `RL.TAKE` after its key, in place of policies.
    pub limit: Option<Spanned<String>>,
    /// The key, in which `{client}`, `{method}`, `{path}` and `{header.NAME}` stand for those of the request.
    pub key: Spanned<String>,
    /// The cost of a request, with the same names in braces as the key; without it, 1.
    pub cost: Option<Spanned<String>>,
    /// Charging mode.
    pub charge: Option<Charge>,
}
