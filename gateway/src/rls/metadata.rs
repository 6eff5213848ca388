//! Dynamic metadata of a response, in the form of envoyproxy/ratelimit.

use crate::evaluation::{RequestDecision, RequestPart};
use crate::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitUnit};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::Map;

/// Returns the dynamic metadata: the request, and the metadata of the rules that are not exceeded or are in shadow
/// mode. If several rules have the same key, the first rule takes precedence.
pub fn response_metadata(request: &RateLimitRequest, parts: &[RequestPart], decision: &RequestDecision) -> Struct {
    let mut object = Map::new();
    object.insert("domain".to_owned(), request.domain.as_str().into());
    object.insert("descriptors".to_owned(), request.descriptors.iter().map(descriptor_to_json).collect());
    if request.hits_addend > 0 {
        object.insert("hitsAddend".to_owned(), request.hits_addend.into());
    }
    let mut merged = Map::new();
    for (part, decision) in parts.iter().zip(&decision.parts) {
        if let RequestPart::Call(rule_call) = part
            && let Some(metadata) = &rule_call.metadata
            && (!decision.is_over || decision.shadow)
        {
            merge(&mut merged, metadata);
        }
    }
    if !merged.is_empty() {
        object.insert("metadata".to_owned(), merged.into());
    }
    from_json(&object)
}

fn descriptor_to_json(descriptor: &RateLimitDescriptor) -> serde_json::Value {
    let mut object = Map::new();
    let entries = descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    object.insert("entries".to_owned(), entries.collect());
    if let Some(limit) = descriptor.limit {
        let unit = RateLimitUnit::try_from(limit.unit).unwrap_or_default().as_str_name();
        let text = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
        object.insert("limit".to_owned(), text.into());
    }
    if let Some(hits) = descriptor.hits_addend {
        object.insert("hitsAddend".to_owned(), hits.value.into());
    }
    object.into()
}

/// Adds the fields of `source` that `target` lacks, also within nested objects.
fn merge(target: &mut Map<String, serde_json::Value>, source: &Map<String, serde_json::Value>) {
    for (key, value) in source {
        match (target.get_mut(key), value) {
            (Some(serde_json::Value::Object(target)), serde_json::Value::Object(source)) => merge(target, source),
            (Some(_), _) => {}
            (None, value) => {
                target.insert(key.clone(), value.clone());
            }
        }
    }
}

fn from_json(object: &Map<String, serde_json::Value>) -> Struct {
    Struct { fields: object.iter().map(|(key, value)| (key.clone(), value_from_json(value))).collect() }
}

fn value_from_json(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    let kind = match value {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(value) => Kind::NumberValue(value.as_f64().unwrap_or_default()),
        Json::String(value) => Kind::StringValue(value.clone()),
        Json::Array(values) => Kind::ListValue(ListValue { values: values.iter().map(value_from_json).collect() }),
        Json::Object(object) => Kind::StructValue(from_json(object)),
    };
    Value { kind: Some(kind) }
}

/// Converts a google.protobuf.Struct to JSON.
pub fn to_json(object: &Struct) -> serde_json::Value {
    object.fields.iter().map(|(key, value)| (key.clone(), value_to_json(value))).collect()
}

fn value_to_json(value: &Value) -> serde_json::Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => serde_json::Value::Null,
        Some(Kind::BoolValue(value)) => (*value).into(),
        Some(Kind::NumberValue(value)) => number(*value),
        Some(Kind::StringValue(value)) => value.as_str().into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(value_to_json).collect(),
        Some(Kind::StructValue(object)) => to_json(object),
    }
}

/// Converts a number to JSON. Whole numbers have no fraction, as in Go's protojson.
#[allow(clippy::cast_possible_truncation, reason = "whole numbers of less than 2^53")]
fn number(value: f64) -> serde_json::Value {
    if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 { (value as i64).into() } else { value.into() }
}
