//! Compact storage of the calls of a log: 5 to 10 bytes a call, in memory or, for a long log, in a temporary file. The
//! calls are read again for each limit that is tried.

use super::work_budget::WorkBudget;
use ratelimit_core::{Amount, Timestamp};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use tempfile::SpooledTempFile;

/// Maximum size in memory, in bytes. Beyond it, all calls are stored in a temporary file.
const MAX_IN_MEMORY: usize = 64 * 1024 * 1024;

/// Number of calls that are subtracted from the work budget at once.
const BATCH: u64 = 1024;

/// Call of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedCall {
    /// Time of the call, not earlier than that of the previous call.
    pub at: Timestamp,
    /// Number of the key in the log.
    pub key: usize,
    /// Cost of the call.
    pub cost: Amount,
}

/// Writer of calls in the order of their times.
pub struct CallWriter {
    file: BufWriter<SpooledTempFile>,
    /// Time of the last call in microseconds.
    last: u64,
    /// Number of calls.
    pub count: u64,
}

impl CallWriter {
    /// Creates a writer without calls.
    #[must_use]
    pub fn new() -> CallWriter {
        CallWriter { file: BufWriter::new(SpooledTempFile::new(MAX_IN_MEMORY)), last: 0, count: 0 }
    }

    /// Writes a call.
    ///
    /// # Errors
    /// If the temporary file cannot be written.
    pub fn push(&mut self, call: LoggedCall) -> io::Result<()> {
        write_varint(&mut self.file, call.at.micros().saturating_sub(self.last))?;
        write_varint(&mut self.file, call.key as u64)?;
        // 0 stands for the usual cost of 1.
        write_varint(&mut self.file, if call.cost == Amount::ONE { 0 } else { call.cost.millionths() + 1 })?;
        self.last = call.at.micros();
        self.count += 1;
        Ok(())
    }

    /// Returns the calls, which can be read repeatedly.
    ///
    /// # Errors
    /// If the temporary file cannot be written.
    pub fn finish(self) -> io::Result<Calls> {
        let count = self.count;
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(Calls { file, count })
    }
}

/// Calls of a log.
pub struct Calls {
    file: SpooledTempFile,
    /// Number of calls.
    pub count: u64,
}

impl Calls {
    /// Passes each call to `visit` until it returns `false`.
    ///
    /// # Errors
    /// If the temporary file cannot be read, or if the work exceeds its bound.
    pub fn for_each(&mut self, work: &WorkBudget, mut visit: impl FnMut(LoggedCall) -> bool) -> io::Result<()> {
        self.file.rewind()?;
        let mut reader = BufReader::with_capacity(64 * 1024, &mut self.file);
        let mut last = 0;
        for index in 0..self.count {
            if index.is_multiple_of(BATCH) {
                work.spend(BATCH.min(self.count - index))?;
            }
            last += read_varint(&mut reader)?;
            let key = usize::try_from(read_varint(&mut reader)?).map_err(|_| io::ErrorKind::InvalidData)?;
            let cost = match read_varint(&mut reader)?.checked_sub(1) {
                None => Amount::ONE,
                Some(millionths) => Amount::saturating(millionths),
            };
            let at = Timestamp::from_micros(last).ok_or(io::ErrorKind::InvalidData)?;
            if !visit(LoggedCall { at, key, cost }) {
                break;
            }
        }
        Ok(())
    }
}

/// Writes a number in as few bytes as possible, with seven bits in each byte, the lowest first.
fn write_varint(to: &mut impl Write, mut number: u64) -> io::Result<()> {
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

/// Reads a number that [`write_varint`] wrote.
fn read_varint(from: &mut impl Read) -> io::Result<u64> {
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
    fn written_calls_can_be_read_repeatedly() {
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        let written =
            [(0, 0, 1), (0, 1, 1_000_000), (1_700_000_000_000_000, 128, 0), (1_700_000_000_000_001, 70_000, 16_383)];
        let call = |(micros, key, cost)| LoggedCall { at: at(micros), key, cost: Amount::saturating(cost) };
        let written = written.map(call);
        let mut writer = CallWriter::new();
        for call in written {
            writer.push(call).unwrap();
        }
        let mut calls = writer.finish().unwrap();
        assert_eq!(calls.count, 4);
        for _ in 0..2 {
            let mut read = vec![];
            calls
                .for_each(&WorkBudget::default(), |call| {
                    read.push(call);
                    true
                })
                .unwrap();
            assert_eq!(read, written);
        }
        let mut visited = 0;
        calls
            .for_each(&WorkBudget::default(), |_| {
                visited += 1;
                visited < 2
            })
            .unwrap();
        assert_eq!(visited, 2);
    }

    #[test]
    fn numbers_of_any_size_are_read_back() {
        for number in (0..64).flat_map(|shift| [1_u64 << shift, (1 << shift) - 1]).chain([u64::MAX]) {
            let mut bytes = vec![];
            write_varint(&mut bytes, number).unwrap();
            assert_eq!(read_varint(&mut bytes.as_slice()).unwrap(), number);
        }
        assert!(read_varint(&mut [0x80_u8; 11].as_slice()).is_err());
    }
}
