//! Sequences of calls of any words at any time, on a plain key of each kind and on a composite key: each is rejected,
//! or keeps the laws. Some steps set or scale a policy, which later calls may use.

use crate::laws::{assert_lawful, assert_lawful_call};
use arbitrary::{Arbitrary, Unstructured};
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::policy::{ScaleStep, Scaling};
use ratelimit_core::syntax::{KeyRequest, Policy};
use ratelimit_core::wire::args::Args;
use ratelimit_core::{AnyUsage, PlainUsage, Timestamp, UsageKind, with_limit};

/// Part of a call: words of the grammar, a number, a duration, or any bytes.
#[derive(Arbitrary, Debug)]
enum Word<'a> {
    Known(u8),
    Number(u16),
    Duration(u16, u8),
    Bytes(&'a [u8]),
}

#[derive(Arbitrary, Debug)]
struct Call<'a> {
    /// Step of the clock before the call, in milliseconds.
    clock_step: i32,
    words: Vec<Word<'a>>,
}

/// Words of the grammar.
const KNOWN: [&str; 39] = [
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
    // Combinations that would rarely come up by chance.
    "COST 1",
    "COST -1",
    "ONCE r1 1s",
    "ONCE r2 1m",
    "SETTLE r1 0.5",
    "SETTLE r2 3",
    "BAN 2 3s 1m MAX 5m",
    "KEEP 50%",
    "AS a",
    "TOKENBUCKET 3 2 1s",
    "LEAKYBUCKET 3 2 1m",
    "FIXED 3 1s",
    "FIXED 3 1mo ALIGNED",
    "SLIDING 3 1s",
    "SLIDING 3 1m STRICT",
    "SLIDINGLOG 3 1s",
    "CONCURRENCY 3 1s h1",
];
/// Words of policies. The highest indexes select them, so that older inputs keep their meaning.
const POLICY_WORDS: [&str; 22] = [
    "POLICY p",
    "POLICYSET",
    "POLICYSCALE",
    "SHADOW",
    "POLICYSCALE 2",
    "POLICYSCALE 0.5",
    "POLICYSCALE 0",
    "POLICY p ONCE r1 1s",
    "POLICY p ONCE r2 1m COST 2",
    "POLICY p SETTLE r1 0.5",
    "POLICY p SETTLE r2 3",
    "POLICY p COST -1",
    "POLICY p COST 0",
    "POLICY p COST 2 UPTO",
    "POLICY p COST 2 FORCE",
    "POLICY p MAXWAIT 1s KEEP 1",
    "CONCURRENCY 2 1s",
    "CONCURRENCY 2 1m COST 2 SHADOW",
    "POLICYSET TOKENBUCKET 3 2 1s",
    "POLICYSET TOKENBUCKET 3 2 1s COST 1 SHADOW FIXED 3 1s",
    "POLICYSET CONCURRENCY 2 1s SLIDING 3 1s BAN 2 3s 1m",
    "POLICYSET LEAKYBUCKET 3 2 1m FIXED 2 1m AS a SHADOW BAN 2 3s 1m",
];
const UNITS: [&str; 6] = ["us", "ms", "s", "m", "h", "d"];

impl Word<'_> {
    fn words(&self) -> Vec<Vec<u8>> {
        let known = |index: u8| {
            let policy_words = POLICY_WORDS.get(usize::from(u8::MAX - index));
            policy_words.unwrap_or(&KNOWN[usize::from(index) % KNOWN.len()]).split(' ').map(Vec::from)
        };
        match self {
            Word::Known(index) => known(*index).collect(),
            Word::Number(value) => vec![format!("{}", f64::from(*value) / 8.0 - 100.0).into()],
            Word::Duration(value, unit) => vec![format!("{value}{}", UNITS[usize::from(*unit) % UNITS.len()]).into()],
            Word::Bytes(bytes) => vec![bytes.to_vec()],
        }
    }
}

pub fn run(data: &[u8]) {
    let Ok(calls) = Vec::<Call>::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let mut now: i64 = 1_700_000_000_000_000;
    let mut plain: Vec<AnyUsage> = UsageKind::ALL.into_iter().filter_map(AnyUsage::unused).collect();
    let mut components = CompositeUsage::default();
    let (mut unscaled, mut policy): (Option<Policy>, Option<Policy>) = (None, None);
    for call in calls.iter().take(64) {
        now += i64::from(call.clock_step) * 1000;
        let at = Timestamp::from_clock(now);
        let words: Vec<Vec<u8>> = call.words.iter().flat_map(Word::words).collect();
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        match words.first() {
            Some(&b"POLICYSET") => {
                if let Ok(set) = Policy::parse(&mut Args::new(&words)) {
                    (unscaled, policy) = (Some(set.clone()), Some(set));
                }
                continue;
            }
            Some(&b"POLICYSCALE") => {
                if let Ok(scaling) = Scaling::parse(&mut Args::new(&words)) {
                    let (ScaleStep::Set(number)
                    | ScaleStep::Multiply { multiplier: number, .. }
                    | ScaleStep::Add { step: number, .. }) = scaling.step;
                    policy = unscaled.as_ref().map(|unscaled| unscaled.scaled(number));
                }
                continue;
            }
            _ => {}
        }
        let words: Vec<&[u8]> = std::iter::once(&b"RL.TAKE"[..]).chain(words).collect();
        let request = KeyRequest::take(&mut Args::new(&words), None);
        let request = match (&request, &policy) {
            (Ok(KeyRequest::Policy(unresolved)), Some(policy)) => unresolved.request(policy),
            _ => request,
        };
        let call = match request {
            Ok(KeyRequest::One(spec)) => ratelimit_core::syntax::CompositeRequest::of_one(spec),
            Ok(KeyRequest::Composite(call)) => *call,
            Ok(KeyRequest::Policy(_)) | Err(_) => continue,
        };
        assert_lawful_call(&call, &mut components, at);
        for spec in call.specs {
            with_limit!(spec, limit => {
                let usage = plain.iter_mut().find_map(PlainUsage::of_mut).unwrap();
                assert_lawful(limit, usage, at, spec.request);
            });
        }
    }
}
