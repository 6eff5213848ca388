//! The limits of a domain: a tree of entries, one level for each entry of a descriptor.

use super::at;
use super::format::{DescriptorEntry, OneOrMore, RateLimitEntry, Replaces};
use crate::ask::Rule;
use crate::charge::{Charge, RuleCharge};
use crate::client_address::{self, Ipv6Prefix};
use crate::naming::{MAX_POLICY_NAME, escape_field};
use crate::template::{fits, separated};
use crate::windows;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// A domain that a file rules.
#[derive(Debug, Default)]
pub struct Domain {
    top: RuleLevel,
}

/// What may stand at one place of a descriptor.
#[derive(Debug, Default)]
struct RuleLevel {
    /// By key and value.
    exact: HashMap<(String, String), RuleNode>,
    /// By key and a pattern of the value; without a key by a pattern of `key_value`. In the file's order.
    wild: Vec<(Option<String>, String, RuleNode)>,
    /// By key alone.
    bare: HashMap<String, RuleNode>,
}

#[derive(Debug)]
struct RuleNode {
    /// The value as the file has it: `gold`, `g*`, or nothing.
    pattern: String,
    rule: Option<DomainRule>,
    below: RuleLevel,
    flags: Flags,
    metadata: Option<Arc<Map<String, Value>>>,
}

/// What holds of an entry beside its limit.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "the words of the file")]
pub struct Flags {
    /// What is over the limit is charged and passes.
    pub shadow: bool,
    /// A request is over only if all that are over are such.
    pub quota: bool,
    /// All values that a wildcard matches share one limit.
    share: bool,
    /// The metric has the whole descriptor.
    detailed: bool,
    /// The metric has this value.
    value_to_metric: bool,
}

/// A limit of the file.
#[derive(Debug)]
pub struct DomainRule {
    /// By what.
    pub bound: Bound,
    name: String,
    /// Whose place it takes.
    pub replaces: Vec<String>,
    /// Charging mode.
    pub charge: RuleCharge,
}

/// What a rule limits by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Anything passes.
    Unlimited,
    /// Limits, or policies.
    By(Rule),
}

/// What rules a descriptor.
#[derive(Debug)]
pub struct Found {
    /// By what it is limited.
    pub bound: Bound,
    /// The entries that it is counted by.
    pub counted: Vec<(String, String)>,
    /// Its name, which others may replace.
    pub name: String,
    /// Whose place it takes.
    pub replaces: Vec<String>,
    /// What else holds.
    pub flags: Flags,
    /// Charging mode.
    pub charge: RuleCharge,
    /// Metadata for Envoy.
    pub metadata: Option<Arc<Map<String, Value>>>,
    /// What it is called in the metrics.
    pub metric: Metric,
}

/// The name of a rule in the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// As the file has it: `plan_gold.user`.
    pub rule: String,
    /// With the values that came, of rules that ask for them.
    pub values: Option<String>,
    /// Whether the caller brought the limit: then no policy and no file knows of the domain.
    pub brought: bool,
}

impl Domain {
    /// Adds the descriptors of a file to the domain.
    ///
    /// # Errors
    /// What is wrong with them, and where: also a descriptor that the domain has already.
    pub fn add(&mut self, domain: &str, descriptors: Vec<DescriptorEntry>) -> Result<(), String> {
        self.top.add(domain, descriptors)
    }

    /// The rule of a descriptor. Level by level the exact value, else wildcards, else the key alone, and no way back;
    /// the rule must stand as deep as the descriptor is long. An address matches as a whole, or else by its network.
    #[must_use]
    pub fn find(&self, entries: &[(&str, &str)], prefix: Ipv6Prefix) -> Option<Found> {
        let mut level = &self.top;
        let mut path: Vec<&RuleNode> = vec![];
        for (key, value) in entries {
            let node = level.at(key, value, prefix)?;
            path.push(node);
            level = &node.below;
        }
        let last = path.last()?;
        let rule = last.rule.as_ref()?;
        let pairs = || path.iter().zip(entries);
        let shared = |node: &&RuleNode| node.flags.share && node.pattern.contains('*');
        let counted = pairs().map(|(node, (key, value))| {
            let value = if shared(node) { &node.pattern } else { *value };
            ((*key).to_owned(), value.to_owned())
        });
        let named = pairs().map(|(node, (key, _))| joined(key, &node.pattern)).collect::<Vec<_>>();
        let detailed = last.flags.detailed;
        let told = detailed || path.iter().any(|node| node.flags.value_to_metric);
        let values = pairs().map(|(node, (key, value))| {
            let shown = if shared(node) || !(detailed || node.flags.value_to_metric) { &node.pattern } else { *value };
            joined(key, shown)
        });
        Some(Found {
            bound: rule.bound.filled(entries, prefix),
            counted: counted.collect(),
            name: rule.name.clone(),
            replaces: rule.replaces.clone(),
            flags: last.flags,
            charge: rule.charge,
            metadata: last.metadata.clone(),
            metric: Metric {
                rule: named.join("."),
                values: told.then(|| values.collect::<Vec<_>>().join(".")),
                brought: false,
            },
        })
    }
}

