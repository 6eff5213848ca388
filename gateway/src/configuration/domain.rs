//! Rules of a domain: a tree with one level for each entry of a descriptor.

use super::at_line;
use super::format::{DescriptorEntry, OneOrMore, RateLimitEntry, Replaces};
use crate::call::Rule;
use crate::charge::{ChargingMode, RuleChargingMode};
use crate::client_address::{self, Ipv6Prefix};
use crate::limit::check_limits;
use crate::naming::{MAX_POLICY_NAME, escape_field};
use crate::template::{check_separators, matches_wildcard};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// Rules of a domain.
#[derive(Debug, Default)]
pub struct Domain {
    pub(super) root: RuleLevel,
}

/// Rules for the entry of a descriptor at one depth of the tree.
#[derive(Debug, Default)]
pub(super) struct RuleLevel {
    /// Rules by key and value.
    pub(super) exact: HashMap<(String, String), RuleNode>,
    /// Rules with a wildcard, in the order of the file: their key, the pattern of their value, and their node. Without
    /// a key, the pattern matches `key_value`.
    pub(super) wildcards: Vec<(Option<String>, String, RuleNode)>,
    /// Rules for all values of a key.
    pub(super) any_value: HashMap<String, RuleNode>,
}

/// Node of the tree of rules.
#[derive(Debug)]
pub(super) struct RuleNode {
    /// Value of the entry in the file: `gold`, `g*`, or empty for every value.
    pattern: String,
    pub(super) rule: Option<DomainRule>,
    pub(super) children: RuleLevel,
    pub(super) flags: RuleFlags,
    metadata: Option<Arc<Map<String, Value>>>,
}

/// Options of an entry, without its limit.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "the options of the file")]
pub struct RuleFlags {
    /// Shadow mode: denials are counted but not enforced.
    pub shadow: bool,
    /// Quota mode: the limit denies only if all quotas of the request are exceeded.
    pub quota: bool,
    /// `true` if all values that a wildcard matches share one limit.
    shares_limit: bool,
    /// `true` if the metric has a label with the whole descriptor.
    detailed_metric: bool,
    /// `true` if the metric has a label with the value of this entry.
    value_to_metric: bool,
}

/// Rule of a domain.
#[derive(Debug)]
pub struct DomainRule {
    /// Limit of the rule.
    pub limit: RuleLimit,
    /// Name by which other rules replace this rule, or empty.
    name: String,
    /// Names of the rules that this rule replaces.
    pub replaces: Vec<String>,
    /// Charging mode.
    pub charge: RuleChargingMode,
}

/// Limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleLimit {
    /// All requests pass.
    Unlimited,
    /// Limits or policies apply.
    Limited(Rule),
}

/// Rule that matches a descriptor.
#[derive(Debug)]
pub struct MatchedRule {
    /// Limit of the rule, with the values of the descriptor filled in.
    pub limit: RuleLimit,
    /// Keys and values of the entries that form the key on the server.
    pub key_entries: Vec<(String, String)>,
    /// Name by which other rules replace this rule, or empty.
    pub name: String,
    /// Names of the rules that this rule replaces.
    pub replaces: Vec<String>,
    /// Options of the last entry.
    pub flags: RuleFlags,
    /// Charging mode.
    pub charge: RuleChargingMode,
    /// Metadata for Envoy.
    pub metadata: Option<Arc<Map<String, Value>>>,
    /// Name of the rule in metrics.
    pub metric: MetricName,
}

/// Name of a rule in metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricName {
    /// Path of the rule in the file, such as `plan_gold.user`.
    pub rule: String,
    /// Path with the values of the descriptor, if the rule reports them.
    pub values: Option<String>,
    /// `true` if the descriptor itself contained the limit, so that the configuration may lack the domain.
    pub is_override: bool,
}

impl Domain {
    /// Adds the descriptors of a file to the domain.
    ///
    /// # Errors
    /// If a descriptor is malformed, or if the domain already has it.
    pub fn add(&mut self, domain: &str, descriptors: Vec<DescriptorEntry>) -> Result<(), String> {
        self.root.add(domain, descriptors)
    }

