//! Conversion of a file to policies: the commands that create them, and the rules that policies cannot express.

use super::at_line;
use super::domain::{DomainRule, parse_rule};
use super::format::{DescriptorEntry, Document};
use super::{Config, RuleLimit};
use crate::call::Rule;
use crate::charge::ChargingMode;
use crate::client_address::{Ipv6Prefix, canonical_entry};
use crate::naming::{EscapedDescriptor, MAX_POLICY_NAME};

/// Policies of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ImportedPolicies {
    /// Names of policies with their limits, in the order of the file.
    pub policies: Vec<(String, String)>,
    /// Rules that policies cannot express, with their lines.
    pub unsupported: Vec<String>,
}

impl ImportedPolicies {
    /// Adds the policies of a file.
    ///
    /// # Errors
    /// If the file is malformed: its first error.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), String> {
        Config::default().add(file, text)?;
        for document in super::parse_documents(file, text)? {
            match document {
                Document { domain: Some(domain), descriptors, .. } => {
                    let descriptors = descriptors.unwrap_or_default();
                    ImportLevel { domain: &domain.value, file, path: vec![] }.import(&descriptors, self);
                }
                _ => self.unsupported.push(format!("{file}: http: the rules of forward auth")),
            }
        }
        Ok(())
    }

    /// Returns the commands that create the policies, as lines for a command-line client.
    pub fn commands(&self) -> impl Iterator<Item = String> {
        self.policies.iter().map(|(name, words)| format!("RL.POLICYSET {} {words}", quote(name)))
    }
}

/// Quotes a name as a word of a command line. Names contain neither spaces nor control characters, because those are
/// escaped.
fn quote(name: &str) -> String {
    if name.contains(['"', '\'', '\\']) {
        format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        name.to_owned()
    }
}

/// Key of an entry, and its value if the file has one.
type KeyAndValue<'a> = (&'a str, Option<&'a str>);

/// Position of descriptors in the tree of a domain.
struct ImportLevel<'a> {
    domain: &'a str,
    file: &'a str,
    path: Vec<KeyAndValue<'a>>,
}

impl<'a> ImportLevel<'a> {
    /// Imports the rules of the descriptors at this position and below it.
    fn import(&self, level: &'a [DescriptorEntry], imported: &mut ImportedPolicies) {
        for descriptor in level {
            let DescriptorEntry { key, value, .. } = descriptor;
            let mut path = self.path.clone();
            path.push((&key.value, (!value.is_empty()).then_some(value)));
            let child = ImportLevel { path, ..*self };
            let report = |unsupported: &str, imported: &mut ImportedPolicies| {
                let message = format!("{}: {unsupported}", child.metric_name());
                imported.unsupported.push(format!("{}: {}", self.file, at_line(key, &message)));
            };
            if value.contains('*') || (value.is_empty() && key.value.contains('*')) {
                report("a wildcard, and what stands below it", imported);
                continue;
            }
            if let Some(rule) = descriptor.rate_limit.as_ref().and_then(|limit| parse_rule(limit).ok()) {
                match child.policy(descriptor, rule) {
                    Ok(policy) => imported.policies.push(policy),
                    Err(why) => report(why, imported),
                }
            }
            if descriptor.detailed_metric || descriptor.value_to_metric {
                report("a label of the metrics for each value", imported);
            }
            // A search in the file does not fall back from a value to its key without a value. A search by the names
            // of policies does.
            if !value.is_empty() {
                let network = canonical_entry(&key.value, value, Ipv6Prefix::default()).unwrap_or_default();
                let is_wider = |other: &&DescriptorEntry| {
                    other.key.value == key.value && (other.value.is_empty() || other.value == network)
                };
                let mut paths = level.iter().filter(is_wider).flat_map(limited_paths);
                if paths.any(|path| !has_limit(descriptor, &path)) {
                    report(
                        "that the limits of its key without a value, or of its network, do not hold for it",
                        imported,
                    );
                }
            }
            child.import(descriptor.descriptors.as_deref().unwrap_or_default(), imported);
        }
    }

    /// Returns the path of the rule as in metrics: `api.plan_gold.user`.
    fn metric_name(&self) -> String {
        let entry =
            |(key, value): &KeyAndValue<'_>| value.map_or_else(|| (*key).to_owned(), |value| format!("{key}_{value}"));
        let parts = std::iter::once(self.domain.to_owned()).chain(self.path.iter().map(entry));
        parts.collect::<Vec<_>>().join(".")
    }