impl RuleLevel {
    fn at(&self, key: &str, value: &str, prefix: Ipv6Prefix) -> Option<&RuleNode> {
        let valued = |value: &str| {
            let is_it = |(of, pattern, _): &&(Option<String>, String, RuleNode)| match of {
                Some(of) => of == key && fits(pattern, value.as_bytes()),
                None => fits(pattern, format!("{key}_{value}").as_bytes()),
            };
            let wild = || self.wild.iter().find(is_it).map(|(_, _, node)| node);
            self.exact.get(&(key.to_owned(), value.to_owned())).or_else(wild)
        };
        let grouped = || valued(&client_address::canonical_entry(key, value, prefix)?);
        valued(value).or_else(grouped).or_else(|| self.bare.get(key))
    }

    fn add(&mut self, path: &str, descriptors: Vec<DescriptorEntry>) -> Result<(), String> {
        for descriptor in descriptors {
            let DescriptorEntry { key: spanned, value: pattern, rate_limit, .. } = &descriptor;
            if spanned.value.is_empty() {
                return Err(at(spanned, &format!("a descriptor in {path} has no key")));
            }
            let path = format!("{path}.{}", joined(&spanned.value, pattern));
            let read = |limit| rule(limit).map_err(|told| at(spanned, &format!("{path}: {told}")));
            let rule = rate_limit.as_ref().map(read).transpose()?;
            let flags = Flags {
                shadow: descriptor.shadow_mode,
                quota: descriptor.quota_mode,
                share: descriptor.share_threshold,
                detailed: descriptor.detailed_metric,
                value_to_metric: descriptor.value_to_metric,
            };
            let twice = at(spanned, &format!("{path} is there twice"));
            let not_wild = at(spanned, &format!("{path}: share_threshold takes a value with *"));
            let (key, pattern) = (spanned.value.clone(), pattern.clone());
            let metadata = descriptor.metadata.map(Arc::new);
            let mut below = RuleLevel::default();
            below.add(&path, descriptor.descriptors.unwrap_or_default())?;
            let node = RuleNode { pattern: pattern.clone(), rule, below, flags, metadata };
            let wild = if pattern.contains('*') {
                Some((Some(key.clone()), pattern.clone()))
            } else {
                (pattern.is_empty() && key.contains('*')).then(|| (None, key.clone()))
            };
            if node.flags.share && wild.is_none() {
                return Err(not_wild);
            }
            let was_there = if let Some((of, pattern)) = wild {
                let same = self.wild.iter().any(|other| other.0 == of && other.1 == pattern);
                self.wild.push((of, pattern, node));
                same
            } else if pattern.is_empty() {
                self.bare.insert(key, node).is_some()
            } else {
                self.exact.insert((key, pattern), node).is_some()
            };
            if was_there {
                return Err(twice);
            }
        }
        Ok(())
    }
}

impl Bound {
    /// Fills in the values of entries where names of policies have a place for them: `{user}`. A name with a whole address
    /// stands before the one with its network. Names that are too long for the server then are left out, as in the chain
    /// of a descriptor without a file: no policy can have them.
    fn filled(&self, entries: &[(&str, &str)], prefix: Ipv6Prefix) -> Bound {
        let Bound::By(Rule::Policies(names)) = self else { return self.clone() };
        let filled = |name: &String, value: &dyn Fn(&str, &str) -> String| {
            entries.iter().fold(name.clone(), |name, (key, of)| name.replace(&format!("{{{key}}}"), &value(key, of)))
        };
        let whole = |_: &str, value: &str| escape_field(value.as_bytes());
        let grouped = |key: &str, value: &str| {
            client_address::canonical_entry(key, value, prefix)
                .map_or_else(|| whole(key, value), |value| whole(key, &value))
        };
        let both = names.iter().flat_map(|name| [filled(name, &whole), filled(name, &grouped)]);
        let mut names: Vec<String> = both.filter(|name| name.len() <= MAX_POLICY_NAME).collect();
        names.dedup();
        Bound::By(Rule::Policies(names))
    }
}

