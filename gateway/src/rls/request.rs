//! What a request of Envoy asks.

use crate::ask::{Call, Rule, Verb};
use crate::charge::{Charge, RuleCharge};
use crate::client_address::Ipv6Prefix;
use crate::configuration::{Bound, Config, Domain, Found, Metric};
use crate::judge::{Question, RequestPart};
use crate::naming::{self, EscapedDescriptor};
use crate::proto::{RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitUnit};
use ratelimit_core::Amount;
use std::collections::HashSet;
use std::sync::Arc;

/// The entry with which a caller names a call, so that it counts once.
pub const ID: &str = "rl.id";
/// The entry with which a caller says what a call turned out to cost; without [`ID`], that this much was used.
pub const SETTLE: &str = "rl.settle";
const MOST_DESCRIPTORS: usize = 32;
const MOST_ENTRIES: usize = 16;
/// The most that a call can cost, as the server counts.
const MOST_HITS: u64 = 1_000_000_000_000;

/// Error of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestError {
    /// No domain, or no descriptor: envoyproxy/ratelimit answers UNKNOWN.
    Empty(&'static str),
    /// A part is too large.
    TooLarge(String),
}

/// Settings by which requests are read.
#[derive(Clone, Debug)]
pub struct RequestSettings {
    /// Time for which an id is remembered, as the server takes durations.
    pub once: Arc<str>,
    /// Length of the IPv6 networks that count as one client.
    pub ipv6_prefix: Ipv6Prefix,
    /// Charging mode of rules that name none.
    pub charge: Option<Charge>,
}

/// What each descriptor of a request asks, in order.
///
/// # Errors
/// What is wrong with the request.
pub fn asked(
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
    if descriptors.len() > MOST_DESCRIPTORS {
        let told = format!("a request must have 1 to {MOST_DESCRIPTORS} descriptors, not {}", descriptors.len());
        return Err(RequestError::TooLarge(told));
    }
    let asking = Asking { domain, file: config.domains.get(domain), is_alone: config.domains.is_empty(), settings };
    // Nobody can tell 0 from none there.
    let hits = u64::from((*hits_addend).max(1));
    let mut asked = vec![];
    let (mut names, mut replaced): (Vec<Option<String>>, HashSet<String>) = (vec![], HashSet::new());
    for descriptor in descriptors {
        let split = Split::of(descriptor, settings)?;
        let found = match asking.file {
            Some(file) if split.limit.is_none() => Some(file.find(&split.entries, settings.ipv6_prefix)),
            _ => None,
        };
        names.push(found.as_ref().and_then(|found| found.as_ref().map(|found| found.name.clone())));
        if let Some(Some(found)) = &found {
            replaced.extend(found.replaces.iter().cloned());
        }
        asked.push(match found {
            Some(None) => RequestPart::Nothing,
            Some(Some(found)) => asking.by_file(found, &split, hits),
            None => asking.by_name(&split, hits),
        });
    }
    // What a matched rule replaces holds no more, wherever it stands.
    for (one, name) in asked.iter_mut().zip(&names) {
        if name.as_ref().is_some_and(|name| !name.is_empty() && replaced.contains(name)) {
            *one = RequestPart::Nothing;
        }
    }
    Ok(asked)
}

/// A descriptor without the entries that name no limit.
struct Split<'a> {
    entries: Vec<(&'a str, &'a str)>,
    id: Option<Vec<u8>>,
    settles: bool,
    own_hits: Option<u64>,
    negative: bool,
    limit: Option<RateLimitOverride>,
    settings: &'a RequestSettings,
}

