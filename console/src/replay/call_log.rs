//! A log as it is read: its lines, in the order of their times, and the names of its keys.

use super::line::{Clients, Fields, Lines, Read};
use super::logged_calls::{Calls, LoggedCall, Writer};
use super::work::Work;
use ratelimit_core::{Amount, Span, Timestamp};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, BufRead};
use std::rc::Rc;

/// The longest line that is read, in bytes: of a longer one the rest is passed over, and it is not understood.
const LONGEST: u64 = 64 * 1024;
/// Number of characters that are shown of a line that was not understood.
const SHOWN: usize = 160;
/// The longest key, in bytes.
const LONGEST_KEY: usize = 1024;
/// How long the names of all keys may be together, in bytes.
const MOST_NAMES: usize = 256 * 1024 * 1024;
/// How many lines wait for earlier ones at most.
const MOST_WAITING: usize = 1_000_000;

/// How a log is to be read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Where JSON lines say it.
    pub fields: Fields,
    /// Rules by which addresses become keys.
    pub clients: Clients,
    /// How much later than its time a line may stand in the log.
    pub late: Span,
    /// How many keys are followed.
    pub most_keys: usize,
}

/// Lines that were passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Nobody could tell when or who.
    pub not_understood: u64,
    /// They stand behind lines of a later time.
    pub out_of_order: u64,
    /// Of keys beyond those that are followed.
    pub beyond_keys: u64,
}

/// A log that was read.
pub struct Log {
    /// Its calls.
    pub calls: Calls,
    /// The names of the keys, by their numbers.
    pub names: Vec<Rc<str>>,
    /// What is not among the calls.
    pub skipped: Skipped,
    /// Number and text of the first line that was not understood, with its end cut off.
    pub first_not_understood: Option<(u64, String)>,
    /// The times of the first and the last call.
    pub span: Option<(Timestamp, Timestamp)>,
}

impl Log {
    /// Reads a log to its end.
    ///
    /// # Errors
    /// It cannot be read, there is no room for what is kept of it, or reading it is too much work.
    pub fn read(mut from: impl BufRead, reading: Reading, work: &Work) -> io::Result<Log> {
        let mut lines = Lines::new(reading.fields, reading.clients);
        let mut keys = Keys { numbers: HashMap::new(), names: vec![], bytes: 0, most: reading.most_keys };
        let mut ordered = Ordered {
            late: reading.late,
            waiting: BinaryHeap::new(),
            newest: Timestamp::EPOCH,
            written: None,
            to: Writer::new(),
        };
        let (mut skipped, mut first_not_understood) = (Skipped::default(), None);
        let (mut buffer, mut number, mut serial) = (vec![], 0_u64, 0_u64);
        while let Some(whole) = next(&mut from, &mut buffer)? {
            work.spend(1)?;
            number += 1;
            if buffer.trim_ascii().is_empty() {
                continue;
            }
            // What is no UTF-8 is told as if it were: two keys that differ only there are taken for one.
            let text = String::from_utf8_lossy(&buffer);
            let line = match lines.read(&text) {
                Read::Call(line) if whole && line.key.len() <= LONGEST_KEY => line,
                Read::Directive => continue,
                Read::Call(_) | Read::Refused => {
                    skipped.not_understood += 1;
                    first_not_understood.get_or_insert_with(|| (number, beginning(&text)));
                    continue;
                }
            };
            if ordered.is_too_late(line.at) {
                skipped.out_of_order += 1;
                continue;
            }
            let Some(key) = keys.number(&line.key) else {
                skipped.beyond_keys += 1;
                continue;
            };
            serial += 1;
            ordered.push(line.at, serial, key, line.cost)?;
        }
        let (first, last, calls) = ordered.end()?;
        Ok(Log { calls, names: keys.names, skipped, first_not_understood, span: first.zip(last) })
    }
}

/// Returns the beginning of a line, to be shown.
fn beginning(line: &str) -> String {
    let line = line.trim_end();
    let shown: String = line.chars().take(SHOWN).collect();
    if shown.len() < line.len() { shown + "..." } else { shown }
}

/// Reads a line into the buffer. Whether that is the whole of it; `None` at the end.
fn next(from: &mut impl BufRead, buffer: &mut Vec<u8>) -> io::Result<Option<bool>> {
    buffer.clear();
    let read = io::Read::take(&mut *from, LONGEST).read_until(b'\n', buffer)?;
    if read as u64 == LONGEST && buffer.last() != Some(&b'\n') {
        from.skip_until(b'\n')?;
        return Ok(Some(false));
    }
    Ok((read > 0).then_some(true))
}

/// The keys that have come, by number.
struct Keys {
    numbers: HashMap<Rc<str>, usize>,
    names: Vec<Rc<str>>,
    bytes: usize,
    most: usize,
}