    /// Returns the rule that matches a descriptor.
    ///
    /// At each level, an exact value precedes wildcards, which precede the key without a value; an address precedes its
    /// network. The search does not backtrack, and the rule must have as many entries as the descriptor. `prefix` is
    /// the length of the networks of IPv6 addresses.
    #[must_use]
    pub fn find(&self, entries: &[(&str, &str)], prefix: Ipv6Prefix) -> Option<MatchedRule> {
        let mut level = &self.root;
        let mut path: Vec<&RuleNode> = vec![];
        for (key, value) in entries {
            let node = level.find(key, value, prefix)?;
            path.push(node);
            level = &node.children;
        }
        let last = path.last()?;
        let rule = last.rule.as_ref()?;
        let nodes_and_entries = || path.iter().zip(entries);
        let is_shared = |node: &&RuleNode| node.flags.shares_limit && node.pattern.contains('*');
        let key_entries = nodes_and_entries().map(|(node, (key, value))| {
            let network = || client_address::canonical_entry(key, value, prefix);
            let value = match node {
                node if is_shared(node) => node.pattern.clone(),
                // The usage of an address or a network that a rule names is counted separately.
                node if node.pattern == *value => (*value).to_owned(),
                _ => network().unwrap_or_else(|| (*value).to_owned()),
            };
            ((*key).to_owned(), value)
        });
        let rule_path = nodes_and_entries().map(|(node, (key, _))| join(key, &node.pattern)).collect::<Vec<_>>();
        let is_detailed = last.flags.detailed_metric;
        let has_values = is_detailed || path.iter().any(|node| node.flags.value_to_metric);
        let values = nodes_and_entries().map(|(node, (key, value))| {
            let metric_value =
                if is_shared(node) || !(is_detailed || node.flags.value_to_metric) { &node.pattern } else { *value };
            join(key, metric_value)
        });
        Some(MatchedRule {
            limit: rule.limit.fill(entries, prefix),
            key_entries: key_entries.collect(),
            name: rule.name.clone(),
            replaces: rule.replaces.clone(),
            flags: last.flags,
            charge: rule.charge,
            metadata: last.metadata.clone(),
            metric: MetricName {
                rule: rule_path.join("."),
                values: has_values.then(|| values.collect::<Vec<_>>().join(".")),
                is_override: false,
            },
        })
    }
}

impl RuleLevel {
    /// Returns the node that matches an entry.
    fn find(&self, key: &str, value: &str, prefix: Ipv6Prefix) -> Option<&RuleNode> {
        let by_value = |value: &str| {
            let matches = |(wildcard_key, pattern, _): &&(Option<String>, String, RuleNode)| match wildcard_key {
                Some(wildcard_key) => wildcard_key == key && matches_wildcard(pattern, value.as_bytes()),
                None => matches_wildcard(pattern, format!("{key}_{value}").as_bytes()),
            };
            let by_wildcard = || self.wildcards.iter().find(matches).map(|(_, _, node)| node);
            self.exact.get(&(key.to_owned(), value.to_owned())).or_else(by_wildcard)
        };
        let by_network = || by_value(&client_address::canonical_entry(key, value, prefix)?);
        by_value(value).or_else(by_network).or_else(|| self.any_value.get(key))
    }