impl<'a> Split<'a> {
    fn of(descriptor: &'a RateLimitDescriptor, settings: &'a RequestSettings) -> Result<Split<'a>, RequestError> {
        let count = descriptor.entries.len();
        if count > MOST_ENTRIES {
            let told = format!("a descriptor must have up to {MOST_ENTRIES} entries, not {count}");
            return Err(RequestError::TooLarge(told));
        }
        let mut split = Split {
            entries: vec![],
            id: None,
            settles: false,
            own_hits: descriptor.hits_addend.map(|hits| hits.value),
            negative: descriptor.is_negative_hits,
            limit: descriptor.limit,
            settings,
        };
        for entry in &descriptor.entries {
            match entry.key.as_str() {
                ID => split.id = (!entry.value.is_empty()).then(|| naming::idempotency_key(entry.value.as_bytes())),
                SETTLE => split.settles = true,
                key => split.entries.push((key, &entry.value)),
            }
        }
        Ok(split)
    }

    /// What the call is; none, if it can never pass.
    fn verb(&self, hits: u64) -> Option<Verb> {
        let amount = |hits: u64| {
            let millionths = hits.checked_mul(1_000_000).filter(|_| hits <= MOST_HITS);
            millionths.and_then(Amount::from_millionths)
        };
        if self.settles && self.id.is_none() {
            return amount(self.own_hits.unwrap_or(0).min(MOST_HITS)).map(Verb::Charge);
        }
        if self.settles {
            // What is over the most stays at the estimate. Without a number it stands, and what is held is free.
            return Some(self.own_hits.and_then(amount).map_or(Verb::Release, Verb::Settle));
        }
        if self.negative {
            if self.id.is_some() {
                return Some(Verb::Release);
            }
            return amount(self.own_hits.unwrap_or(hits)).map(Verb::GiveBack);
        }
        amount(self.own_hits.unwrap_or(hits)).map(Verb::Take)
    }

    /// What the descriptor asks by this rule: nothing, if no name of a policy is left.
    fn asked(
        &self,
        key: Vec<u8>,
        rule: Rule,
        hits: u64,
        charge: Charge,
        question: impl FnOnce(Call) -> Question,
    ) -> RequestPart {
        if matches!(&rule, Rule::Policies(names) if names.is_empty()) {
            return RequestPart::Nothing;
        }
        let Some(verb) = self.verb(hits) else { return RequestPart::TooMuch };
        let remembered = self.settings.once.as_ref().to_owned();
        RequestPart::Server(question(Call { key, rule, verb, id: self.id.clone(), remembered, charge }))
    }
}

/// Domain of a request, and what its descriptors are limited by.
struct Asking<'a> {
    domain: &'a str,
    /// Rules of the domain, if a file has it.
    file: Option<&'a Domain>,
    /// No file has any domain.
    is_alone: bool,
    settings: &'a RequestSettings,
}

impl Asking<'_> {
    fn by_name(&self, split: &Split<'_>, hits: u64) -> RequestPart {
        let described = EscapedDescriptor::new(self.domain, split.entries.iter().copied())
            .group_addresses(self.settings.ipv6_prefix);
        // Where files have the limits, a domain that they do not have has none, as in envoyproxy/ratelimit.
        let limit = split.limit.filter(|_| self.file.is_some() || self.is_alone);
        let rule = match limit {
            Some(limit) => match overridden(limit) {
                Some(rule) => rule,
                None => return RequestPart::Nothing,
            },
            None => Rule::Policies(described.policy_names()),
        };
        let default = if self.file.is_some() { Charge::Always } else { Charge::AllOrNone };
        let charge = RuleCharge { own: None, default }.or(self.settings.charge);
        let metric = limit.map(|_| Metric { rule: "override".to_owned(), values: None, brought: true });
        let question = |call| Question { metric, ..Question::new(call) };
        split.asked(described.key(), rule, hits, charge, question)
    }

    fn by_file(&self, found: Found, split: &Split<'_>, hits: u64) -> RequestPart {
        let Bound::By(rule) = found.bound else { return RequestPart::Unlimited };
        let counted = found.counted.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let key = EscapedDescriptor::new(self.domain, counted).group_addresses(self.settings.ipv6_prefix).key();
        let (shadow, quota) = (found.flags.shadow, found.flags.quota);
        let question = |call| Question { call, shadow, quota, metric: Some(found.metric), metadata: found.metadata };
        split.asked(key, rule, hits, found.charge.or(self.settings.charge), question)
    }
}

/// The limit that a descriptor brings itself; none of a unit that is unknown.
fn overridden(limit: RateLimitOverride) -> Option<Rule> {
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
