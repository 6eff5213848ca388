//! The calls of a log as they are kept, to be gone through once for each limit that is tried: 5 to 10 bytes a call, in
//! memory and, of a long log, in a temporary file.

use super::work::Work;
use ratelimit_core::{Amount, Timestamp};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use tempfile::SpooledTempFile;

/// Above so many bytes the calls go to a temporary file.
const IN_MEMORY: usize = 64 * 1024 * 1024;

/// Number of calls after which the work is accounted for.
const BATCH: u64 = 1024;

/// A call: when, the number of its key, and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedCall {
    /// When it was made; no earlier than the call before it.
    pub at: Timestamp,
    /// Its key, by the order in which the keys came.
    pub key: usize,
    /// What it costs.
    pub cost: Amount,
}

/// Calls as they are being written, in the order of their times.
pub struct Writer {
    to: BufWriter<SpooledTempFile>,
    last: u64,
    /// How many there are.
    pub count: u64,
}

impl Writer {
    /// None.
    #[must_use]
    pub fn new() -> Writer {
        Writer { to: BufWriter::new(SpooledTempFile::new(IN_MEMORY)), last: 0, count: 0 }
    }

    /// One more.
    ///
    /// # Errors
    /// No room for the temporary file.
    pub fn push(&mut self, call: LoggedCall) -> io::Result<()> {
        write(&mut self.to, call.at.micros().saturating_sub(self.last))?;
        write(&mut self.to, call.key as u64)?;
        // Nearly all cost 1.
        write(&mut self.to, if call.cost == Amount::ONE { 0 } else { call.cost.millionths() + 1 })?;
        self.last = call.at.micros();
        self.count += 1;
        Ok(())
    }

    /// All of them, to be read as often as one likes.
    ///
    /// # Errors
    /// No room for the temporary file.
    pub fn end(self) -> io::Result<Calls> {
        let count = self.count;
        let from = self.to.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(Calls { from, count })
    }
}

/// The calls of a log.
pub struct Calls {
    from: SpooledTempFile,
    /// How many there are.
    pub count: u64,
}

impl Calls {
    /// Goes through them from the first on, until `each` says that it is enough.
    ///
    /// # Errors
    /// The temporary file cannot be read, or it is too much work.
    pub fn each(&mut self, work: &Work, mut each: impl FnMut(LoggedCall) -> bool) -> io::Result<()> {
        self.from.rewind()?;
        let mut from = BufReader::with_capacity(64 * 1024, &mut self.from);
        let mut last = 0;
        for place in 0..self.count {
            if place.is_multiple_of(BATCH) {
                work.spend(BATCH.min(self.count - place))?;
            }
            last += read(&mut from)?;
            let key = usize::try_from(read(&mut from)?).map_err(|_| io::ErrorKind::InvalidData)?;
            let cost = match read(&mut from)?.checked_sub(1) {
                None => Amount::ONE,
                Some(millionths) => Amount::saturating(millionths),
            };
            let at = Timestamp::from_micros(last).ok_or(io::ErrorKind::InvalidData)?;
            if !each(LoggedCall { at, key, cost }) {
                break;
            }
        }
        Ok(())
    }
}

/// A number in as few bytes as it needs, seven bits in each, the lowest first.
fn write(to: &mut impl Write, mut number: u64) -> io::Result<()> {
    let (mut bytes, mut length) = ([0_u8; 10], 0);
    for byte in &mut bytes {
        length += 1;
        *byte = u8::try_from(number & 0x7F).unwrap_or_default();
        number >>= 7;
        if number == 0 {
            break;
        }
        *byte |= 0x80;
    }
    to.write_all(bytes.get(..length).unwrap_or_default())
}

fn read(from: &mut impl Read) -> io::Result<u64> {
    let (mut number, mut byte) = (0, [0_u8]);
    for shift in (0..64).step_by(7) {
        from.read_exact(&mut byte)?;
        let [bits] = byte;
        number |= u64::from(bits & 0x7F) << shift;
        if bits < 0x80 {
            return Ok(number);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_as_often_as_one_likes_as_they_were_written() {
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        let written =
            [(0, 0, 1), (0, 1, 1_000_000), (1_700_000_000_000_000, 128, 0), (1_700_000_000_000_001, 70_000, 16_383)];
        let of = |(micros, key, cost)| LoggedCall { at: at(micros), key, cost: Amount::saturating(cost) };
        let written = written.map(of);
        let mut writer = Writer::new();
        for call in written {
            writer.push(call).unwrap();
        }
        let mut calls = writer.end().unwrap();
        assert_eq!(calls.count, 4);
        for _ in 0..2 {
            let mut read = vec![];
            calls
                .each(&Work::default(), |call| {
                    read.push(call);
                    true
                })
                .unwrap();
            assert_eq!(read, written);
        }
        let mut seen = 0;
        calls
            .each(&Work::default(), |_| {
                seen += 1;
                seen < 2
            })
            .unwrap();
        assert_eq!(seen, 2);
    }

    #[test]
    fn numbers_of_any_size_are_written() {
        for number in (0..64).flat_map(|shift| [1_u64 << shift, (1 << shift) - 1]).chain([u64::MAX]) {
            let mut bytes = vec![];
            write(&mut bytes, number).unwrap();
            assert_eq!(read(&mut bytes.as_slice()).unwrap(), number);
        }
        assert!(read(&mut [0x80_u8; 11].as_slice()).is_err());
    }
}
