//! Closed loop: clients that each wait for a decision before they request the next.

use crate::approach::{Approach, Step};
use crate::{Failure, wire};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{self, Write};
use std::time::{Duration, Instant};

struct Client {
    approach: Approach,
    stream: TcpStream,
    received: Vec<u8>,
}

/// Numbers of granted requests, commands sent, and decisions.
#[derive(Default)]
struct Totals {
    granted: usize,
    commands: usize,
    decisions: usize,
}

pub fn run(
    approaches: Vec<Approach>,
    streams: Vec<TcpStream>,
    seconds: Duration,
    wait_for_start: impl FnOnce() -> io::Result<()>,
) -> Result<String, Failure> {
    let mut poll = Poll::new()?;
    let mut clients = Vec::new();
    for (number, (approach, mut stream)) in approaches.into_iter().zip(streams).enumerate() {
        poll.registry().register(&mut stream, Token(number), Interest::READABLE)?;
        clients.push(Client { approach, stream, received: Vec::new() });
    }
    wait_for_start()?;
    let start = Instant::now();
    for client in &mut clients {
        client.begin()?;
    }
    let mut totals = Totals::default();
    let mut events = Events::with_capacity(1024);
    // The loop lasts until there is a decision, even if that takes longer.
    while start.elapsed() < seconds || totals.decisions == 0 {
        poll.poll(&mut events, Some(Duration::from_millis(10)))?;
        for event in &events {
            clients[event.token().0].receive(&mut totals)?;
        }
    }
    Ok(format!(
        r#"{{"granted": {}, "decisions": {}, "commands": {}, "seconds": {:.6}}}"#,
        totals.granted,
        totals.decisions,
        totals.commands,
        start.elapsed().as_secs_f64(),
    ))
}

impl Client {
    fn begin(&mut self) -> io::Result<()> {
        let request = self.approach.begin();
        self.stream.write_all(request)
    }

    fn receive(&mut self, totals: &mut Totals) -> io::Result<()> {
        wire::receive(&mut self.stream, &mut self.received)?;
        if !self.approach.is_answered(&self.received)? {
            return Ok(());
        }
        totals.commands += self.approach.commands();
        let step = self.approach.process_replies(&self.received);
        self.received.clear();
        match step {
            Step::Send(request) => self.stream.write_all(&request),
            Step::Decided(is_granted) => {
                totals.granted += usize::from(is_granted);
                totals.decisions += 1;
                self.begin()
            }
        }
    }
}
