//! Resolution of Envoy's requests, which finds the rule or the policies that apply to each descriptor.

use crate::call::{Call, Operation, Rule};
use crate::charge::{ChargingMode, RuleChargingMode};
use crate::client_address::Ipv6Prefix;
use crate::configuration::{Config, Domain, MatchedRule, MetricName, RuleLimit};
use crate::evaluation::{RequestPart, RuleCall};
use crate::naming::{self, EscapedDescriptor};
use crate::proto::{RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitUnit};
use ratelimit_core::Amount;
use std::collections::HashSet;
use std::sync::Arc;

/// Key of a descriptor entry whose value is the idempotency key of the call.
pub const ID_ENTRY: &str = "rl.id";
/// Key of a descriptor entry that makes the call a settlement. Together with [`ID_ENTRY`], the call corrects the cost
/// of the earlier call with that idempotency key. Otherwise, it charges units that were used already.
pub const SETTLE_ENTRY: &str = "rl.settle";
/// Maximum number of descriptors in a request. Envoy Gateway allows as many rules for a route.
const MAX_DESCRIPTORS: usize = 256;
/// Maximum number of entries in a descriptor.
const MAX_ENTRIES: usize = 64;
/// Maximum cost that the server accepts.
const MAX_HITS: u64 = 1_000_000_000_000;

/// Error of a malformed request.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The request has no domain or no descriptor, which envoyproxy/ratelimit answers with UNKNOWN.
    Empty(&'static str),
    /// The request has too many descriptors or entries.
    TooLarge(String),
}

/// Settings with which requests are resolved to calls.
#[derive(Clone, Debug)]
pub struct RequestSettings {
    /// Lifetime of idempotency keys, in the server's syntax of durations.
    pub id_lifetime: Arc<str>,
    /// Length of the IPv6 networks that count as one client.
    pub ipv6_prefix: Ipv6Prefix,
    /// Charging mode of rules without one.
    pub charge: Option<ChargingMode>,
}

/// Resolves each descriptor of a request, in order.
///
/// # Errors
/// If the request is malformed.
pub fn resolve(
    request: &RateLimitRequest,
    config: &Config,
    settings: &RequestSettings,
) -> Result<Vec<RequestPart>, RequestError> {
    let RateLimitRequest { domain, descriptors, hits_addend } = request;
    if domain.is_empty() {
        return Err(RequestError::Empty("the domain must not be empty"));
    }
    if descriptors.is_empty() {
        return Err(RequestError::Empty("a request must have a descriptor"));
    }
    if descriptors.len() > MAX_DESCRIPTORS {
        let message = format!("a request must have 1 to {MAX_DESCRIPTORS} descriptors, not {}", descriptors.len());
        return Err(RequestError::TooLarge(message));
    }
    let resolver =
        Resolver { domain, rules: config.domains.get(domain), covers_domains: config.covers_domains, settings };
    // A field without presence in proto3: 0 is an absent value, whose default is 1.
    let hits = u64::from((*hits_addend).max(1));
    let mut parts = vec![];
    let (mut rule_names, mut replaced_names): (Vec<Option<String>>, HashSet<String>) = (vec![], HashSet::new());
    for descriptor in descriptors {
        let descriptor = ParsedDescriptor::new(descriptor, settings)?;
        // `None`: policies or an override apply. `Some(None)`: no rule of the domain matches.
        let matched = match resolver.rules {
            Some(rules) if descriptor.limit.is_none() => Some(rules.find(&descriptor.entries, settings.ipv6_prefix)),
            _ => None,
        };
        rule_names.push(matched.as_ref().and_then(|rule| rule.as_ref().map(|rule| rule.name.clone())));
        if let Some(Some(rule)) = &matched {
            replaced_names.extend(rule.replaces.iter().cloned());
        }
        parts.push(match matched {
            Some(None) => RequestPart::NoLimit,
            Some(Some(rule)) => resolver.apply_rule(rule, &descriptor, hits),
            None => resolver.apply_policies(&descriptor, hits),
        });
    }
    // A matched rule replaces rules of earlier and of later descriptors.
    for (part, name) in parts.iter_mut().zip(&rule_names) {
        if name.as_ref().is_some_and(|name| !name.is_empty() && replaced_names.contains(name)) {
            *part = RequestPart::NoLimit;
        }
    }
    Ok(parts)
}

/// Descriptor whose special entries (`rl.id`, `rl.settle`) have become fields.
struct ParsedDescriptor<'a> {
    /// Entries that select a limit.
    entries: Vec<(&'a str, &'a str)>,
    /// Idempotency key.
    id: Option<Vec<u8>>,
    is_settlement: bool,
    /// Cost of the descriptor, which takes precedence over the cost of the request.
    own_hits: Option<u64>,
    is_negative: bool,
    /// Limit that the descriptor itself contains.
    limit: Option<RateLimitOverride>,
    settings: &'a RequestSettings,
}

