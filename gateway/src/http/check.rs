//! Forward auth: may this request pass?

use super::text;
use crate::ask::{Call, Rule, Verb};
use crate::charge::Charge;
use crate::client_address::{is_trusted, request_client};
use crate::configuration::{Config, HttpRule, Metric};
use crate::headers;
use crate::judge::{Judgement, Question, RequestPart};
use crate::naming::{self, EscapedDescriptor, escape_field};
use crate::request_path::normalized;
use crate::rls::{RequestSettings, Rls};
use crate::template::Field;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use ratelimit_core::Amount;
use std::net::IpAddr;

/// draft-ietf-httpapi-ratelimit-headers-10, section 4
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// The domain of requests that no rule is for, and of all in the metrics.
const DOMAIN: &str = "http";

/// The request that the proxy asks about.
struct Asking<'a> {
    /// Method in upper case.
    method: Vec<u8>,
    /// Path in normal form.
    path: Vec<u8>,
    headers: &'a HeaderMap,
    client: String,
}

/// 200, 429 or, when nobody can decide, 503.
pub async fn answer(rls: &Rls, head: &Parts, peer: IpAddr) -> Response<Body> {
    let asked = match asked(&rls.config.load(), &rls.settings, head, peer) {
        Ok(asked) => asked,
        Err(told) => return text(StatusCode::BAD_REQUEST, "text/plain", format!("{told}\n")),
    };
    let judgement = rls.judge.judge(DOMAIN.to_owned(), [asked].into(), None).await;
    let mut response = if judgement.allowed {
        text(StatusCode::OK, "text/plain", "ok\n")
    } else {
        let status = if judgement.unknown { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::TOO_MANY_REQUESTS };
        text(status, "application/problem+json", problem(&judgement, status))
    };
    for (name, value) in headers::fields(&judgement).into_iter().chain(headers::older_fields(&judgement)) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn problem(judgement: &Judgement, status: StatusCode) -> String {
    let body = if judgement.unknown {
        serde_json::json!({
            "type": REDUCED_CAPACITY, "title": "Requests cannot be counted at the moment", "status": status.as_u16(),
        })
    } else {
        serde_json::json!({
            "type": QUOTA_EXCEEDED, "title": "Too many requests", "status": status.as_u16(),
            "violated-policies": headers::violated(judgement),
        })
    };
    body.to_string()
}

fn asked(config: &Config, settings: &RequestSettings, head: &Parts, peer: IpAddr) -> Result<RequestPart, String> {
    let http = &config.http;
    let forwarded: Vec<&[u8]> = head.headers.get_all("x-forwarded-for").iter().map(HeaderValue::as_bytes).collect();
    // From others it would be the client's own word.
    let told = |name: &str| if is_trusted(peer, &http.trusted) { value(&head.headers, name) } else { Ok(None) };
    let client = request_client(peer, &forwarded, &http.trusted, http.ipv6_prefix.unwrap_or(settings.ipv6_prefix));
    let Some(rules) = &http.rules else {
        let described = EscapedDescriptor::new(DOMAIN, [("client", client.as_str())]);
        let (key, rule) = (described.key(), Rule::Policies(described.policy_names()));
        return Ok(question(key, rule, Amount::ONE, None, settings.charge.unwrap_or_default()));
    };
    let asking = Asking {
        method: told("x-forwarded-method")?.unwrap_or(head.method.as_str().as_bytes()).to_ascii_uppercase(),
        path: normalized(told("x-forwarded-uri")?.unwrap_or(head.uri.path().as_bytes()))?,
        headers: &head.headers,
        client,
    };
    let header = |name: &str| value(asking.headers, name);
    for rule in rules {
        if rule.matches(&asking.method, &asking.path, header)? {
            return asking.ruled(rule, settings.charge);
        }
    }
    Ok(RequestPart::Nothing)
}

impl Asking<'_> {
    fn ruled(&self, rule: &HttpRule, charge: Option<Charge>) -> Result<RequestPart, String> {
        let path = if rule.ignores_case { &self.path.to_ascii_lowercase() } else { &self.path };
        let text = |field: &Field| {
            escape_field(match field {
                Field::Client => self.client.as_bytes(),
                Field::Method => &self.method,
                Field::Path => path,
                // The rule has matched, so it is not repeated.
                Field::Header(name) => self.headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default(),
            })
        };
        let key = rule.key.filled(text);
        let cost = match &rule.cost {
            Some(cost) => {
                // Of a number nothing is escaped.
                Amount::parse_up(cost.filled(text).as_bytes()).ok_or_else(|| "the cost is no number".to_owned())?
            }
            None => Amount::ONE,
        };
        let metric = || Metric { rule: "limit".to_owned(), values: None, brought: false };
        let metric = matches!(rule.rule, Rule::Limits(_)).then(metric);
        Ok(question(naming::key(format!("rl:{key}")), rule.rule.clone(), cost, metric, rule.charge.or(charge)))
    }
}

fn question(key: Vec<u8>, rule: Rule, cost: Amount, metric: Option<Metric>, charge: Charge) -> RequestPart {
    let call = Call { key, rule, verb: Verb::Take(cost), id: None, remembered: String::new(), charge };
    RequestPart::Server(Question { metric, ..Question::new(call) })
}

/// Returns the bytes of a header's value. A value that is no text counts, too, because a client could avoid the rules by
/// it.
///
/// # Errors
/// If the header is repeated: the gateway could read one value and the origin another.
fn value<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a [u8]>, String> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(HeaderValue::as_bytes);
    if values.next().is_some() {
        return Err(format!("the header {name} is repeated"));
    }
    Ok(first)
}
