//! Rules of forward auth: the requests that they match, their keys and their limits.

use super::at_line;
use super::domain::{limit_words, policy_names};
use super::format;
use crate::call::Rule;
use crate::charge::RuleChargingMode;
use crate::client_address::{self, Ipv6Prefix};
use crate::request_path::PathPattern;
use crate::template::{Template, matches_wildcard};
use ipnet::IpNet;
use serde_saphyr::Spanned;

/// Settings and rules of forward auth.
#[derive(Debug)]
pub struct HttpRules {
    /// `true` if a file has the section `http`.
    pub is_set: bool,
    /// Networks of the proxies whose forwarding headers are trusted.
    pub trusted: Vec<IpNet>,
    /// Length of the IPv6 networks that count as one client, which takes precedence over the command line.
    pub ipv6_prefix: Option<Ipv6Prefix>,
    /// Rules, of which the first that matches applies. `None`: each request has the descriptor `(client, address)` of
    /// the domain `http`, to which policies apply.
    pub rules: Option<Vec<HttpRule>>,
}

/// Rule of forward auth.
#[derive(Debug)]
pub struct HttpRule {
    methods: Option<Vec<String>>,
    path: Option<PathPattern>,
    headers: Vec<(String, String)>,
    /// `true` if the case of ASCII letters in paths is ignored.
    pub ignores_case: bool,
    /// Limits or policies.
    pub rule: Rule,
    /// Template of the key.
    pub key: Template,
    /// Template of the cost, or `None` for 1.
    pub cost: Option<Template>,
    /// Charging mode.
    pub charge: RuleChargingMode,
}

impl Default for HttpRules {
    fn default() -> HttpRules {
        HttpRules { is_set: false, trusted: client_address::loopback_networks(), ipv6_prefix: None, rules: None }
    }
}

impl HttpRules {
    /// Converts the section `http` of a file.
    ///
    /// # Errors
    /// If a value is malformed: the error, with its line.
    pub(super) fn new(section: format::HttpSection) -> Result<HttpRules, String> {
        let mut http = HttpRules { is_set: true, ..HttpRules::default() };
        if let Some(trusted) = section.trusted {
            let network = |text: &Spanned<String>| {
                let error = "trusted must be addresses or networks such as 10.0.0.0/8";
                client_address::parse_network(&text.value).ok_or_else(|| at_line(text, error))
            };
            http.trusted = trusted.iter().map(network).collect::<Result<_, _>>()?;
        }
        if let Some(bits) = section.ipv6_prefix {
            let prefix = u8::try_from(bits.value).ok().and_then(Ipv6Prefix::new);
            http.ipv6_prefix =
                Some(prefix.ok_or_else(|| at_line(&bits, "ipv6_prefix must be a number from 48 to 128"))?);
        }
        http.rules = section.rules.map(|rules| rules.into_iter().map(convert_rule).collect()).transpose()?;
        Ok(http)
    }
}

fn convert_rule(entry: format::RuleEntry) -> Result<HttpRule, String> {
    let at_key = |error: String| at_line(&entry.key, &error);
    let rule = match (&entry.policy, &entry.limit) {
        (Some(policy), None) => Rule::Policies(policy_names(policy).map_err(at_key)?),
        (None, Some(limit)) => Rule::Limits(limit_words(&limit.value).map_err(|error| at_line(limit, &error))?),
        _ => return Err(at_key("a rule must have either policy or limit".to_owned())),
    };
    let key = Template::parse_key(&entry.key.value).map_err(at_key)?;
    let cost =
        entry.cost.map(|cost| Template::parse(&cost.value).map_err(|error| at_line(&cost, &error))).transpose()?;
    let headers = entry.header.into_iter().map(|(name, pattern)| (name.to_ascii_lowercase(), pattern)).collect();
    let pattern = |path: Spanned<String>| {
        PathPattern::parse(&path.value, entry.ignore_case).map_err(|error| at_line(&path, &error))
    };
    Ok(HttpRule {
        methods: entry.method.map(format::OneOrMore::into_vec),
        path: entry.path.map(pattern).transpose()?,
        ignores_case: entry.ignore_case,
        headers,
        rule,
        key,
        cost,
        charge: RuleChargingMode { explicit: entry.charge, ..RuleChargingMode::default() },
    })
}

impl HttpRule {
    /// Returns `true` if the rule matches a request. The path is in normal form. `header` returns the value of a header
    /// by its name in lower case.
    ///
    /// # Errors
    /// If `header` fails for a header that the rule reads.
    pub fn matches<'a>(
        &self,
        method: &[u8],
        path: &[u8],
        header: impl Fn(&str) -> Result<Option<&'a [u8]>, String>,
    ) -> Result<bool, String> {
        let is_method = |candidate: &String| candidate.as_bytes().eq_ignore_ascii_case(method);
        if !self.methods.as_ref().is_none_or(|methods| methods.iter().any(is_method))
            || !self.path.as_ref().is_none_or(|pattern| pattern.matches(path))
        {
            return Ok(false);
        }
        for (name, pattern) in &self.headers {
            if !header(name)?.is_some_and(|value| matches_wildcard(pattern, value)) {
                return Ok(false);
            }
        }
        for name in [Some(&self.key), self.cost.as_ref()].into_iter().flatten().flat_map(Template::headers) {
            if header(name)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
