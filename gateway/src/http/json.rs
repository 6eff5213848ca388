//! `/json`: the rate limit service over HTTP, in proto3's JSON, as envoyproxy/ratelimit has it.

use super::text;
use crate::rls::Rls;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::UInt64Value;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A request. Each name also in lowerCamelCase; numbers of 64 bits also as text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Vec<Descriptor>,
    #[serde(default, alias = "hitsAddend")]
    hits_addend: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Descriptor {
    #[serde(default)]
    entries: Vec<NamedValue>,
    limit: Option<Limit>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Number>,
    #[serde(default, alias = "isNegativeHits")]
    is_negative_hits: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedValue {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Limit {
    #[serde(default, alias = "requestsPerUnit")]
    requests_per_unit: u32,
    #[serde(default)]
    unit: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Plain(u64),
    Text(String),
}

/// 200, 429 of what is over a limit, 400 of what is no request.
pub async fn answer(rls: &Rls, body: &[u8]) -> Response<Body> {
    let wrong = |told: String| text(StatusCode::BAD_REQUEST, "text/plain", format!("{told}\n"));
    let read = serde_json::from_slice::<Request>(body).map_err(|error| error.to_string());
    let request = match read.and_then(request) {
        Ok(request) => request,
        Err(told) => return wrong(told),
    };
    match rls.answer(request, None).await {
        Ok(answer) => {
            let over = answer.overall_code == i32::from(Code::OverLimit);
            let status = if over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
            text(status, "application/json", response(&answer).to_string())
        }
        Err(status) => wrong(status.message().to_owned()),
    }
}

fn request(read: Request) -> Result<RateLimitRequest, String> {
    let descriptors = read.descriptors.into_iter().map(descriptor).collect::<Result<_, _>>()?;
    Ok(RateLimitRequest { domain: read.domain, descriptors, hits_addend: read.hits_addend })
}

fn descriptor(read: Descriptor) -> Result<RateLimitDescriptor, String> {
    let limit = read.limit.map(|limit| {
        let unit = RateLimitUnit::from_str_name(&limit.unit).ok_or("unit must be such as MINUTE")?;
        Ok::<_, String>(RateLimitOverride { requests_per_unit: limit.requests_per_unit, unit: unit.into() })
    });
    let hits = read.hits_addend.map(|hits| match hits {
        Number::Plain(number) => Ok(number),
        Number::Text(text) => text.parse().map_err(|_| "hits_addend must be a number".to_owned()),
    });
    Ok(RateLimitDescriptor {
        entries: read.entries.into_iter().map(|NamedValue { key, value }| Entry { key, value }).collect(),
        limit: limit.transpose()?,
        hits_addend: hits.transpose()?.map(|value| UInt64Value { value }),
        is_negative_hits: read.is_negative_hits,
    })
}

/// As proto3 writes it: what has its default is left out.
fn response(answer: &RateLimitResponse) -> Value {
    let headers = answer.response_headers_to_add.iter().map(|header| json!({"key": header.key, "value": header.value}));
    let mut object = Map::new();
    object.insert("overallCode".to_owned(), code(answer.overall_code));
    object.insert("statuses".to_owned(), answer.statuses.iter().map(status).collect());
    object.insert("responseHeadersToAdd".to_owned(), headers.collect());
    Value::Object(object)
}

fn status(status: &DescriptorStatus) -> Value {
    let mut object = Map::new();
    object.insert("code".to_owned(), code(status.code));
    if let Some(limit) = &status.current_limit {
        let unit = Unit::try_from(limit.unit).unwrap_or_default().as_str_name();
        let limit = json!({"requestsPerUnit": limit.requests_per_unit, "unit": unit});
        object.insert("currentLimit".to_owned(), limit);
    }
    if status.limit_remaining > 0 {
        object.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(reset) = &status.duration_until_reset {
        let text = match reset.nanos {
            0 => format!("{}s", reset.seconds),
            nanos => format!("{}.{:03}s", reset.seconds, nanos / 1_000_000),
        };
        object.insert("durationUntilReset".to_owned(), text.into());
    }
    Value::Object(object)
}

fn code(code: i32) -> Value {
    Code::try_from(code).unwrap_or_default().as_str_name().into()
}