    fn add(&mut self, path: &str, descriptors: Vec<DescriptorEntry>) -> Result<(), String> {
        for descriptor in descriptors {
            let DescriptorEntry { key: spanned, value: pattern, rate_limit, .. } = &descriptor;
            if spanned.value.is_empty() {
                return Err(at_line(spanned, &format!("a descriptor in {path} has no key")));
            }
            let path = format!("{path}.{}", join(&spanned.value, pattern));
            let parse = |limit| parse_rule(limit).map_err(|error| at_line(spanned, &format!("{path}: {error}")));
            let rule = rate_limit.as_ref().map(parse).transpose()?;
            let flags = RuleFlags {
                shadow: descriptor.shadow_mode,
                quota: descriptor.quota_mode,
                shares_limit: descriptor.share_threshold,
                detailed_metric: descriptor.detailed_metric,
                value_to_metric: descriptor.value_to_metric,
            };
            let duplicate = at_line(spanned, &format!("{path} is there twice"));
            let no_wildcard = at_line(spanned, &format!("{path}: share_threshold takes a value with *"));
            let (key, pattern) = (spanned.value.clone(), pattern.clone());
            let metadata = descriptor.metadata.map(Arc::new);
            let mut children = RuleLevel::default();
            children.add(&path, descriptor.descriptors.unwrap_or_default())?;
            let node = RuleNode { pattern: pattern.clone(), rule, children, flags, metadata };
            let wildcard = if pattern.contains('*') {
                Some((Some(key.clone()), pattern.clone()))
            } else {
                (pattern.is_empty() && key.contains('*')).then(|| (None, key.clone()))
            };
            if node.flags.shares_limit && wildcard.is_none() {
                return Err(no_wildcard);
            }
            let is_duplicate = if let Some((key, pattern)) = wildcard {
                let mut known_wildcards = self.wildcards.iter();
                let is_known = known_wildcards.any(|(known_key, known, _)| *known_key == key && *known == pattern);
                self.wildcards.push((key, pattern, node));
                is_known
            } else if pattern.is_empty() {
                self.any_value.insert(key, node).is_some()
            } else {
                self.exact.insert((key, pattern), node).is_some()
            };
            if is_duplicate {
                return Err(duplicate);
            }
        }
        Ok(())
    }
}

impl RuleLimit {
    /// Replaces fields such as `{user}` in names of policies by the values of entries. A name with an address precedes
    /// the name with its network. Names that become too long for a policy are left out.
    fn fill(&self, entries: &[(&str, &str)], prefix: Ipv6Prefix) -> RuleLimit {
        let RuleLimit::Limited(Rule::Policies(names)) = self else { return self.clone() };
        let fill = |name: &String, value: &dyn Fn(&str, &str) -> String| {
            entries
                .iter()
                .fold(name.clone(), |name, (key, entry)| name.replace(&format!("{{{key}}}"), &value(key, entry)))
        };
        let by_value = |_: &str, value: &str| escape_field(value.as_bytes());
        let by_network = |key: &str, value: &str| {
            client_address::canonical_entry(key, value, prefix)
                .map_or_else(|| by_value(key, value), |network| by_value(key, &network))
        };
        let filled = names.iter().flat_map(|name| [fill(name, &by_value), fill(name, &by_network)]);
        let mut names: Vec<String> = filled.filter(|name| name.len() <= MAX_POLICY_NAME).collect();
        names.dedup();
        RuleLimit::Limited(Rule::Policies(names))
    }
}

/// Returns the name of an entry in paths: `plan_gold`, or `plan` without a value.
pub(super) fn join(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}

/// Names of units, each with the calendar window of one unit, and with the factor and the suffix for a window of
/// several units.
const UNITS: [(&str, &str, (u64, &str)); 7] = [
    ("second", "1s", (1, "s")),
    ("minute", "1m", (1, "m")),
    ("hour", "1h", (1, "h")),
    ("day", "1d", (1, "d")),
    ("week", "1w", (7, "d")),
    ("month", "1mo", (30, "d")),
    ("year", "1y", (365, "d")),
];

/// Returns the name of the unit with this calendar window, or `None` for any other window.
pub(super) fn unit_of_window(window: &str) -> Option<&'static str> {
    UNITS.iter().find(|(_, unit_window, _)| *unit_window == window).map(|(name, ..)| *name)
}

