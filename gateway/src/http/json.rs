//! `/json`: the rate limit service over HTTP, in proto3's JSON, as envoyproxy/ratelimit has it.

use super::text;
use crate::proto::{
    Code, DescriptorStatus, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse,
    RateLimitUnit, UInt64Value, Unit,
};
use crate::rls::{Rls, to_json};
use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A request. Each name also in lowerCamelCase, numbers also as text, and `null` for what is not there.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a request must be an object")]
struct Request {
    domain: Option<String>,
    descriptors: Option<Vec<JsonDescriptor>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<JsonNumber>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a descriptor must be an object")]
struct JsonDescriptor {
    entries: Option<Vec<NamedValue>>,
    limit: Option<Limit>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<JsonNumber>,
    #[serde(alias = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an entry must be an object")]
struct NamedValue {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a limit must be an object")]
struct Limit {
    #[serde(alias = "requestsPerUnit")]
    requests_per_unit: Option<JsonNumber>,
    unit: Option<Unit32>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a number must be an integer from 0, perhaps as text")]
enum JsonNumber {
    Plain(u64),
    Text(String),
}

impl JsonNumber {
    fn read<N: TryFrom<u64>>(self, name: &str) -> Result<N, String> {
        let number = match self {
            JsonNumber::Plain(number) => Some(number),
            JsonNumber::Text(text) => text.parse().ok(),
        };
        let number = number.and_then(|number| N::try_from(number).ok());
        number.ok_or_else(|| format!("{name} must be a number"))
    }
}

/// A unit by its name or its number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "unit must be such as MINUTE")]
enum Unit32 {
    Named(String),
    Numbered(i32),
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
    let descriptors = read.descriptors.unwrap_or_default().into_iter().map(descriptor).collect::<Result<_, _>>()?;
    let hits_addend = read.hits_addend.map_or(Ok(0), |hits| hits.read("hits_addend"))?;
    Ok(RateLimitRequest { domain: read.domain.unwrap_or_default(), descriptors, hits_addend })
}

fn descriptor(read: JsonDescriptor) -> Result<RateLimitDescriptor, String> {
    let limit = read.limit.map(|limit| {
        let unit = match limit.unit {
            Some(Unit32::Named(name)) => RateLimitUnit::from_str_name(&name).map(i32::from),
            Some(Unit32::Numbered(number)) => Some(number),
            None => Some(RateLimitUnit::Unknown.into()),
        };
        let requests = limit.requests_per_unit.map_or(Ok(0), |number| number.read("requests_per_unit"))?;
        let unit = unit.ok_or("unit must be such as MINUTE")?;
        Ok::<_, String>(RateLimitOverride { requests_per_unit: requests, unit })
    });
    let hits = read.hits_addend.map(|hits| hits.read("hits_addend"));
    let named =
        |entry: NamedValue| Entry { key: entry.key.unwrap_or_default(), value: entry.value.unwrap_or_default() };
    Ok(RateLimitDescriptor {
        entries: read.entries.unwrap_or_default().into_iter().map(named).collect(),
        limit: limit.transpose()?,
        hits_addend: hits.transpose()?.map(|value| UInt64Value { value }),
        is_negative_hits: read.is_negative_hits.unwrap_or_default(),
    })
}

/// As proto3 writes it: what has its default is left out.
fn response(answer: &RateLimitResponse) -> Value {
    let headers = answer.response_headers_to_add.iter().map(|header| json!({"key": header.key, "value": header.value}));
    let mut object = Map::new();
    object.insert("overallCode".to_owned(), code(answer.overall_code));
    object.insert("statuses".to_owned(), answer.statuses.iter().map(status).collect());
    object.insert("responseHeadersToAdd".to_owned(), headers.collect());
    if let Some(metadata) = &answer.dynamic_metadata {
        object.insert("dynamicMetadata".to_owned(), to_json(metadata));
    }
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
