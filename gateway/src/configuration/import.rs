//! What a file says, as policies: the commands that make it needless, and what only a file can say.

use super::at;
use super::domain::{DomainRule, rule};
use super::format::{DescriptorEntry, Document};
use super::{Bound, Config};
use crate::ask::Rule;
use crate::charge::Charge;
use crate::client_address::{Ipv6Prefix, canonical_entry};
use crate::naming::{EscapedDescriptor, MAX_POLICY_NAME};

/// What a file comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Names of policies and the words of their limits, in the file's order.
    pub policies: Vec<(String, String)>,
    /// What policies cannot say, each with its line.
    pub only_files: Vec<String>,
}

impl Imported {
    /// Reads one more file.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), String> {
        Config::default().add(file, text)?;
        for document in super::documents(file, text)? {
            match document {
                Document { domain: Some(domain), descriptors, .. } => {
                    let top = descriptors.unwrap_or_default();
                    ImportLevel { domain: &domain.value, file, path: vec![] }.import(&top, self);
                }
                _ => self.only_files.push(format!("{file}: http: the rules of forward auth")),
            }
        }
        Ok(())
    }

    /// The policies as lines for a command line client.
    pub fn commands(&self) -> impl Iterator<Item = String> {
        self.policies.iter().map(|(name, words)| format!("RL.POLICYSET {} {words}", quoted(name)))
    }
}

/// As a word of a command line. A name has no spaces and no control characters: those are escaped.
fn quoted(name: &str) -> String {
    if name.contains(['"', '\'', '\\']) {
        format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        name.to_owned()
    }
}

/// A key, and the value that it must have.
type KeyAndValue<'a> = (&'a str, Option<&'a str>);

/// The place of some descriptors in the tree.
struct ImportLevel<'a> {
    domain: &'a str,
    file: &'a str,
    path: Vec<KeyAndValue<'a>>,
}

impl<'a> ImportLevel<'a> {
    fn import(&self, level: &'a [DescriptorEntry], to: &mut Imported) {
        for descriptor in level {
            let DescriptorEntry { key, value, .. } = descriptor;
            let mut path = self.path.clone();
            path.push((&key.value, (!value.is_empty()).then_some(value)));
            let below = ImportLevel { path, ..*self };
            let tell = |told: &str, to: &mut Imported| {
                let told = format!("{}: {told}", below.shown());
                to.only_files.push(format!("{}: {}", self.file, at(key, &told)));
            };
            if value.contains('*') || (value.is_empty() && key.value.contains('*')) {
                tell("a wildcard, and what stands below it", to);
                continue;
            }
            if let Some(rule) = descriptor.rate_limit.as_ref().and_then(|limit| rule(limit).ok()) {
                match below.policy(descriptor, rule) {
                    Ok(policy) => to.policies.push(policy),
                    Err(why) => tell(why, to),
                }
            }
            if descriptor.detailed_metric || descriptor.value_to_metric {
                tell("a label of the metrics for each value", to);
            }
            // There is no way back from a value to the key alone in a file, and there is among policies.
            if !value.is_empty() {
                let network = canonical_entry(&key.value, value, Ipv6Prefix::default()).unwrap_or_default();
                let is_wider = |other: &&DescriptorEntry| {
                    other.key.value == key.value && (other.value.is_empty() || other.value == network)
                };
                let mut limited = level.iter().filter(is_wider).flat_map(paths);
                if limited.any(|rest| !has(descriptor, &rest)) {
                    tell("that the limits of its key without a value, or of its network, do not hold for it", to);
                }
            }
            below.import(descriptor.descriptors.as_deref().unwrap_or_default(), to);
        }
    }

    /// As in the metrics: `api.plan_gold.user`.
    fn shown(&self) -> String {
        let entry =
            |(key, value): &KeyAndValue<'_>| value.map_or_else(|| (*key).to_owned(), |value| format!("{key}_{value}"));
        let parts = std::iter::once(self.domain.to_owned()).chain(self.path.iter().map(entry));
        parts.collect::<Vec<_>>().join(".")
    }

    fn policy(&self, descriptor: &DescriptorEntry, rule: DomainRule) -> Result<(String, String), &'static str> {
        let valued = self.path.iter().take_while(|(_, value)| value.is_some()).count();
        if self.path.iter().skip(valued).any(|(_, value)| value.is_some()) {
            return Err("a value behind a key without one: put it first in the descriptor");
        }
        if !rule.replaces.is_empty() {
            return Err("replaces");
        }
        if descriptor.quota_mode {
            return Err("quota_mode");
        }
        let words = match rule.bound {
            Bound::Unlimited => return Err("unlimited"),
            Bound::By(Rule::Policies(_)) => return Err("policies of other names"),
            Bound::By(Rule::Limits(words)) => words,
        };
        let entries = self.path.iter().map(|(key, value)| (*key, value.unwrap_or_default()));
        let name = EscapedDescriptor::new(self.domain, entries).policy_name(valued);
        if name.len() > MAX_POLICY_NAME {
            return Err("a name that is too long for a policy");
        }
        let is_forced = words.iter().any(|word| word.eq_ignore_ascii_case("FORCE"));
        let words = match rule.charge.or(None) {
            // A limit in the shadow has nothing to be charged past.
            _ if descriptor.shadow_mode => with_option(&words, "SHADOW"),
            Charge::Always if !is_forced => with_option(&words, "FORCE"),
            Charge::Always | Charge::AllOrNone => words.join(" "),
            Charge::Independent => return Err("charge: independent"),
        };
        Ok((name, words))
    }
}

