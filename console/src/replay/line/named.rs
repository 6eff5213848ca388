//! Lines whose values have names: JSON and LTSV.

use super::forwarded::Clients;
use super::times::Times;
use super::{Amount, Fields, Line, cost};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Usual names of the time: of nginx, Caddy, Traefik, Envoy, Elastic and others.
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
/// Usual names of keys that need be no address.
const KEYS: [&str; 3] = ["key", "client", "user"];
const COST: &str = "cost";

/// Returns the line that Docker's driver json-file has wrapped: `{"log":"LINE\n","stream":"stdout","time":"..."}`.
pub fn logged(value: &Value) -> Option<&str> {
    value.get("stream")?;
    value.get("log")?.as_str()
}

/// Reads a line of LTSV, `time:...<tab>host:...`, or returns `None` if its first value has no label.
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

/// Reads a line from its values.
pub fn line<'a>(value: &Value, fields: &Fields, times: &mut Times, clients: &Clients) -> Option<Line<'a>> {
    let time = found(value, fields.time.as_deref(), &TIMES).and_then(text)?;
    let cost = match found(value, fields.cost.as_deref(), &[COST]) {
        None | Some(Value::Null) => Amount::ONE,
        Some(said) => cost(&text(said)?)?,
    };
    let key = match &fields.key {
        Some(name) => clients.key(&text(field(value, name)?)?).into_owned(),
        None => key(value, clients)?,
    };
    (!key.is_empty()).then_some(Line { at: times.read(&time)?, key: key.into(), cost })
}

/// Returns the key by the usual names: one that is meant as a key, the client of an address, or a name.
fn key(value: &Value, clients: &Clients) -> Option<String> {
    let free = |name: &str| field(value, name).and_then(text).map(|text| clients.key(&text).into_owned());
    let chain = || FORWARDED.iter().find_map(|name| field(value, name).and_then(joined));
    let address = |name: &&str| {
        let peer = field(value, name).and_then(text)?;
        if peer.contains(',') { clients.of_chain(&peer) } else { clients.behind(&peer, chain().as_deref()) }
    };
    let [first, others @ ..] = KEYS;
    // A host that is no address is mostly the server's own name.
    free(first).or_else(|| ADDRESSES.iter().find_map(address)).or_else(|| others.into_iter().find_map(free))
}

/// Returns the value of a field. A field may itself have a dot in its name.
pub fn field<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.get(name).or_else(|| name.split('.').try_fold(value, |value, part| value.get(part)))
}

/// Returns the value of the field that the caller names, or of the first of the usual ones that is there.
fn found<'v>(value: &'v Value, told: Option<&str>, usual: &[&str]) -> Option<&'v Value> {
    told.as_ref().map_or(usual, std::slice::from_ref).iter().find_map(|name| field(value, name))
}

fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.into()),
        Value::Number(number) => Some(number.to_string().into()),
        _ => None,
    }
}

/// Returns the text of a header, whose lines may be a list.
fn joined(value: &Value) -> Option<String> {
    match value {
        Value::Array(lines) => {
            lines.iter().map(Value::as_str).collect::<Option<Vec<_>>>().map(|lines| lines.join(", "))
        }
        Value::String(text) => Some(text.clone()),
        _ => None,
    }
}
