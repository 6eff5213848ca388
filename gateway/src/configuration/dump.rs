//! Text form of a configuration, in the format of envoyproxy/ratelimit: a line for each limit with its path.

use super::Config;
use super::domain::{DomainRule, RuleLevel, RuleLimit, RuleNode, join, unit_of_window};
use crate::call::Rule;

impl Config {
    /// Returns a line for each limit of the domains, sorted by path.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut lines = vec![];
        for (name, domain) in &self.domains {
            push_level(&mut lines, name, &domain.root);
        }
        lines.sort();
        lines.concat()
    }
}

fn push_level(lines: &mut Vec<String>, path: &str, level: &RuleLevel) {
    let exact = level.exact.iter().map(|((key, value), node)| (join(key, value), node));
    let wildcards = level.wildcards.iter().map(|(key, pattern, node)| match key {
        Some(key) => (join(key, pattern), node),
        None => (pattern.clone(), node),
    });
    let any_value = level.any_value.iter().map(|(key, node)| (key.clone(), node));
    for (name, node) in exact.chain(wildcards).chain(any_value) {
        let path = format!("{path}.{name}");
        if let Some(rule) = &node.rule {
            lines.push(format!("{path}: {}\n", describe(node, rule)));
        }
        push_level(lines, &path, &node.children);
    }
}

/// Describes the limit of a rule. A limit that envoyproxy/ratelimit does not have is shown as in the file.
fn describe(node: &RuleNode, rule: &DomainRule) -> String {
    let limit = match &rule.limit {
        RuleLimit::Unlimited => "unit=UNKNOWN requests_per_unit=0".to_owned(),
        RuleLimit::Limited(Rule::Policies(names)) => format!("policy={}", names.join(",")),
        RuleLimit::Limited(Rule::Limits(words)) => match words.as_slice() {
            [_, requests, window, aligned] if aligned == "ALIGNED" && unit_of_window(window).is_some() => {
                let unit = unit_of_window(window).unwrap_or_default().to_ascii_uppercase();
                format!("unit={unit} requests_per_unit={requests}")
            }
            words => format!("limit={}", words.join(" ")),
        },
    };
    format!("{limit}, shadow_mode: {}, quota_mode: {}", node.flags.shadow, node.flags.quota)
}
