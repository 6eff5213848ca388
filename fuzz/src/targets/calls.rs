//! Calls from any words at any time, one after another on one key of each kind: refused, or lawful.

use ratelimit_core::args::Args;
use crate::laws::assert_lawful;
use ratelimit_core::Timestamp;
use ratelimit_core::bucket::BucketUsage;
use ratelimit_core::fixed_window::FixedWindowUsage;
use ratelimit_core::leases::ConcurrencyUsage;
use ratelimit_core::log::SlidingLogUsage;
use ratelimit_core::sliding_window::SlidingWindowUsage;
use ratelimit_core::strict_window::StrictWindowUsage;
use ratelimit_core::spec::{AnyLimit, Asked};
use arbitrary::{Arbitrary, Unstructured};

/// A word: one that the grammar knows, a number that means something, or anything.
#[derive(Arbitrary, Debug)]
enum Word<'a> {
    Known(u8),
    Number(u16),
    Duration(u16, u8),
    Bytes(&'a [u8]),
}

#[derive(Arbitrary, Debug)]
struct Call<'a> {
    clock_moves: i32,
    words: Vec<Word<'a>>,
}

const KNOWN: [&str; 22] = [
    "TOKENBUCKET",
    "LEAKYBUCKET",
    "FIXED",
    "SLIDING",
    "SLIDINGLOG",
    "CONCURRENCY",
    "COST",
    "UPTO",
    "FORCE",
    "MAXWAIT",
    "ALIGNED",
    "STRICT",
    "KEEP",
    "20%",
    "AS",
    "NX",
    "ONCE",
    "SETTLE",
    "EACH",
    "BAN",
    "1e12",
    "3650d",
];
const UNITS: [&str; 6] = ["us", "ms", "s", "m", "h", "d"];

impl Word<'_> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Word::Known(index) => KNOWN[usize::from(*index) % KNOWN.len()].into(),
            Word::Number(value) => format!("{}", f64::from(*value) / 8.0 - 100.0).into(),
            Word::Duration(value, unit) => format!("{value}{}", UNITS[usize::from(*unit) % UNITS.len()]).into(),
            Word::Bytes(bytes) => bytes.to_vec(),
        }
    }
}

pub fn run(data: &[u8]) {
    let Ok(calls) = Vec::<Call>::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let mut now: i64 = 1_700_000_000_000_000;
    let mut bucket = BucketUsage::default();
    let mut window = FixedWindowUsage::default();
    let mut slider = SlidingWindowUsage::default();
    let mut strict = StrictWindowUsage::default();
    let mut log = SlidingLogUsage::default();
    let mut leases = ConcurrencyUsage::default();
    for call in calls.iter().take(64) {
        now += i64::from(call.clock_moves) * 1000;
        let at = Timestamp::from_clock(now);
        let words: Vec<Vec<u8>> = call.words.iter().map(Word::bytes).collect();
        let words: Vec<&[u8]> = std::iter::once(&b"RL.TAKE"[..]).chain(words.iter().map(Vec::as_slice)).collect();
        let mut args = Args::new(&words);
        let specs = match Asked::take(&mut args) {
            Ok(Asked::One(spec)) => vec![spec],
            Ok(Asked::Several(call)) => call.specs,
            Err(_) => continue,
        };
        for spec in specs {
            match spec.limit {
                AnyLimit::Bucket(limit) => assert_lawful(&limit, &mut bucket, at, spec.ask),
                AnyLimit::FixedWindow(limit) => assert_lawful(&limit, &mut window, at, spec.ask),
                AnyLimit::SlidingWindow(limit) => assert_lawful(&limit, &mut slider, at, spec.ask),
                AnyLimit::StrictWindow(limit) => assert_lawful(&limit, &mut strict, at, spec.ask),
                AnyLimit::SlidingLog(limit) => assert_lawful(&limit, &mut log, at, spec.ask),
                AnyLimit::Concurrency(limit) => {
                    assert_lawful(&limit.asked_by(spec.holder).nx(spec.nx), &mut leases, at, spec.ask)
                }
            }
        }
    }
}
