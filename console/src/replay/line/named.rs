//! Lines with named values: JSON and LTSV.

use super::forwarded::ClientRules;
use super::times::Times;
use super::{Amount, Fields, Line, parse_cost};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Usual names of the time, in logs of nginx, Caddy, Traefik, Envoy, Elastic and others.
const TIMES: [&str; 11] = [
    "time",
    "timestamp",
    "@timestamp",
    "ts",
    "time_iso8601",
    "time_local",
    "msec",
    "StartUTC",
    "start_time",
    "datetime",
    "date",
];
/// Usual names of the address of the client or of the last proxy before the server.
const ADDRESSES: [&str; 11] = [
    "client_ip",
    "clientip",
    "remote_addr",
    "remote_ip",
    "request.client_ip",
    "request.remote_ip",
    "ClientHost",
    "downstream_remote_address",
    "client.ip",
    "ip",
    "host",
];
/// Usual names of `X-Forwarded-For`.
const FORWARDED: [&str; 7] = [
    "x_forwarded_for",
    "http_x_forwarded_for",
    "x-forwarded-for",
    "forwardedfor",
    "xff",
    "request.headers.X-Forwarded-For",
    "request_X-Forwarded-For",
];
/// Usual names of fields with the key, which may be any text.
const KEYS: [&str; 3] = ["key", "client", "user"];
/// Usual name of the cost.
const COST: &str = "cost";

/// Returns the inner line of Docker's driver json-file: `{"log":"LINE\n","stream":"stdout","time":"..."}`.
pub fn docker_line(value: &Value) -> Option<&str> {
    value.get("stream")?;
    value.get("log")?.as_str()
}

/// Parses a line of LTSV, `time:...<tab>host:...`. Returns `None` unless the line has two or more
/// values, each with a label.
pub fn ltsv(line: &str) -> Option<Value> {
    let pair = |field: &str| {
        let (label, value) = field.split_once(':')?;
        let is_label = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let value = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')).unwrap_or(value);
        (!label.is_empty() && label.bytes().all(is_label)).then(|| (label.to_owned(), Value::from(value)))
    };
    let pairs: Map<String, Value> = line.split('\t').map(pair).collect::<Option<_>>()?;
    (pairs.len() > 1).then_some(Value::Object(pairs))
}

/// Returns the call of a line with these values.
pub fn line<'a>(value: &Value, fields: &Fields, times: &mut Times, clients: &ClientRules) -> Option<Line<'a>> {
    let at = match &fields.time {
        Some(name) => times.parse(&text(field(value, name)?)?)?,
        // Fields with another value, such as null or an object, are skipped.
        None => TIMES.iter().find_map(|name| times.parse(&text(field(value, name)?)?))?,
    };
    let cost = match field(value, fields.cost.as_deref().unwrap_or(COST)) {
        None | Some(Value::Null) => Amount::ONE,
        Some(cost) => parse_cost(&text(cost)?)?,
    };
    let key = match &fields.key {
        Some(name) => clients.key(&text(field(value, name)?)?).into_owned(),
        None => key(value, clients)?,
    };
    (!key.is_empty()).then_some(Line { at, key: key.into(), cost })
}

/// Returns the key by the usual names of fields, in this order: `key`, the fields with an address of the client,
/// `client` and `user`.
fn key(value: &Value, clients: &ClientRules) -> Option<String> {
    let by_name = |name: &str| {
        let text = text(field(value, name)?).filter(|text| !text.is_empty())?;
        Some(clients.key(&text).into_owned())
    };
    let chain = || FORWARDED.iter().find_map(|name| field(value, name).and_then(joined));
    let address = |name: &&str| {
        let peer = field(value, name).and_then(text)?;
        if peer.contains(',') { clients.resolve_chain(&peer) } else { clients.resolve_peer(&peer, chain().as_deref()) }
    };
    let [first, others @ ..] = KEYS;
    // Values that are not addresses are skipped: a field `host` usually has the server's own name.
    by_name(first).or_else(|| ADDRESSES.iter().find_map(address)).or_else(|| others.into_iter().find_map(by_name))
}

/// Returns the value of a field. A dot in the name leads into a nested value, unless a field has the whole name.
pub fn field<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.get(name).or_else(|| name.split('.').try_fold(value, |value, part| value.get(part)))
}

fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.into()),
        Value::Number(number) => Some(number.to_string().into()),
        _ => None,
    }
}

/// Returns the text of a header, whose value may be a list.
fn joined(value: &Value) -> Option<String> {
    match value {
        Value::Array(lines) => {
            lines.iter().map(Value::as_str).collect::<Option<Vec<_>>>().map(|lines| lines.join(", "))
        }
        Value::String(text) => Some(text.clone()),
        _ => None,
    }
}
