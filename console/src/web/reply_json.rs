//! Parsing of replies of the server, and their conversion to JSON.

use super::text;
use redis::Value;
use serde_json::{Value as Json, json};

/// Returns the integer of a reply.
#[must_use]
pub fn int(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

/// Returns the string of a reply as text.
#[must_use]
pub fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(text::from_bytes(bytes)),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

/// Returns the items of an array, or none for any other reply.
#[must_use]
pub fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        _ => &[],
    }
}

/// Returns the names and values of a flat array.
#[must_use]
pub fn pairs(value: &Value) -> Option<Vec<(String, &Value)>> {
    let Value::Array(flat) = value else { return None };
    flat.chunks_exact(2)
        .map(|pair| if let [name, value] = pair { Some((text_of(name)?, value)) } else { None })
        .collect()
}

/// Converts a flat array of names and values to an object. The items of a value named `parts` become objects as well.
#[must_use]
pub fn object(value: &Value) -> Json {
    let fields = pairs(value).unwrap_or_default().into_iter().map(|(name, value)| {
        let value = if name == "parts" { items(value).iter().map(object).collect() } else { plain(value) };
        (name, value)
    });
    Json::Object(fields.collect())
}

/// Converts a reply other than a flat array of names and values.
fn plain(value: &Value) -> Json {
    match value {
        Value::Int(number) => json!(number),
        Value::Array(items) => items.iter().map(plain).collect(),
        other => text_of(other).map_or(Json::Null, Json::String),
    }
}

#[cfg(test)]
mod tests {
    use super::{Value, object};
    use serde_json::json;

    #[test]
    fn reply_of_rl_info_becomes_an_object() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let lease = Value::Array(vec![Value::BulkString(b"\xffa".to_vec()), text("1.5"), Value::Int(7)]);
        let part = Value::Array(vec![text("kind"), text("rl-leases"), text("leases"), Value::Array(vec![lease])]);
        let reply = Value::Array(vec![text("kind"), text("rl-limits"), text("parts"), Value::Array(vec![part])]);
        let expected = json!({"kind": "rl-limits", "parts": [{"kind": "rl-leases", "leases": [["\\xffa", "1.5", 7]]}]});
        assert_eq!(object(&reply), expected);
        assert_eq!(object(&Value::Nil), json!({}));
    }
}