    /// Returns the name and the limits of the policy for a rule, or the reason why there is none.
    fn policy(&self, descriptor: &DescriptorEntry, rule: DomainRule) -> Result<(String, String), &'static str> {
        let is_in_network = |(key, value): &KeyAndValue<'_>| {
            value.is_some_and(|value| canonical_entry(key, value, Ipv6Prefix::default()).is_some())
        };
        if self.path.iter().any(is_in_network) {
            return Err("a count of its own for an address that policies count with its network");
        }
        let value_count = self.path.iter().take_while(|(_, value)| value.is_some()).count();
        if self.path.iter().skip(value_count).any(|(_, value)| value.is_some()) {
            return Err("a value behind a key without one: put it first in the descriptor");
        }
        if !rule.replaces.is_empty() {
            return Err("replaces");
        }
        if descriptor.quota_mode {
            return Err("quota_mode");
        }
        let words = match rule.limit {
            RuleLimit::Unlimited => return Err("unlimited"),
            RuleLimit::Limited(Rule::Policies(_)) => return Err("policies of other names"),
            RuleLimit::Limited(Rule::Limits(words)) => words,
        };
        let entries = self.path.iter().map(|(key, value)| (*key, value.unwrap_or_default()));
        let name = EscapedDescriptor::new(self.domain, entries).policy_name(value_count);
        if name.len() > MAX_POLICY_NAME {
            return Err("a name that is too long for a policy");
        }
        let is_forced = words.iter().any(|word| word.eq_ignore_ascii_case("FORCE"));
        let words = match rule.charge.resolve(None) {
            // A limit in shadow mode never denies, so that FORCE has no effect on it.
            _ if descriptor.shadow_mode => with_option(&words, "SHADOW"),
            ChargingMode::Always if !is_forced => with_option(&words, "FORCE"),
            ChargingMode::Always | ChargingMode::AllOrNone => words.join(" "),
            ChargingMode::Independent => return Err("charge: independent"),
        };
        Ok((name, words))
    }
}

/// Returns the paths below a descriptor that end with a limit and consist of keys without values.
fn limited_paths(descriptor: &DescriptorEntry) -> Vec<Vec<&str>> {
    let empty_path = descriptor.rate_limit.is_some().then(Vec::new);
    let children = descriptor.descriptors.iter().flatten().filter(|child| child.value.is_empty());
    let paths_of_children = children.flat_map(|child| {
        limited_paths(child).into_iter().map(|mut path| {
            path.insert(0, child.key.value.as_str());
            path
        })
    });
    empty_path.into_iter().chain(paths_of_children).collect()
}

/// Returns `true` if this path of keys without values exists below a descriptor and ends with a limit.
fn has_limit(descriptor: &DescriptorEntry, path: &[&str]) -> bool {
    let Some((key, rest)) = path.split_first() else { return descriptor.rate_limit.is_some() };
    let mut children = descriptor.descriptors.iter().flatten();
    children.any(|child| child.value.is_empty() && child.key.value == *key && has_limit(child, rest))
}

/// Appends an option to each limit.
fn with_option(words: &[String], option: &str) -> String {
    const ALGORITHMS: [&str; 5] = ["TOKENBUCKET", "LEAKYBUCKET", "FIXED", "SLIDING", "SLIDINGLOG"];
    let mut out: Vec<&str> = vec![];
    for word in words {
        let is_name = out.last().is_some_and(|last| last.eq_ignore_ascii_case("AS"));
        if !out.is_empty() && !is_name && ALGORITHMS.iter().any(|name| name.eq_ignore_ascii_case(word)) {
            out.push(option);
        }
        out.push(word);
    }
    out.push(option);
    out.join(" ")
}

#[cfg(test)]
mod tests {
    use super::{Config, EscapedDescriptor, ImportedPolicies, Rule, RuleLimit};
    use crate::client_address::Ipv6Prefix;
    use std::collections::HashMap;
    use std::fmt::Write as _;

    fn import(text: &str) -> ImportedPolicies {
        let mut imported = ImportedPolicies::default();
        imported.add("f.yaml", text).expect("a valid file");
        imported
    }