/// The paths below a descriptor, by keys without values, at whose ends there are limits.
fn paths(descriptor: &DescriptorEntry) -> Vec<Vec<&str>> {
    let own = descriptor.rate_limit.is_some().then(Vec::new);
    let below = descriptor.descriptors.iter().flatten().filter(|one| one.value.is_empty());
    let deeper = below.flat_map(|one| {
        paths(one).into_iter().map(|mut path| {
            path.insert(0, one.key.value.as_str());
            path
        })
    });
    own.into_iter().chain(deeper).collect()
}

/// Whether there is a limit at the end of that path.
fn has(descriptor: &DescriptorEntry, path: &[&str]) -> bool {
    let Some((key, rest)) = path.split_first() else { return descriptor.rate_limit.is_some() };
    let mut below = descriptor.descriptors.iter().flatten();
    below.any(|one| one.value.is_empty() && one.key.value == *key && has(one, rest))
}

/// Returns the words of limits with an option behind each limit.
fn with_option(words: &[String], option: &str) -> String {
    const ALGORITHMS: [&str; 5] = ["TOKENBUCKET", "LEAKYBUCKET", "FIXED", "SLIDING", "SLIDINGLOG"];
    let mut out: Vec<&str> = vec![];
    for word in words {
        let named = out.last().is_some_and(|last| last.eq_ignore_ascii_case("AS"));
        if !out.is_empty() && !named && ALGORITHMS.iter().any(|name| name.eq_ignore_ascii_case(word)) {
            out.push(option);
        }
        out.push(word);
    }
    out.push(option);
    out.join(" ")
}

#[cfg(test)]
mod tests {
    use super::{Bound, Config, EscapedDescriptor, Imported, Rule};
    use crate::client_address::Ipv6Prefix;
    use std::collections::HashMap;
    use std::fmt::Write as _;

    fn imported(text: &str) -> Imported {
        let mut imported = Imported::default();
        imported.add("f.yaml", text).expect("a right file");
        imported
    }

    #[test]
    fn rules_become_policies() {
        let told = imported(
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
            told.commands().collect::<Vec<_>>(),
            [
                "RL.POLICYSET a%20b|plan=gold|user FIXED 3 1m ALIGNED FORCE",
                "RL.POLICYSET \"a%20b|o'clock\" TOKENBUCKET 10 10 1s SHADOW FIXED 9 1d AS FIXED SHADOW",
                "RL.POLICYSET a%20b|always TOKENBUCKET 10 10 1s FORCE FIXED 9 1d FORCE",
                "RL.POLICYSET a%20b|fits FIXED 3 1m ALIGNED",
            ]
        );
        assert_eq!(told.only_files, [""; 0]);
    }

    #[test]
    fn what_only_a_file_can_say_is_told_with_its_line() {
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
            (format!("key: a, value: b}}\n  - {{key: a, {limit}"), "do not hold for it"),
            (
                format!(
                    "key: remote_address, value: '2001:db8::1'}}\n  - {{key: remote_address, value: '2001:db8::/64', {limit}"
                ),
                "or of its network, do not hold for it",
            ),
        ] {
            let told = imported(&format!("domain: api\ndescriptors:\n  - {{{rule}}}\n")).only_files;
            assert_eq!(told.len(), 1, "{rule} {told:?}");
            assert!(told[0].starts_with("f.yaml: line 3: api.") && told[0].contains(expected), "{told:?}");
        }
        assert_eq!(imported("http: {rules: []}").only_files.len(), 1);
    }

    /// A tree of descriptors, different for each seed.
    fn descriptors(seed: &mut u64, depth: usize) -> String {
        let mut next = |most: u64| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 33) % most
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
                let _ = write!(out, ", descriptors: [{}]", descriptors(&mut inner, depth + 1));
            }
            out.push_str("}, ");
        }
        out
    }

    #[test]
    fn the_policies_of_a_file_decide_as_the_file() {
        let pairs: Vec<(&str, &str)> = vec![("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("b", "2")];
        let mut asked: Vec<Vec<(&str, &str)>> = pairs.iter().map(|pair| vec![*pair]).collect();
        for place in 0.. {
            let Some(short) = asked.get(place).cloned() else { break };
            if short.len() < 3 {
                asked.extend(pairs.iter().map(|pair| [short.as_slice(), &[*pair]].concat()));
            }
        }
        let mut compared = 0;
        for mut seed in 0..400 {
            let text = format!("domain: api\ndescriptors: [{}]\n", descriptors(&mut seed, 1));
            let told = imported(&text);
            if !told.only_files.is_empty() {
                continue;
            }
            let mut config = Config::default();
            config.add("f.yaml", &text).expect("a right file");
            let policies: HashMap<&str, &str> =
                told.policies.iter().map(|(name, words)| (name.as_str(), words.as_str())).collect();
            for entries in &asked {
                let by_file =
                    config.domains["api"].find(entries, Ipv6Prefix::default()).map(|found| match found.bound {
                        Bound::By(Rule::Limits(words)) => words.join(" "),
                        other => panic!("{other:?}"),
                    });
                let names = EscapedDescriptor::new("api", entries.iter().copied()).policy_names();
                let by_policy = names.iter().find_map(|name| policies.get(name.as_str()));
                let by_file = by_file.map(|words| words + " FORCE");
                assert_eq!(by_file.as_deref(), by_policy.copied(), "{text} {entries:?}");
            }
            compared += usize::from(policies.len() > 2);
        }
        assert!(compared > 10, "only {compared} files said nothing but policies");
    }
}
