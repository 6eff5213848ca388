//! Route `/json`: the rate limit service over HTTP with proto3's JSON, compatible with envoyproxy/ratelimit.

use super::response_with_body;
use crate::evaluation::Caller;
use crate::proto::{
    Code, DescriptorStatus, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse,
    RateLimitUnit, UInt64Value, Unit,
};
use crate::rls::{Rls, to_json};
use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::fmt::Display;

/// Rate limit request. Names may be in lowerCamelCase, numbers may be strings, and absent values may be `null`.
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
    entries: Option<Vec<JsonEntry>>,
    limit: Option<JsonLimit>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<JsonNumber>,
    #[serde(alias = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an entry must be an object")]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a limit must be an object")]
struct JsonLimit {
    #[serde(alias = "requestsPerUnit")]
    requests_per_unit: Option<JsonNumber>,
    unit: Option<JsonUnit>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a number must be a non-negative integer, which may be a string")]
enum JsonNumber {
    Plain(u64),
    Text(String),
}

impl JsonNumber {
    fn parse<N: TryFrom<u64> + Copy + Display>(self, name: &str, max: N) -> Result<N, String> {
        let number = match self {
            JsonNumber::Plain(number) => Some(number),
            JsonNumber::Text(text) => text.parse().ok(),
        };
        let number = number.and_then(|number| N::try_from(number).ok());
        number.ok_or_else(|| format!("{name} must be an integer from 0 to {max}"))
    }
}

/// Name or number of a unit.
#[derive(Deserialize)]
#[serde(untagged, expecting = "unit must be the name or number of a unit, such as MINUTE")]
enum JsonUnit {
    Named(String),
    Numbered(i32),
}

/// Returns status 200 if the request is allowed, 429 if it is denied, 400 if it is malformed, and 503 in an outage of
/// the server under `--on-outage error`.
pub async fn respond(rls: &Rls, body: &[u8], caller: Caller) -> Response<Body> {
    let bad_request = |error: String| response_with_body(StatusCode::BAD_REQUEST, "text/plain", format!("{error}\n"));
    let parsed = serde_json::from_slice::<Request>(body).map_err(|error| error.to_string());
    let request = match parsed.and_then(convert_request) {
        Ok(request) => request,
        Err(error) => return bad_request(error),
    };
    match rls.respond(request, caller).await {
        Ok(response) => {
            let is_denied = response.overall_code == i32::from(Code::OverLimit);
            let status = if is_denied { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
            response_with_body(status, "application/json", response_to_json(&response).to_string())
        }
        Err(status) if status.code() == tonic::Code::Unavailable => {
            response_with_body(StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("{}\n", status.message()))
        }
        Err(status) => bad_request(status.message().to_owned()),
    }
}

fn convert_request(request: Request) -> Result<RateLimitRequest, String> {
    let descriptors =
        request.descriptors.unwrap_or_default().into_iter().map(convert_descriptor).collect::<Result<_, _>>()?;
    let hits_addend = request.hits_addend.map_or(Ok(0), |hits| hits.parse("hits_addend", u32::MAX))?;
    Ok(RateLimitRequest { domain: request.domain.unwrap_or_default(), descriptors, hits_addend })
}

fn convert_descriptor(json: JsonDescriptor) -> Result<RateLimitDescriptor, String> {
    let limit = json.limit.map(|limit| {
        let unit = match limit.unit {
            Some(JsonUnit::Named(name)) => RateLimitUnit::from_str_name(&name).map(i32::from),
            Some(JsonUnit::Numbered(number)) => Some(number),
            None => Some(RateLimitUnit::Unknown.into()),
        };
        let requests = limit.requests_per_unit.map_or(Ok(0), |number| number.parse("requests_per_unit", u32::MAX))?;
        let unit = unit.ok_or("unit must be the name or number of a unit, such as MINUTE")?;
        Ok::<_, String>(RateLimitOverride { requests_per_unit: requests, unit })
    });
    let hits = json.hits_addend.map(|hits| hits.parse("hits_addend", u64::MAX));
    let entry = |entry: JsonEntry| Entry { key: entry.key.unwrap_or_default(), value: entry.value.unwrap_or_default() };
    Ok(RateLimitDescriptor {
        entries: json.entries.unwrap_or_default().into_iter().map(entry).collect(),
        limit: limit.transpose()?,
        hits_addend: hits.transpose()?.map(|value| UInt64Value { value }),
        is_negative_hits: json.is_negative_hits.unwrap_or_default(),
    })
}

/// Returns a response in proto3's JSON, with all lists, codes and limits. Other fields are left out if they are zero or
/// absent.
fn response_to_json(response: &RateLimitResponse) -> Value {
    let headers =
        response.response_headers_to_add.iter().map(|header| json!({"key": header.key, "value": header.value}));
    let mut object = Map::new();
    object.insert("overallCode".to_owned(), code_to_json(response.overall_code));
    object.insert("statuses".to_owned(), response.statuses.iter().map(status_to_json).collect());
    object.insert("responseHeadersToAdd".to_owned(), headers.collect());
    if let Some(metadata) = &response.dynamic_metadata {
        object.insert("dynamicMetadata".to_owned(), to_json(metadata));
    }
    Value::Object(object)
}

fn status_to_json(status: &DescriptorStatus) -> Value {
    let mut object = Map::new();
    object.insert("code".to_owned(), code_to_json(status.code));
    if let Some(limit) = &status.current_limit {
        let unit = Unit::try_from(limit.unit).unwrap_or_default().as_str_name();
        let limit = json!({"requestsPerUnit": limit.requests_per_unit, "unit": unit});
        object.insert("currentLimit".to_owned(), limit);
    }
    if status.limit_remaining > 0 {
        object.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(reset) = &status.duration_until_reset {
        let seconds = match reset.nanos {
            0 => format!("{}s", reset.seconds),
            nanos => format!("{}.{:03}s", reset.seconds, nanos / 1_000_000),
        };
        object.insert("durationUntilReset".to_owned(), seconds.into());
    }
    Value::Object(object)
}

fn code_to_json(code: i32) -> Value {
    Code::try_from(code).unwrap_or_default().as_str_name().into()
}
