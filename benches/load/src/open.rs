//! Requests that come when they come, as those of many users do.

use crate::{Failure, percentiles, wire};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::time::{Duration, Instant};

/// What is sent, and how often.
pub struct Load {
    pub request: Vec<u8>,
    /// Of a reply.
    pub lines: usize,
    /// Requests a second.
    pub rate: f64,
    pub seconds: f64,
}

/// How long the last replies may take.
const PATIENCE: Duration = Duration::from_secs(10);

struct Connection {
    stream: TcpStream,
    /// What the socket did not take yet.
    to_send: Vec<u8>,
    heard: Vec<u8>,
    /// When each request was due that has no reply yet.
    due: VecDeque<Instant>,
}

impl Load {
    pub fn run(&self, streams: Vec<TcpStream>, begin: impl FnOnce() -> io::Result<()>) -> Result<String, Failure> {
        let mut poll = Poll::new()?;
        let mut connections = Vec::new();
        for (number, mut stream) in streams.into_iter().enumerate() {
            poll.registry().register(&mut stream, Token(number), Interest::READABLE)?;
            let (to_send, heard, due) = Default::default();
            connections.push(Connection { stream, to_send, heard, due });
        }
        let mut latencies = Vec::new();
        let mut events = Events::with_capacity(1024);
        begin()?;
        let start = Instant::now();
        let all = f64_to_count(self.rate * self.seconds);
        let mut sent = 0;
        while latencies.len() < all {
            let now = Instant::now();
            while sent < all {
                let due = start + Duration::from_secs_f64(count_to_f64(sent) / self.rate);
                if due > now {
                    break;
                }
                let turn = sent % connections.len();
                connections[turn].send(&self.request, due)?;
                sent += 1;
            }
            poll.poll(&mut events, Some(Duration::ZERO))?;
            for event in &events {
                connections[event.token().0].hear(self.lines, &mut latencies)?;
            }
            if sent == all {
                for connection in &mut connections {
                    connection.flush()?;
                }
                if start.elapsed().as_secs_f64() > self.seconds + PATIENCE.as_secs_f64() {
                    return Err("the server is too slow for this rate".into());
                }
            }
        }
        Ok(format!(r#"{{"requests": {all}, {}}}"#, percentiles(latencies)))
    }
}

impl Connection {
    fn send(&mut self, request: &[u8], due: Instant) -> io::Result<()> {
        self.to_send.extend_from_slice(request);
        self.due.push_back(due);
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.to_send.is_empty() {
            match self.stream.write(&self.to_send) {
                Ok(count) => drop(self.to_send.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn hear(&mut self, lines: usize, latencies: &mut Vec<Duration>) -> io::Result<()> {
        wire::receive(&mut self.stream, &mut self.heard)?;
        let now = Instant::now();
        let replies = wire::lines(&self.heard)? / lines;
        for due in self.due.drain(..replies) {
            latencies.push(now - due);
        }
        let mut end = 0;
        for _ in 0..replies * lines {
            end += self.heard[end..].iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        }
        self.heard.drain(..end);
        Ok(())
    }
}

/// Of whole numbers far below 2^52.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn f64_to_count(number: f64) -> usize {
    number as usize
}

#[expect(clippy::cast_precision_loss)]
fn count_to_f64(count: usize) -> f64 {
    count as f64
}