impl<'a> ParsedDescriptor<'a> {
    fn new(
        descriptor: &'a RateLimitDescriptor,
        settings: &'a RequestSettings,
    ) -> Result<ParsedDescriptor<'a>, RequestError> {
        let count = descriptor.entries.len();
        if count > MAX_ENTRIES {
            let message = format!("a descriptor must have up to {MAX_ENTRIES} entries, not {count}");
            return Err(RequestError::TooLarge(message));
        }
        let mut parsed = ParsedDescriptor {
            entries: vec![],
            id: None,
            is_settlement: false,
            own_hits: descriptor.hits_addend.map(|hits| hits.value),
            is_negative: descriptor.is_negative_hits,
            limit: descriptor.limit,
            settings,
        };
        for entry in &descriptor.entries {
            match entry.key.as_str() {
                ID_ENTRY => {
                    parsed.id = (!entry.value.is_empty()).then(|| naming::idempotency_key(entry.value.as_bytes()));
                }
                SETTLE_ENTRY => parsed.is_settlement = true,
                key => parsed.entries.push((key, &entry.value)),
            }
        }
        Ok(parsed)
    }

    /// Returns the operation, or `None` if its cost is too high.
    fn operation(&self, hits: u64) -> Option<Operation> {
        let amount = |hits: u64| {
            let millionths = hits.checked_mul(1_000_000).filter(|_| hits <= MAX_HITS);
            millionths.and_then(Amount::from_millionths)
        };
        if self.is_settlement && self.id.is_none() {
            return amount(self.own_hits.unwrap_or(0).min(MAX_HITS)).map(Operation::Force);
        }
        if self.is_settlement {
            // Without a valid cost, the earlier charge remains and the leases end.
            return Some(self.own_hits.and_then(amount).map_or(Operation::Release, Operation::Settle));
        }
        if self.is_negative {
            if self.id.is_some() {
                return Some(Operation::Release);
            }
            return amount(self.own_hits.unwrap_or(hits)).map(Operation::GiveBack);
        }
        amount(self.own_hits.unwrap_or(hits)).map(Operation::Take)
    }

    /// Returns the part of the request for a rule. A rule with an empty list of policy names limits nothing.
    fn part(
        &self,
        key: Vec<u8>,
        rule: Rule,
        hits: u64,
        charge: ChargingMode,
        to_rule_call: impl FnOnce(Call) -> RuleCall,
    ) -> RequestPart {
        if matches!(&rule, Rule::Policies(names) if names.is_empty()) {
            return RequestPart::NoLimit;
        }
        let Some(operation) = self.operation(hits) else { return RequestPart::CostTooHigh };
        let id_lifetime = self.settings.id_lifetime.as_ref().to_owned();
        RequestPart::Call(to_rule_call(Call { key, rule, operation, id: self.id.clone(), id_lifetime, charge }))
    }
}

/// Resolver of the descriptors of a request.
struct Resolver<'a> {
    domain: &'a str,
    /// Rules of the domain, if the configuration has it.
    rules: Option<&'a Domain>,
    /// `true` if files or a control plane configure domains.
    covers_domains: bool,
    settings: &'a RequestSettings,
}

impl Resolver<'_> {
    /// Applies the limit that the descriptor itself contains, or otherwise the policies whose names derive from the
    /// descriptor.
    fn apply_policies(&self, descriptor: &ParsedDescriptor<'_>, hits: u64) -> RequestPart {
        let escaped = EscapedDescriptor::new(self.domain, descriptor.entries.iter().copied())
            .group_addresses(self.settings.ipv6_prefix);
        // If there is a configuration, a domain without rules has no limits, as in envoyproxy/ratelimit.
        let limit = descriptor.limit.filter(|_| self.rules.is_some() || !self.covers_domains);
        let rule = match limit {
            Some(limit) => match override_rule(limit) {
                Some(rule) => rule,
                None => return RequestPart::NoLimit,
            },
            None => Rule::Policies(escaped.policy_names()),
        };
        let default = if self.rules.is_some() { ChargingMode::Always } else { ChargingMode::AllOrNone };
        let charge = RuleChargingMode { explicit: None, default }.resolve(self.settings.charge);
        let metric = limit.map(|_| MetricName { rule: "override".to_owned(), values: None, is_override: true });
        let to_rule_call = |call| RuleCall { metric, ..RuleCall::new(call) };
        descriptor.part(escaped.key(), rule, hits, charge, to_rule_call)
    }

    /// Applies a rule of the configuration.
    fn apply_rule(&self, matched: MatchedRule, descriptor: &ParsedDescriptor<'_>, hits: u64) -> RequestPart {
        let RuleLimit::Limited(rule) = matched.limit else { return RequestPart::Unlimited };
        let entries = matched.key_entries.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let key = EscapedDescriptor::new(self.domain, entries).key();
        let (shadow, quota) = (matched.flags.shadow, matched.flags.quota);
        let to_rule_call =
            |call| RuleCall { call, shadow, quota, metric: Some(matched.metric), metadata: matched.metadata };
        descriptor.part(key, rule, hits, matched.charge.resolve(self.settings.charge), to_rule_call)
    }
}

/// Returns the rule for the limit that a descriptor itself contains, or `None` if its unit is unknown.
fn override_rule(limit: RateLimitOverride) -> Option<Rule> {
    let window = match RateLimitUnit::try_from(limit.unit).ok()? {
        RateLimitUnit::Second => "1s",
        RateLimitUnit::Minute => "1m",
        RateLimitUnit::Hour => "1h",
        RateLimitUnit::Day => "1d",
        RateLimitUnit::Month => "1mo",
        RateLimitUnit::Year => "1y",
        RateLimitUnit::Unknown => return None,
    };
    let words = ["FIXED".to_owned(), limit.requests_per_unit.to_string(), window.to_owned(), "ALIGNED".to_owned()];
    Some(Rule::Limits(words.to_vec()))
}

#[cfg(test)]
mod tests;
