//! Reading of a log, which results in its calls in the order of their times, and the names of its keys.

use super::line::{ClientRules, Fields, LineParser, ParsedLine};
use super::logged_calls::{CallWriter, Calls, LoggedCall};
use super::work_budget::WorkBudget;
use ratelimit_core::{Amount, Span, Timestamp};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, BufRead};
use std::rc::Rc;

/// Maximum length of a line, in bytes. Longer lines are skipped.
const MAX_LINE: u64 = 64 * 1024;
/// Maximum number of characters of a malformed line in the report.
const MAX_SHOWN: usize = 160;
/// Maximum length of a key, in bytes.
const MAX_KEY: usize = 1024;
/// Maximum length of the names of all keys together, in bytes.
const MAX_NAMES: usize = 256 * 1024 * 1024;
/// Maximum number of calls that wait for calls of an earlier time.
const MAX_WAITING: usize = 1_000_000;

/// Options for the reading of a log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Names of the fields of JSON lines.
    pub fields: Fields,
    /// Rules by which addresses in the log become keys.
    pub clients: ClientRules,
    /// Maximum time by which a line may be earlier than a line before it.
    pub late: Span,
    /// Maximum number of keys.
    pub max_keys: usize,
}

/// Numbers of skipped lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkippedLines {
    /// Malformed lines.
    pub not_understood: u64,
    /// Lines that are earlier than a line before them, by more than the allowed time.
    pub out_of_order: u64,
    /// Lines of keys beyond the maximum number.
    pub beyond_keys: u64,
}

/// Calls of a log.
pub struct Log {
    /// Calls, in the order of their times.
    pub calls: Calls,
    /// Names of the keys, by their numbers.
    pub names: Vec<Rc<str>>,
    /// Skipped lines.
    pub skipped: SkippedLines,
    /// Number and beginning of the first malformed line.
    pub first_not_understood: Option<(u64, String)>,
    /// Times of the first and the last call.
    pub span: Option<(Timestamp, Timestamp)>,
}

impl Log {
    /// Reads a log to its end.
    ///
    /// # Errors
    /// If the log cannot be read, if the temporary file cannot be written, or if the work exceeds its bound.
    pub fn read(mut input: impl BufRead, options: LogOptions, work: &WorkBudget) -> io::Result<Log> {
        let mut parser = LineParser::new(options.fields, options.clients);
        let mut keys = Keys { numbers: HashMap::new(), names: vec![], bytes: 0, limit: options.max_keys };
        let mut reorderer = Reorderer {
            late: options.late,
            waiting: BinaryHeap::new(),
            newest: Timestamp::EPOCH,
            written_span: None,
            writer: CallWriter::new(),
        };
        let (mut skipped, mut first_not_understood) = (SkippedLines::default(), None);
        let (mut buffer, mut number, mut serial) = (vec![], 0_u64, 0_u64);
        while let Some(is_complete) = read_line(&mut input, &mut buffer)? {
            work.spend(1)?;
            number += 1;
            if buffer.trim_ascii().is_empty() {
                continue;
            }
            // Keys that differ only in bytes that are not UTF-8 become one key.
            let text = String::from_utf8_lossy(&buffer);
            let line = match parser.parse(&text) {
                ParsedLine::Call(line) if is_complete && line.key.len() <= MAX_KEY => line,
                ParsedLine::Directive => continue,
                ParsedLine::Call(_) | ParsedLine::Malformed => {
                    skipped.not_understood += 1;
                    first_not_understood.get_or_insert_with(|| (number, beginning(&text)));
                    continue;
                }
            };
            if reorderer.is_too_late(line.at) {
                skipped.out_of_order += 1;
                continue;
            }
            let Some(key) = keys.number(&line.key) else {
                skipped.beyond_keys += 1;
                continue;
            };
            serial += 1;
            reorderer.push(line.at, serial, key, line.cost)?;
        }
        let (first, last, calls) = reorderer.end()?;
        Ok(Log { calls, names: keys.names, skipped, first_not_understood, span: first.zip(last) })
    }
}

/// Returns the beginning of a line, for the report.
fn beginning(line: &str) -> String {
    let line = line.trim_end();
    let beginning: String = line.chars().take(MAX_SHOWN).collect();
    if beginning.len() < line.len() { beginning + "..." } else { beginning }
}

/// Reads a line into the buffer. Returns `Some(false)` if it was too long and has been cut off, and `None` at the end.
fn read_line(input: &mut impl BufRead, buffer: &mut Vec<u8>) -> io::Result<Option<bool>> {
    buffer.clear();
    let read = io::Read::take(&mut *input, MAX_LINE).read_until(b'\n', buffer)?;
    if read as u64 == MAX_LINE && buffer.last() != Some(&b'\n') {
        input.skip_until(b'\n')?;
        return Ok(Some(false));
    }
    Ok((read > 0).then_some(true))
}

/// Numbers and names of the keys.
struct Keys {
    numbers: HashMap<Rc<str>, usize>,
    names: Vec<Rc<str>>,
    /// Length of all names together, in bytes.
    bytes: usize,
    /// Maximum number of keys.
    limit: usize,
}

