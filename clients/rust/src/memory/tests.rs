//! The calls of `clients/traces.json` get the server's replies.

use redis::Value;
use serde_json::{Value as Json, json};

use super::store::Store;
use ratelimit_core::Timestamp;

fn reply_or_error_code(store: &mut Store, call: &str, now: i64) -> Json {
    let words: Vec<&[u8]> = call.split(' ').map(str::as_bytes).collect();
    match store.reply(&words, Timestamp::from_clock(now)) {
        Ok(value) => json_of(&value),
        Err(text) => json!(text.split(' ').next()),
    }
}

fn json_of(value: &Value) -> Json {
    match value {
        Value::Int(number) => json!(number),
        Value::BulkString(text) => json!(String::from_utf8_lossy(text)),
        Value::Array(values) => values.iter().map(json_of).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_replies_like_the_server() {
    let file: Json = serde_json::from_str(include_str!("../../../traces.json")).unwrap();
    let traces = file["traces"].as_object().unwrap();
    assert!(traces.len() > 40);
    for (name, steps) in traces {
        let (mut store, mut now) = (Store::default(), file["start"].as_i64().unwrap());
        for (index, step) in steps.as_array().unwrap().iter().enumerate() {
            now += step[0].as_i64().unwrap();
            let call = step[1].as_str().unwrap();
            assert_eq!(reply_or_error_code(&mut store, call, now), step[2], "{name}, call {index}: {call}");
        }
    }
}
