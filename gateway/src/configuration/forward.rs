//! The rules of forward auth: which requests are counted, by what, and under which limits.

use super::at;
use super::domain::{names, words};
use super::format;
use crate::ask::Rule;
use crate::charge::RuleCharge;
use crate::client_address::{self, Ipv6Prefix};
use crate::request_path::PathPattern;
use crate::template::{Template, fits};
use ipnet::IpNet;
use serde_saphyr::Spanned;

/// What the files say of HTTP.
#[derive(Debug)]
pub struct HttpRules {
    /// Whether they say anything.
    pub is_set: bool,
    /// The proxies whose word on the client is taken.
    pub trusted: Vec<IpNet>,
    /// Length of the IPv6 networks that count as one client, instead of the command line's.
    pub ipv6_prefix: Option<Ipv6Prefix>,
    /// The first that matches rules; none: the descriptor `(client, address)` of domain `http`.
    pub rules: Option<Vec<HttpRule>>,
}

/// A rule.
#[derive(Debug)]
pub struct HttpRule {
    methods: Option<Vec<String>>,
    path: Option<PathPattern>,
    headers: Vec<(String, String)>,
    /// Paths are counted without regard to the case of ASCII letters.
    pub ignores_case: bool,
    /// By what it is limited.
    pub rule: Rule,
    /// What it is counted by.
    pub key: Template,
    /// What it costs; 1.
    pub cost: Option<Template>,
    /// Charging mode.
    pub charge: RuleCharge,
}

impl Default for HttpRules {
    fn default() -> HttpRules {
        HttpRules { is_set: false, trusted: client_address::loopback_networks(), ipv6_prefix: None, rules: None }
    }
}

impl HttpRules {
    /// The rules as a file has them, or what is wrong with them.
    pub(super) fn read(read: format::HttpSection) -> Result<HttpRules, String> {
        let mut http = HttpRules { is_set: true, ..HttpRules::default() };
        if let Some(trusted) = read.trusted {
            let network = |text: &Spanned<String>| {
                let told = "trusted must be addresses or networks such as 10.0.0.0/8";
                client_address::parse_network(&text.value).ok_or_else(|| at(text, told))
            };
            http.trusted = trusted.iter().map(network).collect::<Result<_, _>>()?;
        }
        if let Some(bits) = read.ipv6_prefix {
            let prefix = u8::try_from(bits.value).ok().and_then(Ipv6Prefix::new);
            http.ipv6_prefix = Some(prefix.ok_or_else(|| at(&bits, "ipv6_prefix must be a number from 48 to 128"))?);
        }
        http.rules = read.rules.map(|rules| rules.into_iter().map(rule).collect()).transpose()?;
        Ok(http)
    }
}

fn rule(read: format::RuleEntry) -> Result<HttpRule, String> {
    let told = |told: String| at(&read.key, &told);
    let rule = match (&read.policy, &read.limit) {
        (Some(policy), None) => Rule::Policies(names(policy).map_err(told)?),
        (None, Some(limit)) => Rule::Limits(words(&limit.value).map_err(|told| at(limit, &told))?),
        _ => return Err(told("a rule must have either policy or limit".to_owned())),
    };
    let key = Template::read_key(&read.key.value).map_err(told)?;
    let cost = read.cost.map(|cost| Template::read(&cost.value).map_err(|told| at(&cost, &told))).transpose()?;
    let headers = read.header.into_iter().map(|(name, pattern)| (name.to_ascii_lowercase(), pattern)).collect();
    let pattern =
        |path: Spanned<String>| PathPattern::read(&path.value, read.ignore_case).map_err(|told| at(&path, &told));
    Ok(HttpRule {
        methods: read.method.map(format::OneOrMore::into_vec),
        path: read.path.map(pattern).transpose()?,
        ignores_case: read.ignore_case,
        headers,
        rule,
        key,
        cost,
        charge: RuleCharge { own: read.charge, ..RuleCharge::default() },
    })
}

impl HttpRule {
    /// Returns `true` if the rule is for such a request, with its path in normal form. `header` returns the value of a
    /// header, in which any bytes may stand, by its name in lower case.
    ///
    /// # Errors
    /// If `header` fails for a header that the rule reads.
    pub fn matches<'a>(
        &self,
        method: &[u8],
        path: &[u8],
        header: impl Fn(&str) -> Result<Option<&'a [u8]>, String>,
    ) -> Result<bool, String> {
        let is_method = |one: &String| one.as_bytes().eq_ignore_ascii_case(method);
        if !self.methods.as_ref().is_none_or(|methods| methods.iter().any(is_method))
            || !self.path.as_ref().is_none_or(|pattern| pattern.matches(path))
        {
            return Ok(false);
        }
        for (name, pattern) in &self.headers {
            if !header(name)?.is_some_and(|value| fits(pattern, value)) {
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