impl Keys {
    /// Returns the number of a key, or `None` if it is new and there is no room for it.
    fn number(&mut self, name: &str) -> Option<usize> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let number = self.names.len();
        if number >= self.limit || self.bytes + name.len() > MAX_NAMES {
            return None;
        }
        self.bytes += name.len();
        let name: Rc<str> = name.into();
        self.names.push(Rc::clone(&name));
        self.numbers.insert(name, number);
        Some(number)
    }
}

/// Sorter of calls by their times. Calls of the same time keep their order.
struct Reorderer {
    /// Maximum time by which a call may be earlier than a call before it.
    late: Span,
    /// Calls, each with its serial number, that wait for calls of an earlier time.
    waiting: BinaryHeap<Reverse<(Timestamp, u64, usize, Amount)>>,
    /// Latest time of a call so far.
    newest: Timestamp,
    /// Times of the first and the last call that were written.
    written_span: Option<(Timestamp, Timestamp)>,
    writer: CallWriter,
}

impl Reorderer {
    fn is_too_late(&self, at: Timestamp) -> bool {
        self.written_span.is_some_and(|(_, last)| at < last) || self.late == Span::ZERO && at < self.newest
    }

    fn push(&mut self, at: Timestamp, serial: u64, key: usize, cost: Amount) -> io::Result<()> {
        self.newest = self.newest.max(at);
        if self.late == Span::ZERO {
            return self.write(LoggedCall { at, key, cost });
        }
        self.waiting.push(Reverse((at, serial, key, cost)));
        let latest_ready = self.newest.minus(self.late);
        while let Some(Reverse((at, _, key, cost))) = self.waiting.peek().copied() {
            if at > latest_ready && self.waiting.len() <= MAX_WAITING {
                break;
            }
            self.waiting.pop();
            self.write(LoggedCall { at, key, cost })?;
        }
        Ok(())
    }

    fn write(&mut self, call: LoggedCall) -> io::Result<()> {
        let first = self.written_span.map_or(call.at, |(first, _)| first);
        self.written_span = Some((first, call.at));
        self.writer.push(call)
    }

    fn end(mut self) -> io::Result<(Option<Timestamp>, Option<Timestamp>, Calls)> {
        while let Some(Reverse((at, _, key, cost))) = self.waiting.pop() {
            self.write(LoggedCall { at, key, cost })?;
        }
        let (first, last) = self.written_span.unzip();
        Ok((first, last, self.writer.finish()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_log(text: &str, late: u64, max_keys: usize) -> (Vec<(u64, String)>, SkippedLines) {
        let late = Span::SECOND.times(late);
        let options = LogOptions { fields: Fields::default(), clients: ClientRules::default(), late, max_keys };
        let mut log = Log::read(text.as_bytes(), options, &WorkBudget::default()).unwrap();
        let mut calls = vec![];
        let names = log.names.clone();
        log.calls
            .for_each(&WorkBudget::default(), |call| {
                calls.push((call.at.micros() / 1_000_000, names[call.key].to_string()));
                true
            })
            .unwrap();
        (calls, log.skipped)
    }

    fn expected(calls: &[(u64, &str)]) -> Vec<(u64, String)> {
        calls.iter().map(|(at, key)| (*at, (*key).to_owned())).collect()
    }

    #[test]
    fn late_and_malformed_lines_are_skipped_and_empty_lines_ignored() {
        let (calls, skipped) = read_log("10 a\n\n# rubbish of words\n11 b\n10.5 c\n11 a\n  \nx", 0, 10);
        assert_eq!(calls, expected(&[(10, "a"), (11, "b"), (11, "a")]));
        assert_eq!(skipped, SkippedLines { not_understood: 2, out_of_order: 1, beyond_keys: 0 });
    }

    #[test]
    fn late_lines_are_sorted_within_the_allowed_time() {
        let (calls, skipped) = read_log("10 a\n12 b\n11 c\n12 d\n20 e\n9 f\n15 g\n18 h\n", 5, 10);
        let expected_calls = [(10, "a"), (11, "c"), (12, "b"), (12, "d"), (15, "g"), (18, "h"), (20, "e")];
        assert_eq!(calls, expected(&expected_calls));
        assert_eq!(skipped, SkippedLines { out_of_order: 1, ..SkippedLines::default() });
    }

    #[test]
    fn lines_of_keys_beyond_the_maximum_are_skipped_and_counted() {
        let (calls, skipped) = read_log("1 a\n2 b\n3 c\n4 a\n5 c\n", 0, 2);
        assert_eq!(calls, expected(&[(1, "a"), (2, "b"), (4, "a")]));
        assert_eq!(skipped, SkippedLines { beyond_keys: 2, ..SkippedLines::default() });
    }

    #[test]
    fn line_that_is_too_long_is_skipped() {
        let text = format!("1 a\n2 {}\n3 b\n", "k".repeat(200_000));
        let (calls, skipped) = read_log(&text, 0, 10);
        assert_eq!(calls, expected(&[(1, "a"), (3, "b")]));
        assert_eq!(skipped.not_understood, 1);
    }
}
