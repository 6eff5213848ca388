//! Loads a server with clients that each wait for a decision before they request the next, and prints the results as
//! JSON.
//!
//! `load PORT CLIENTS SECONDS APPROACH CAPACITY REFILL SHA` connects, prints "ready", waits for a line, and begins. Its
//! caller can read the server's counters before it sends the line. All clients share one thread and one key.

mod approach;
mod closed;
mod wire;

use std::env;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    match run(&env::args().skip(1).collect::<Vec<_>>()) {
        Ok(results) => {
            println!("{results}");
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
        [port, clients, seconds, approach, capacity, refill, sha] => {
            let bucket = approach::Bucket { capacity: capacity.parse()?, refill: refill.parse()? };
            let clients = (0..clients.parse()?)
                .map(|_: usize| approach::Approach::new(approach, bucket, "user:0", sha))
                .collect::<Result<Vec<_>, _>>()?;
            let streams = wire::connect(port.parse()?, clients.len())?;
            closed::run(clients, streams, Duration::from_secs_f64(seconds.parse()?), || {
                wait_for_start(&mut io::stdin().lock())
            })
        }
        _ => Err("usage: load PORT CLIENTS SECONDS APPROACH CAPACITY REFILL SHA".into()),
    }
}

/// Prints "ready", and waits for a line.
fn wait_for_start(input: &mut impl BufRead) -> io::Result<()> {
    println!("ready");
    io::stdout().flush()?;
    input.read_line(&mut String::new())?;
    Ok(())
}
