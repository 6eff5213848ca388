//! Loads a server, in one of two ways, and prints what came of it as JSON.
//!
//! `load open PORT CONNECTIONS RATE SECONDS LINES < REQUEST`: an open loop. The request is sent RATE times a second,
//! whether replies are there or not, on the connections by turns. A latency counts from when the request was due, not
//! from when it was sent, so that a server (or a client) that is late is not flattered by the requests that it delays.
//!
//! `load decide PORT CLIENTS SECONDS APPROACH KEYS CAPACITY REFILL SHA`: a closed loop. Each client waits for its
//! decision before it asks for the next. KEYS is `hot` or `own`.
//!
//! Either connects, prints "ready", waits for a line, and begins; so who started it can look at the server before.
//! All in one thread, which in an open loop never sleeps: a timer would wake up late.

mod approach;
mod closed;
mod open;
mod wire;

use std::env;
use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    match run(&env::args().skip(1).collect::<Vec<_>>()) {
        Ok(found) => {
            println!("{found}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

type Failure = Box<dyn std::error::Error>;

fn run(words: &[String]) -> Result<String, Failure> {
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["open", port, connections, rate, seconds, lines] => {
            let mut input = io::stdin().lock();
            let mut request = String::new();
            // Its length in a line of its own, since a line that begins it all comes behind it.
            input.read_line(&mut request)?;
            let mut request = vec![0; request.trim().parse()?];
            input.read_exact(&mut request)?;
            let found = open::Load { request, lines: lines.parse()?, rate: rate.parse()?, seconds: seconds.parse()? }
                .run(wire::connect(port.parse()?, connections.parse()?)?, || begin(&mut input))?;
            Ok(found)
        }
        ["decide", port, clients, seconds, approach, keys, capacity, refill, sha] => {
            let bucket = approach::Bucket { capacity: capacity.parse()?, refill: refill.parse()? };
            let clients = (0..clients.parse()?)
                .map(|number| {
                    let key = format!("user:{}", if keys == "hot" { 0 } else { number });
                    approach::Approach::new(approach, bucket, &key, sha)
                })
                .collect::<Result<Vec<_>, _>>()?;
            let streams = wire::connect(port.parse()?, clients.len())?;
            closed::run(clients, streams, Duration::from_secs_f64(seconds.parse()?), || begin(&mut io::stdin().lock()))
        }
        _ => Err("what to do is in the head of benches/load/src/main.rs".into()),
    }
}

/// Says that all is ready, and waits for a line.
fn begin(input: &mut impl BufRead) -> io::Result<()> {
    println!("ready");
    io::stdout().flush()?;
    input.read_line(&mut String::new())?;
    Ok(())
}

/// What part of all latencies a value did not exceed, in milliseconds.
fn percentiles(mut latencies: Vec<Duration>) -> String {
    latencies.sort_unstable();
    let at = |per_mille: usize| {
        let place = (latencies.len() - 1) * per_mille / 1000;
        latencies[place].as_secs_f64() * 1e3
    };
    format!(
        r#""p50_ms": {:.4}, "p99_ms": {:.4}, "p999_ms": {:.4}, "max_ms": {:.4}"#,
        at(500),
        at(990),
        at(999),
        at(1000)
    )
}
