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

pub enum Step {
    Ask(Vec<u8>),
    Decided(bool),
}

/// Implementation that a client uses, with its state within a decision.
pub struct Approach {
    bucket: Bucket,
    way: Way,
    asked: Asked,
}

enum Way {
    /// Single command that decides.
    Single(Vec<u8>),
    /// Tokens and their time in a key each, computed by the client. With `watch`, in a transaction that fails if
    /// another client has written meanwhile, and is then retried.
    TwoKeys { names: [String; 2], read: Vec<u8>, watch: Option<Vec<u8>> },
}

enum Asked {
    Decision,
    Watch,
    Read,
    /// First write; the second one, which is sent after the reply, is kept here.
    Write(Vec<u8>),
    LastWrite,
    Unwatch,
    Exec,
}

impl Approach {
    pub fn new(name: &str, bucket: Bucket, key: &str, sha: &str) -> Result<Approach, String> {
        let (capacity, refill) = (bucket.capacity.to_string(), bucket.refill.to_string());
        let way = match name {
            "native" => Way::Single(pack(&["RL.TOKENBUCKET", key, &capacity, &refill, "1s"])),
            "script" => Way::Single(pack(&["EVALSHA", sha, "1", key, &capacity, &refill, "1", "1"])),
            "plain" | "watch" => {
                let names = [format!("{key}:tokens"), format!("{key}:time")];
                let read = pack(&["MGET", &names[0], &names[1]]);
                let watch = (name == "watch").then(|| pack(&["WATCH", &names[0], &names[1]]));
                Way::TwoKeys { names, read, watch }
            }
            _ => return Err(format!("{name} is none of native, script, plain and watch")),
        };
        Ok(Approach { bucket, way, asked: Asked::Decision })
    }

    /// Begins a decision and returns the first request.
    pub fn begin(&mut self) -> &[u8] {
        let (asked, request) = match &self.way {
            Way::Single(request) => (Asked::Decision, request),
            Way::TwoKeys { watch: Some(watch), .. } => (Asked::Watch, watch),
            Way::TwoKeys { read, .. } => (Asked::Read, read),
        };
        self.asked = asked;
        request
    }

    /// Returns the number of commands in the last request.
    pub fn commands(&self) -> usize {
        if matches!(self.asked, Asked::Exec) { 4 } else { 1 }
    }

    /// Returns `true` if all replies to the last request have been received.
    pub fn is_answered(&self, heard: &[u8]) -> io::Result<bool> {
        let count = lines(heard)?;
        Ok(match self.asked {
            Asked::Decision => count >= 6,
            // A value that is nil has one line, others have two.
            Asked::Read => count >= 5 - heard.windows(3).filter(|&three| three == b"$-1").count(),
            // After the replies to MULTI and to both commands: nil, or both results.
            Asked::Exec => count >= 6 || heard.ends_with(b"*-1\r\n"),
            Asked::Watch | Asked::Write(_) | Asked::LastWrite | Asked::Unwatch => count >= 1,
        })
    }

    /// Processes the replies to the last request.
    pub fn hear(&mut self, heard: &[u8]) -> Step {
        let Way::TwoKeys { names, read, .. } = &self.way else {
            return Step::Decided(heard.starts_with(b"*5\r\n:1\r\n"));
        };
        match std::mem::replace(&mut self.asked, Asked::Decision) {
            Asked::Decision => unreachable!("of one command"),
            Asked::Watch => {
                self.asked = Asked::Read;
                Step::Ask(read.clone())
            }
            Asked::Read => {
                let is_watching = matches!(&self.way, Way::TwoKeys { watch: Some(_), .. });
                match (self.bucket.take(names, heard), is_watching) {
                    (None, false) => Step::Decided(false),
                    (None, true) => {
                        self.asked = Asked::Unwatch;
                        Step::Ask(pack(&["UNWATCH"]))
                    }
                    (Some([first, second]), false) => {
                        self.asked = Asked::Write(second);
                        Step::Ask(first)
                    }
                    (Some([first, second]), true) => {
                        self.asked = Asked::Exec;
                        Step::Ask([pack(&["MULTI"]), first, second, pack(&["EXEC"])].concat())
                    }
                }
            }
            Asked::Write(second) => {
                self.asked = Asked::LastWrite;
                Step::Ask(second)
            }
            Asked::Unwatch => Step::Decided(false),
            Asked::Exec if heard.ends_with(b"*-1\r\n") => Step::Ask(self.begin().to_vec()),
            Asked::LastWrite | Asked::Exec => Step::Decided(true),
        }
    }
}

impl Bucket {
    /// Returns the commands that write the bucket back with one token less; `None` if it is empty.
    fn take(self, names: &[String; 2], reply: &[u8]) -> Option<[Vec<u8>; 2]> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let left = match values(reply)[..] {
            [Some(tokens), Some(updated)] => self.capacity.min(tokens + (now - updated).max(0.0) * self.refill),
            _ => self.capacity,
        };
        if left < 1.0 {
            return None;
        }
        let lives = ((self.capacity - left + 1.0) / self.refill * 1e3).round() + 1e3;
        let write = |name: &str, value: f64| pack(&["SET", name, &value.to_string(), "PX", &lives.to_string()]);
        Some([write(&names[0], left - 1.0), write(&names[1], now)])
    }
}

/// Parses the reply to an MGET of two numbers.
fn values(reply: &[u8]) -> Vec<Option<f64>> {
    let text = String::from_utf8_lossy(reply);
    let mut rest = text.split("\r\n").skip(1);
    let mut found = Vec::new();
    while let Some(length) = rest.next().filter(|length| !length.is_empty()) {
        found.push(if length == "$-1" { None } else { rest.next().and_then(|value| value.parse().ok()) });
    }
    found
}
