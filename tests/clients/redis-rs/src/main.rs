//! Sends the calls that it reads, a line each, to the port that it is given; see `tests/support/callers.py`.

use redis::aio::ConnectionManager;
use redis::{Cmd, RedisResult, Value};
use std::io::stdin;

/// How often a caller sends a call again that its client has given up.
const MOST_ATTEMPTS: u32 = 5;

#[tokio::main(flavor = "current_thread")]
async fn main() -> RedisResult<()> {
    let port = std::env::args().nth(1).unwrap_or_default();
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut connection = ConnectionManager::new(client).await?;
    for line in stdin().lines() {
        let line = line?;
        let mut call = Cmd::new();
        for word in line.split(' ') {
            call.arg(word);
        }
        let mut attempts = 1;
        let reply = loop {
            match call.query_async(&mut connection).await {
                Err(error) if error.is_io_error() && attempts < MOST_ATTEMPTS => attempts += 1,
                answered => break answered?,
            }
        };
        let allowed = match reply {
            Value::Array(parts) => parts.into_iter().next(),
            _ => None,
        };
        println!("{} {attempts}", i32::from(allowed == Some(Value::Int(1))));
    }
    Ok(())
}
