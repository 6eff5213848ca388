//! Clients that each wait for their decision before they ask for the next.

use crate::approach::{Approach, Step};
use crate::{Failure, wire};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{self, Write};
use std::time::{Duration, Instant};

struct Client {
    approach: Approach,
    stream: TcpStream,
    heard: Vec<u8>,
}

/// Numbers of what was granted, decided and sent.
#[derive(Default)]
struct Found {
    granted: usize,
    commands: usize,
    decisions: usize,
}

pub fn run(
    approaches: Vec<Approach>,
    streams: Vec<TcpStream>,
    seconds: Duration,
    begin: impl FnOnce() -> io::Result<()>,
) -> Result<String, Failure> {
    let mut poll = Poll::new()?;
    let mut clients = Vec::new();
    for (number, (approach, mut stream)) in approaches.into_iter().zip(streams).enumerate() {
        poll.registry().register(&mut stream, Token(number), Interest::READABLE)?;
        clients.push(Client { approach, stream, heard: Vec::new() });
    }
    begin()?;
    let start = Instant::now();
    for client in &mut clients {
        client.begin()?;
    }
    let mut found = Found::default();
    let mut events = Events::with_capacity(1024);
    // Until one is made, however long that takes.
    while start.elapsed() < seconds || found.decisions == 0 {
        poll.poll(&mut events, Some(Duration::from_millis(10)))?;
        for event in &events {
            clients[event.token().0].hear(&mut found)?;
        }
    }
    Ok(format!(
        r#"{{"granted": {}, "decisions": {}, "commands": {}, "seconds": {:.6}}}"#,
        found.granted,
        found.decisions,
        found.commands,
        start.elapsed().as_secs_f64(),
    ))
}

impl Client {
    fn begin(&mut self) -> io::Result<()> {
        let request = self.approach.begin();
        self.stream.write_all(request)
    }

    fn hear(&mut self, found: &mut Found) -> io::Result<()> {
        wire::receive(&mut self.stream, &mut self.heard)?;
        if !self.approach.is_answered(&self.heard)? {
            return Ok(());
        }
        found.commands += self.approach.commands();
        let step = self.approach.hear(&self.heard);
        self.heard.clear();
        match step {
            Step::Ask(request) => self.stream.write_all(&request),
            Step::Decided(is_granted) => {
                found.granted += usize::from(is_granted);
                found.decisions += 1;
                self.begin()
            }
        }
    }
}
