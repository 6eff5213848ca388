//! Four implementations of a token bucket: the same arithmetic, done in different places.

use crate::wire::{lines, pack};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

/// Token bucket: capacity, and refill per second.
#[derive(Clone, Copy)]
pub struct Bucket {
    pub capacity: f64,
    pub refill: f64,
}

/// Next step of a client.
pub enum Step {
    Send(Vec<u8>),
    /// End of the decision: `true` if the request is granted.
    Decided(bool),
}

/// Implementation that a client uses, with its state within a decision.
pub struct Approach {
    bucket: Bucket,
    method: Method,
    last_request: Request,
}

enum Method {
    /// Single command that decides.
    Single(Vec<u8>),
    /// Reads and writes of two keys, the tokens and their time; the client computes. With `watch`, it writes in a
    /// transaction, and retries if another client has written meanwhile.
    TwoKeys { names: [String; 2], read: Vec<u8>, watch: Option<Vec<u8>> },
}

/// Request whose replies the client waits for.
enum Request {
    Decision,
    Watch,
    Read,
    /// First of two writes. Contains the second one, which is sent after the reply.
    Write(Vec<u8>),
    LastWrite,
    Unwatch,
    Exec,
}

impl Approach {
    pub fn new(name: &str, bucket: Bucket, key: &str, sha: &str) -> Result<Approach, String> {
        let (capacity, refill) = (bucket.capacity.to_string(), bucket.refill.to_string());
        let method = match name {
            "native" => Method::Single(pack(&["RL.TOKENBUCKET", key, &capacity, &refill, "1s"])),
            "script" => Method::Single(pack(&["EVALSHA", sha, "1", key, &capacity, &refill, "1", "1"])),
            "plain" | "watch" => {
                let names = [format!("{key}:tokens"), format!("{key}:time")];
                let read = pack(&["MGET", &names[0], &names[1]]);
                let watch = (name == "watch").then(|| pack(&["WATCH", &names[0], &names[1]]));
                Method::TwoKeys { names, read, watch }
            }
            _ => return Err(format!("{name} is none of native, script, plain and watch")),
        };
        Ok(Approach { bucket, method, last_request: Request::Decision })
    }

    /// Begins a decision and returns the first request.
    pub fn begin(&mut self) -> &[u8] {
        let (last_request, request) = match &self.method {
            Method::Single(request) => (Request::Decision, request),
            Method::TwoKeys { watch: Some(watch), .. } => (Request::Watch, watch),
            Method::TwoKeys { read, .. } => (Request::Read, read),
        };
        self.last_request = last_request;
        request
    }

    /// Returns the number of commands in the last request.
    pub fn commands(&self) -> usize {
        if matches!(self.last_request, Request::Exec) { 4 } else { 1 }
    }

    /// Returns `true` if all replies to the last request have been received.
    pub fn is_answered(&self, received: &[u8]) -> io::Result<bool> {
        let line_count = lines(received)?;
        Ok(match self.last_request {
            Request::Decision => line_count >= 6,
            // A value that is nil has one line, others have two.
            Request::Read => line_count >= 5 - received.windows(3).filter(|&three| three == b"$-1").count(),
            // After the replies to MULTI and to both commands: nil, or both results.
            Request::Exec => line_count >= 6 || received.ends_with(b"*-1\r\n"),
            Request::Watch | Request::Write(_) | Request::LastWrite | Request::Unwatch => line_count >= 1,
        })
    }

    /// Processes the replies to the last request.
    pub fn process_replies(&mut self, received: &[u8]) -> Step {
        let Method::TwoKeys { names, read, .. } = &self.method else {
            return Step::Decided(received.starts_with(b"*5\r\n:1\r\n"));
        };
        match std::mem::replace(&mut self.last_request, Request::Decision) {
            Request::Decision => unreachable!("a single command is handled above"),
            Request::Watch => {
                self.last_request = Request::Read;
                Step::Send(read.clone())
            }
            Request::Read => {
                let is_watching = matches!(&self.method, Method::TwoKeys { watch: Some(_), .. });
                match (self.bucket.take(names, received), is_watching) {
                    (None, false) => Step::Decided(false),
                    (None, true) => {
                        self.last_request = Request::Unwatch;
                        Step::Send(pack(&["UNWATCH"]))
                    }
                    (Some([first, second]), false) => {
                        self.last_request = Request::Write(second);
                        Step::Send(first)
                    }
                    (Some([first, second]), true) => {
                        self.last_request = Request::Exec;
                        Step::Send([pack(&["MULTI"]), first, second, pack(&["EXEC"])].concat())
                    }
                }
            }
            Request::Write(second) => {
                self.last_request = Request::LastWrite;
                Step::Send(second)
            }
            Request::Unwatch => Step::Decided(false),
            Request::Exec if received.ends_with(b"*-1\r\n") => Step::Send(self.begin().to_vec()),
            Request::LastWrite | Request::Exec => Step::Decided(true),
        }
    }
}

impl Bucket {
    /// Takes a token. Returns the commands that write the bucket back; `None` if the bucket is empty.
    fn take(self, names: &[String; 2], reply: &[u8]) -> Option<[Vec<u8>; 2]> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let tokens = match mget_numbers(reply)[..] {
            [Some(stored), Some(updated)] => self.capacity.min(stored + (now - updated).max(0.0) * self.refill),
            _ => self.capacity,
        };
        if tokens < 1.0 {
            return None;
        }
        let ttl_ms = ((self.capacity - tokens + 1.0) / self.refill * 1e3).round() + 1e3;
        let write = |name: &str, value: f64| pack(&["SET", name, &value.to_string(), "PX", &ttl_ms.to_string()]);
        Some([write(&names[0], tokens - 1.0), write(&names[1], now)])
    }
}

/// Parses the reply to an MGET of two numbers.
fn mget_numbers(reply: &[u8]) -> Vec<Option<f64>> {
    let text = String::from_utf8_lossy(reply);
    let mut rest = text.split("\r\n").skip(1);
    let mut numbers = Vec::new();
    while let Some(length) = rest.next().filter(|length| !length.is_empty()) {
        numbers.push(if length == "$-1" { None } else { rest.next().and_then(|value| value.parse().ok()) });
    }
    numbers
}