fn joined(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}

/// Units, their windows of the calendar, and the window of several of them: a number and its unit.
const UNITS: [(&str, &str, (u64, &str)); 7] = [
    ("second", "1s", (1, "s")),
    ("minute", "1m", (1, "m")),
    ("hour", "1h", (1, "h")),
    ("day", "1d", (1, "d")),
    ("week", "1w", (7, "d")),
    ("month", "1mo", (30, "d")),
    ("year", "1y", (365, "d")),
];

/// The limit that a file writes.
pub fn rule(limit: &RateLimitEntry) -> Result<DomainRule, String> {
    let replaces = replaced(&limit.replaces).ok_or("replaces must be a list of names: [{name: NAME}]")?;
    if replaces.contains(&limit.name) {
        return Err("a limit cannot replace itself".to_owned());
    }
    let unit = limit.unit.as_ref().map(|unit| unit.value.as_str()).unwrap_or_default();
    let known = UNITS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(unit));
    let numbered = limit.requests_per_unit.is_some() || limit.unit.is_some() || limit.unit_multiplier.is_some();
    let mut default = Charge::AllOrNone;
    let bound = match (limit.unlimited, &limit.policy, &limit.limit) {
        // Envoyproxy/ratelimit takes a unit that it does not know there.
        (true, None, None) if known.is_none() => Bound::Unlimited,
        (true, ..) => return Err("unlimited goes with no unit, policy or limit".to_owned()),
        (false, Some(policy), None) if !numbered => {
            let names = names(policy)?;
            names.iter().try_for_each(|name| separated(name))?;
            Bound::By(Rule::Policies(names))
        }
        (false, None, Some(limit)) if !numbered => Bound::By(Rule::Limits(words(&limit.value)?)),
        (false, None, None) => {
            let (_, window, (number, letter)) = known.ok_or_else(|| {
                format!("unit must be second, minute, hour, day, week, month or year, not '{}'", unit.escape_debug())
            })?;
            default = Charge::Always;
            let window = match limit.unit_multiplier {
                None | Some(1) => (*window).to_owned(),
                Some(multiplier) => format!("{}{letter}", u64::from(multiplier).saturating_mul(*number)),
            };
            let rule = aligned(limit.requests_per_unit.unwrap_or(0), &window);
            windows::checked(&rule.join(" "))
                .map_err(|_| "unit_multiplier must be at least 1, and the window at most 3650 days".to_owned())?;
            Bound::By(Rule::Limits(rule))
        }
        _ => return Err("rate_limit must have one of: unit and requests_per_unit, unlimited, policy, limit".to_owned()),
    };
    Ok(DomainRule { bound, name: limit.name.clone(), replaces, charge: RuleCharge { own: limit.charge, default } })
}

/// Returns the names of the limits that `replaces` lists, or `None` if one has no name.
fn replaced(replaces: &[Option<Replaces>]) -> Option<Vec<String>> {
    let name = |one: &Option<Replaces>| one.as_ref()?.name.clone().filter(|name| !name.is_empty());
    replaces.iter().map(name).collect()
}

/// A limit of requests in each window of the calendar.
fn aligned(requests: u32, window: &str) -> Vec<String> {
    ["FIXED".to_owned(), requests.to_string(), window.to_owned(), "ALIGNED".to_owned()].to_vec()
}

/// The names of policies, at least one.
pub fn names(policy: &OneOrMore) -> Result<Vec<String>, String> {
    let names = match policy {
        OneOrMore::One(name) => vec![name.clone()],
        OneOrMore::More(names) => names.clone(),
    };
    if names.is_empty() || names.iter().any(|name| name.is_empty() || name.len() > MAX_POLICY_NAME) {
        return Err("policy must be a name of 1 to 256 bytes, or a list of such".to_owned());
    }
    Ok(names)
}

/// The words of limits, as the server takes them.
pub fn words(text: &str) -> Result<Vec<String>, String> {
    windows::checked(text)?;
    let words: Vec<String> = text.split_ascii_whitespace().map(str::to_owned).collect();
    if words.iter().any(|word| word.eq_ignore_ascii_case("SHADOW")) {
        return Err("SHADOW is for policies: use shadow_mode".to_owned());
    }
    let needs_more = |word: &String| ["CONCURRENCY", "SKETCH"].iter().any(|name| word.eq_ignore_ascii_case(name));
    if let Some(word) = words.iter().find(|word| needs_more(word)) {
        return Err(format!("{word} is for policies: RL.POLICYSET, and policy in place of limit"));
    }
    Ok(words)
}