impl Keys {
    fn number(&mut self, name: &str) -> Option<usize> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let number = self.names.len();
        if number >= self.most || self.bytes + name.len() > MOST_NAMES {
            return None;
        }
        self.bytes += name.len();
        let name: Rc<str> = name.into();
        self.names.push(Rc::clone(&name));
        self.numbers.insert(name, number);
        Some(number)
    }
}

/// Puts lines that are late in their order: those of one time stay in that of the log.
struct Ordered {
    late: Span,
    waiting: BinaryHeap<Reverse<(Timestamp, u64, usize, Amount)>>,
    /// The latest time that was seen, and that of the first and the last call that was written.
    newest: Timestamp,
    written: Option<(Timestamp, Timestamp)>,
    to: Writer,
}

impl Ordered {
    fn is_too_late(&self, at: Timestamp) -> bool {
        self.written.is_some_and(|(_, last)| at < last) || self.late == Span::ZERO && at < self.newest
    }

    fn push(&mut self, at: Timestamp, serial: u64, key: usize, cost: Amount) -> io::Result<()> {
        self.newest = self.newest.max(at);
        if self.late == Span::ZERO {
            return self.write(LoggedCall { at, key, cost });
        }
        self.waiting.push(Reverse((at, serial, key, cost)));
        let due = self.newest.minus(self.late);
        while let Some(Reverse((at, _, key, cost))) = self.waiting.peek().copied() {
            if at > due && self.waiting.len() <= MOST_WAITING {
                break;
            }
            self.waiting.pop();
            self.write(LoggedCall { at, key, cost })?;
        }
        Ok(())
    }

    fn write(&mut self, call: LoggedCall) -> io::Result<()> {
        let first = self.written.map_or(call.at, |(first, _)| first);
        self.written = Some((first, call.at));
        self.to.push(call)
    }

    fn end(mut self) -> io::Result<(Option<Timestamp>, Option<Timestamp>, Calls)> {
        while let Some(Reverse((at, _, key, cost))) = self.waiting.pop() {
            self.write(LoggedCall { at, key, cost })?;
        }
        let (first, last) = self.written.unzip();
        Ok((first, last, self.to.end()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(text: &str, late: u64, most_keys: usize) -> (Vec<(u64, String)>, Skipped) {
        let late = Span::SECOND.times(late);
        let reading = Reading { fields: Fields::default(), clients: Clients::default(), late, most_keys };
        let mut log = Log::read(text.as_bytes(), reading, &Work::default()).unwrap();
        let mut calls = vec![];
        let names = log.names.clone();
        log.calls
            .each(&Work::default(), |call| {
                calls.push((call.at.micros() / 1_000_000, names[call.key].to_string()));
                true
            })
            .unwrap();
        (calls, log.skipped)
    }

    fn called(calls: &[(u64, &str)]) -> Vec<(u64, String)> {
        calls.iter().map(|(at, key)| (*at, (*key).to_owned())).collect()
    }

    #[test]
    fn lines_of_an_earlier_time_are_skipped_and_so_is_rubbish_and_empty_lines_are_none() {
        let (calls, skipped) = log("10 a\n\n# rubbish of words\n11 b\n10.5 c\n11 a\n  \nx", 0, 10);
        assert_eq!(calls, called(&[(10, "a"), (11, "b"), (11, "a")]));
        assert_eq!(skipped, Skipped { not_understood: 2, out_of_order: 1, beyond_keys: 0 });
    }

    #[test]
    fn lines_that_are_late_are_put_in_order_if_they_are_not_later_than_that() {
        let (calls, skipped) = log("10 a\n12 b\n11 c\n12 d\n20 e\n9 f\n15 g\n18 h\n", 5, 10);
        let ordered = [(10, "a"), (11, "c"), (12, "b"), (12, "d"), (15, "g"), (18, "h"), (20, "e")];
        assert_eq!(calls, called(&ordered));
        assert_eq!(skipped, Skipped { out_of_order: 1, ..Skipped::default() });
    }

    #[test]
    fn keys_beyond_the_bound_are_not_followed_and_that_is_told() {
        let (calls, skipped) = log("1 a\n2 b\n3 c\n4 a\n5 c\n", 0, 2);
        assert_eq!(calls, called(&[(1, "a"), (2, "b"), (4, "a")]));
        assert_eq!(skipped, Skipped { beyond_keys: 2, ..Skipped::default() });
    }

    #[test]
    fn a_line_that_is_too_long_takes_no_memory_and_hides_no_other() {
        let text = format!("1 a\n2 {}\n3 b\n", "k".repeat(200_000));
        let (calls, skipped) = log(&text, 0, 10);
        assert_eq!(calls, called(&[(1, "a"), (3, "b")]));
        assert_eq!(skipped.not_understood, 1);
    }
}
