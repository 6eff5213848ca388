//! Forward auth: a proxy asks by HTTP whether a request may pass, and describes the request in headers.

use super::response_with_body;
use crate::call::{Call, Operation, Rule};
use crate::charge::ChargingMode;
use crate::client_address::{is_trusted, request_client};
use crate::configuration::{Config, HttpRule, MetricName};
use crate::evaluation::{Caller, RequestDecision, RequestPart, RuleCall};
use crate::headers;
use crate::naming::{self, EscapedDescriptor, escape_field};
use crate::request_path::normalize;
use crate::rls::{RequestSettings, Rls};
use crate::template::Field;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use ratelimit_core::Amount;
use std::net::IpAddr;

/// Problem type of a denial (draft-ietf-httpapi-ratelimit-headers-10, section 4).
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// Problem type of a denial while the server is away (defined by the same draft).
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Domain of the descriptor that a request has if no file has rules, and of all forward auth requests in metrics.
const DOMAIN: &str = "http";

/// Request that a proxy describes in headers.
struct ProxiedRequest<'a> {
    /// Method in upper case.
    method: Vec<u8>,
    /// Path in normal form.
    path: Vec<u8>,
    headers: &'a HeaderMap,
    /// Name of the client in keys.
    client: String,
}

/// Returns status 200 if the request is allowed, 429 if it is denied, 400 if it is malformed, and 503 if the server is
/// away, under `--on-outage closed` or `error`.
pub async fn respond(rls: &Rls, head: &Parts, peer: IpAddr, caller: Caller) -> Response<Body> {
    let part = match resolve(&rls.config.load(), &rls.settings, head, peer) {
        Ok(part) => part,
        Err(error) => return response_with_body(StatusCode::BAD_REQUEST, "text/plain", format!("{error}\n")),
    };
    let decision = rls.evaluator.evaluate(DOMAIN.to_owned(), [part].into(), caller).await;
    let mut response = if decision.allowed && !rls.evaluator.is_failed(&decision) {
        response_with_body(StatusCode::OK, "text/plain", "ok\n")
    } else {
        let status =
            if decision.is_undecided { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::TOO_MANY_REQUESTS };
        response_with_body(status, "application/problem+json", problem(&decision, status))
    };
    for (name, value) in rls.headers.forward_auth_fields(&decision) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn problem(decision: &RequestDecision, status: StatusCode) -> String {
    let body = if decision.is_undecided {
        serde_json::json!({
            "type": REDUCED_CAPACITY, "title": "Requests cannot be counted at the moment", "status": status.as_u16(),
        })
    } else {
        serde_json::json!({
            "type": QUOTA_EXCEEDED, "title": "Too many requests", "status": status.as_u16(),
            "violated-policies": headers::violated_limits(decision),
        })
    };
    body.to_string()
}

/// Resolves a request to the call of the first rule that matches it. Without rules, requests are counted by client.
fn resolve(config: &Config, settings: &RequestSettings, head: &Parts, peer: IpAddr) -> Result<RequestPart, String> {
    let http = &config.http;
    let forwarded: Vec<&[u8]> = head.headers.get_all("x-forwarded-for").iter().map(HeaderValue::as_bytes).collect();
    // Headers of an untrusted peer are ignored, because the client itself could choose their values.
    let trusted_header =
        |name: &str| if is_trusted(peer, &http.trusted) { header_value(&head.headers, name) } else { Ok(None) };
    let client = request_client(peer, &forwarded, &http.trusted, http.ipv6_prefix.unwrap_or(settings.ipv6_prefix));
    let Some(rules) = &http.rules else {
        let descriptor = EscapedDescriptor::new(DOMAIN, [("client", client.as_str())]);
        let (key, rule) = (descriptor.key(), Rule::Policies(descriptor.policy_names()));
        return Ok(call_part(key, rule, Amount::ONE, None, settings.charge.unwrap_or_default()));
    };
    let request = ProxiedRequest {
        method: trusted_header("x-forwarded-method")?.unwrap_or(head.method.as_str().as_bytes()).to_ascii_uppercase(),
        path: normalize(trusted_header("x-forwarded-uri")?.unwrap_or(head.uri.path().as_bytes()))?,
        headers: &head.headers,
        client,
    };
    let header = |name: &str| header_value(request.headers, name);
    for rule in rules {
        if rule.matches(&request.method, &request.path, header)? {
            return request.apply(rule, settings.charge);
        }
    }
    Ok(RequestPart::NoLimit)
}

impl ProxiedRequest<'_> {
    /// Returns the call of a rule that matches the request.
    fn apply(&self, rule: &HttpRule, charge: Option<ChargingMode>) -> Result<RequestPart, String> {
        let path = if rule.ignores_case { &self.path.to_ascii_lowercase() } else { &self.path };
        let escaped_value = |field: &Field| {
            escape_field(match field {
                Field::Client => self.client.as_bytes(),
                Field::Method => &self.method,
                Field::Path => path,
                // The header is not repeated, otherwise the rule would not have matched.
                Field::Header(name) => self.headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default(),
            })
        };
        let key = rule.key.fill(escaped_value);
        let cost = match &rule.cost {
            Some(cost) => {
                // Escaping the fields does not change a number.
                Amount::parse_up(cost.fill(escaped_value).as_bytes())
                    .ok_or_else(|| "the cost is no number".to_owned())?
            }
            None => Amount::ONE,
        };
        let metric = || MetricName { rule: "limit".to_owned(), values: None, is_override: false };
        let metric = matches!(rule.rule, Rule::Limits(_)).then(metric);
        Ok(call_part(naming::key(format!("rl:{key}")), rule.rule.clone(), cost, metric, rule.charge.resolve(charge)))
    }
}

fn call_part(key: Vec<u8>, rule: Rule, cost: Amount, metric: Option<MetricName>, charge: ChargingMode) -> RequestPart {
    let call = Call { key, rule, operation: Operation::Take(cost), id: None, id_lifetime: String::new(), charge };
    RequestPart::Call(RuleCall { metric, ..RuleCall::new(call) })
}

/// Returns the value of a header, even if it is not UTF-8, because a client could otherwise avoid rules with such a
/// value.
///
/// # Errors
/// If the header is repeated, because the gateway and the origin could use different values.
fn header_value<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a [u8]>, String> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(HeaderValue::as_bytes);
    if values.next().is_some() {
        return Err(format!("the header {name} is repeated"));
    }
    Ok(first)
}