    #[test]
    fn rules_become_policies() {
        let imported = import(
            "
domain: a b
descriptors:
  - key: plan
    value: gold
    descriptors:
      - {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: o'clock, rate_limit: {limit: TOKENBUCKET 10 10 1s FIXED 9 1d AS FIXED}, shadow_mode: true}
  - {key: always, rate_limit: {limit: TOKENBUCKET 10 10 1s FIXED 9 1d, charge: always}}
  - {key: fits, rate_limit: {unit: minute, requests_per_unit: 3, charge: all-or-none}}
",
        );
        assert_eq!(
            imported.commands().collect::<Vec<_>>(),
            [
                "RL.POLICYSET a%20b|plan=gold|user FIXED 3 1m ALIGNED FORCE",
                "RL.POLICYSET \"a%20b|o'clock\" TOKENBUCKET 10 10 1s SHADOW FIXED 9 1d AS FIXED SHADOW",
                "RL.POLICYSET a%20b|always TOKENBUCKET 10 10 1s FORCE FIXED 9 1d FORCE",
                "RL.POLICYSET a%20b|fits FIXED 3 1m ALIGNED",
            ]
        );
        assert_eq!(imported.unsupported, [""; 0]);
    }

    #[test]
    fn unsupported_rule_is_reported_with_its_line() {
        let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
        for (rule, expected) in [
            (format!("key: a, value: 'b*', {limit}"), "a wildcard"),
            (format!("key: a, descriptors: [{{key: b, value: c, {limit}}}]"), "a value behind a key"),
            (format!("key: a, quota_mode: true, {limit}"), "quota_mode"),
            (format!("key: a, {}", limit.replace('}', ", charge: independent}")), "charge: independent"),
            (format!("key: a, detailed_metric: true, {limit}"), "a label of the metrics"),
            (format!("key: {}, {limit}", "a".repeat(300)), "too long"),
            ("key: a, rate_limit: {unlimited: true}".to_owned(), "unlimited"),
            ("key: a, rate_limit: {policy: b}".to_owned(), "policies of other names"),
            (format!("key: a, {}", limit.replace('}', ", replaces: [{name: b}]}")), "replaces"),
            (format!("key: remote_address, value: '2001:db8::1', {limit}"), "a count of its own"),
            (format!("key: a, value: b}}\n  - {{key: a, {limit}"), "do not hold for it"),
            (
                format!(
                    "key: remote_address, value: '2001:db8::1'}}\n  - {{key: remote_address, value: '2001:db8::/64', {limit}"
                ),
                "or of its network, do not hold for it",
            ),
        ] {
            let unsupported = import(&format!("domain: api\ndescriptors:\n  - {{{rule}}}\n")).unsupported;
            assert_eq!(unsupported.len(), 1, "{rule} {unsupported:?}");
            assert!(
                unsupported[0].starts_with("f.yaml: line 3: api.") && unsupported[0].contains(expected),
                "{unsupported:?}"
            );
        }
        assert_eq!(import("http: {rules: []}").unsupported.len(), 1);
    }

    /// Returns a random tree of descriptors.
    fn random_descriptors(seed: &mut u64, depth: usize) -> String {
        let mut next = |limit: u64| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 33) % limit
        };
        let mut out = String::new();
        for entry in ["key: a", "key: b", "key: a, value: 1", "key: a, value: 2"] {
            if next(3) == 0 {
                continue;
            }
            let _ = write!(out, "{{{entry}");
            if next(3) > 0 {
                let _ = write!(out, ", rate_limit: {{unit: day, requests_per_unit: {}}}", next(1000));
            }
            if depth < 3 && next(2) == 0 {
                let mut inner = next(u64::from(u32::MAX));
                let _ = write!(out, ", descriptors: [{}]", random_descriptors(&mut inner, depth + 1));
            }
            out.push_str("}, ");
        }
        out
    }

    #[test]
    fn imported_policies_match_like_the_file() {
        let pairs: Vec<(&str, &str)> = vec![("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("b", "2")];
        let mut requests: Vec<Vec<(&str, &str)>> = pairs.iter().map(|pair| vec![*pair]).collect();
        for index in 0.. {
            let Some(shorter) = requests.get(index).cloned() else { break };
            if shorter.len() < 3 {
                requests.extend(pairs.iter().map(|pair| [shorter.as_slice(), &[*pair]].concat()));
            }
        }
        let mut compared_files = 0;
        for mut seed in 0..400 {
            let text = format!("domain: api\ndescriptors: [{}]\n", random_descriptors(&mut seed, 1));
            let imported = import(&text);
            if !imported.unsupported.is_empty() {
                continue;
            }
            let mut config = Config::default();
            config.add("f.yaml", &text).expect("a valid file");
            let policies: HashMap<&str, &str> =
                imported.policies.iter().map(|(name, words)| (name.as_str(), words.as_str())).collect();
            for entries in &requests {
                let by_file =
                    config.domains["api"].find(entries, Ipv6Prefix::default()).map(|matched| match matched.limit {
                        RuleLimit::Limited(Rule::Limits(words)) => words.join(" "),
                        other => panic!("{other:?}"),
                    });
                let names = EscapedDescriptor::new("api", entries.iter().copied()).policy_names();
                let by_policy = names.iter().find_map(|name| policies.get(name.as_str()));
                let by_file = by_file.map(|words| words + " FORCE");
                assert_eq!(by_file.as_deref(), by_policy.copied(), "{text} {entries:?}");
            }
            compared_files += usize::from(policies.len() > 2);
        }
        assert!(compared_files > 10, "only {compared_files} files were imported completely");
    }
}
