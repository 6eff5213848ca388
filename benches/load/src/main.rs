//! Loads a server with clients that each wait for their decision before they ask for the next, and prints the results as
//! JSON.
//!
//! `load PORT CLIENTS SECONDS APPROACH CAPACITY REFILL SHA` connects, prints "ready", waits for a line, and begins, so
//! that its caller can look at the server before. All clients share one thread and one key.

mod approach;
mod closed;
mod wire;

use std::env;
use std::io::{self, BufRead, Write};
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
        [port, clients, seconds, approach, capacity, refill, sha] => {
            let bucket = approach::Bucket { capacity: capacity.parse()?, refill: refill.parse()? };
            let clients = (0..clients.parse()?)
                .map(|_: usize| approach::Approach::new(approach, bucket, "user:0", sha))
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