/// Parses the `rate_limit` of a descriptor.
///
/// # Errors
/// If an option is invalid, or if options exclude each other.
pub fn parse_rule(limit: &RateLimitEntry) -> Result<DomainRule, String> {
    let replaces = replaced_names(&limit.replaces).ok_or("replaces must be a list of names: [{name: NAME}]")?;
    if replaces.contains(&limit.name) {
        return Err("a limit cannot replace itself".to_owned());
    }
    let unit = limit.unit.as_ref().map(|unit| unit.value.as_str()).unwrap_or_default();
    let known_unit = UNITS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(unit));
    let has_unit = limit.requests_per_unit.is_some() || limit.unit.is_some() || limit.unit_multiplier.is_some();
    let mut default = ChargingMode::AllOrNone;
    let rule_limit = match (limit.unlimited, &limit.policy, &limit.limit) {
        // Like envoyproxy/ratelimit, accept an unknown unit beside `unlimited`.
        (true, None, None) if known_unit.is_none() => RuleLimit::Unlimited,
        (true, ..) => return Err("unlimited goes with no unit, policy or limit".to_owned()),
        (false, Some(policy), None) if !has_unit => {
            let names = policy_names(policy)?;
            names.iter().try_for_each(|name| check_separators(name))?;
            RuleLimit::Limited(Rule::Policies(names))
        }
        (false, None, Some(limit)) if !has_unit => RuleLimit::Limited(Rule::Limits(limit_words(&limit.value)?)),
        (false, None, None) => {
            let (_, window, (factor, suffix)) = known_unit.ok_or_else(|| {
                format!("unit must be second, minute, hour, day, week, month or year, not '{}'", unit.escape_debug())
            })?;
            default = ChargingMode::Always;
            let window = match limit.unit_multiplier {
                None | Some(1) => (*window).to_owned(),
                Some(multiplier) => format!("{}{suffix}", u64::from(multiplier).saturating_mul(*factor)),
            };
            let words = aligned_window(limit.requests_per_unit.unwrap_or(0), &window);
            check_limits(&words.join(" "))
                .map_err(|_| "unit_multiplier must be at least 1, and the window at most 3650 days".to_owned())?;
            RuleLimit::Limited(Rule::Limits(words))
        }
        _ => return Err("rate_limit must have one of: unit and requests_per_unit, unlimited, policy, limit".to_owned()),
    };
    let charge = RuleChargingMode { explicit: limit.charge, default };
    Ok(DomainRule { limit: rule_limit, name: limit.name.clone(), replaces, charge })
}

/// Returns the names in the list `replaces`, or `None` if an element has no name.
fn replaced_names(replaces: &[Option<Replaces>]) -> Option<Vec<String>> {
    let name = |element: &Option<Replaces>| element.as_ref()?.name.clone().filter(|name| !name.is_empty());
    replaces.iter().map(name).collect()
}

/// Returns the arguments of `RL.TAKE` for a limit of requests in each calendar window.
fn aligned_window(requests: u32, window: &str) -> Vec<String> {
    ["FIXED".to_owned(), requests.to_string(), window.to_owned(), "ALIGNED".to_owned()].to_vec()
}

/// Returns the names of policies, at least one.
///
/// # Errors
/// If there is none, or if one is empty or too long.
pub fn policy_names(policy: &OneOrMore) -> Result<Vec<String>, String> {
    let names = match policy {
        OneOrMore::One(name) => vec![name.clone()],
        OneOrMore::More(names) => names.clone(),
    };
    if names.is_empty() || names.iter().any(|name| name.is_empty() || name.len() > MAX_POLICY_NAME) {
        return Err("policy must be a name of 1 to 256 bytes, or a list of such".to_owned());
    }
    Ok(names)
}

/// Splits limits into words.
///
/// # Errors
/// If the server would reject the limits, or if they are only possible in policies.
pub fn limit_words(text: &str) -> Result<Vec<String>, String> {
    check_limits(text)?;
    let words: Vec<String> = text.split_ascii_whitespace().map(str::to_owned).collect();
    if words.iter().any(|word| word.eq_ignore_ascii_case("SHADOW")) {
        return Err("SHADOW is for policies: use shadow_mode".to_owned());
    }
    let is_for_policies = |word: &String| ["CONCURRENCY", "SKETCH"].iter().any(|name| word.eq_ignore_ascii_case(name));
    if let Some(word) = words.iter().find(|word| is_for_policies(word)) {
        return Err(format!("{word} is for policies: RL.POLICYSET, and policy in place of limit"));
    }
    Ok(words)
}
