mod block_and_fence;
mod ids_and_bans;
mod keep;
mod many_keys_syntax;
mod one_algorithm;
mod rejected_arguments;
mod rejected_words;
mod several_specs;
mod sketch_syntax;
mod slips;

use super::grammar::*;
use super::numbers::*;
use super::options::*;
use super::throttle::*;
use super::window::WINDOW;
use super::*;
use crate::algorithm::any::AnyLimit;
use crate::algorithm::bucket::{Bucket, Discipline};
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::leases::{Concurrency, MAX_HOLDER};
use crate::algorithm::log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::strict_window::StrictWindow;
use crate::ban::BanRule;
use crate::evaluate::{Request, evaluate};
use crate::limit::{Decision, Identity, Limit, Verdict};
use crate::number::{Amount, Period, Span, Timestamp};
use crate::testing::calls::{amounts, call, lengths, parse_one_algorithm, peek_keys, take_keys, units};
use crate::usage_kind::UsageKind;
use crate::wire::args::{Args, Words};
use crate::wire::error::{Error, Hint, MustBe, Position, Reason, Syntax, one_of};
use proptest::prelude::*;
use std::borrow::Cow;

/// Splits the words of a call after the name of its command.
fn words(text: &str) -> Vec<&[u8]> {
    std::iter::once(&b"RL.TAKE"[..]).chain(text.split(' ').map(str::as_bytes)).collect()
}

/// Splits the words of a call and leaks them, so that parsed values are `'static`.
fn leaked(text: &str) -> &'static Vec<&'static [u8]> {
    Box::leak(Box::new(words(text.to_owned().leak())))
}

/// Parses a call that a plain key can serve.
fn plain_spec(words: &impl Words) -> Result<Spec<'_>, Error> {
    match KeyRequest::take(&mut Args::new(words), None)? {
        KeyRequest::One(spec) => Ok(spec),
        other => unreachable!("{other:?}"),
    }
}

/// Parses a call of the command for an algorithm, which `text` begins with.
fn parse_own_command(text: &str) -> Result<Spec<'static>, Error> {
    let mut args = Args::new(leaked(text));
    let name = args.word()?;
    match parse_one_algorithm(&mut args, Spec::limit_parser(name).unwrap())? {
        KeyRequest::One(spec) => Ok(spec),
        other => unreachable!("{other:?}"),
    }
}

/// Parses a call that a plain key can serve, and returns its request.
fn parse_request(text: &str) -> Result<Request, Error> {
    plain_spec(&words(text)).map(|spec| spec.request)
}

/// Parses the arguments of RL.MTAKE, and returns the number of keys.
fn parse_mtake(words: &[&[u8]]) -> Result<usize, Error> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.MTAKE"[..]).chain(words.iter().copied()).collect();
    take_keys(&mut Args::new(&words)).map(|request| request.keys.len())
}

/// Parses a call that needs a composite key.
fn composite(text: &str) -> Result<CompositeRequest<'static>, Error> {
    match KeyRequest::take(&mut Args::new(leaked(text)), None)? {
        KeyRequest::Composite(call) => Ok(*call),
        other => unreachable!("{other:?}"),
    }
}

fn requests(call: &CompositeRequest) -> Vec<Request> {
    call.specs.iter().map(|spec| spec.request).collect()
}

fn take(cost: u64) -> Request {
    Request::Take(units(cost))
}

const ZERO_COST: Request = Request::Take(Amount::ZERO);

/// Parses the arguments of RL.ACQUIRE, and returns the request with the time to wait, or the error.
fn acquire(text: &str) -> Result<(KeyRequest<'static>, Block), String> {
    let parse = |args: &mut Args<'static>| {
        let mut options = SpecOptions::default();
        let (parsed, AcquireOptions { block, .. }) = Spec::acquire(args, &mut options)?;
        let is_plain = options.is_plain(args);
        let request = KeyRequest::build_single_with_options(args, &parsed, &options)?;
        // RL.ACQUIRE relies on this in its fast path.
        assert!(
            !is_plain
                || matches!(request, KeyRequest::One(spec) if spec.request == take(1) && spec.keep == Amount::ZERO)
        );
        Ok((request, block))
    };
    parse(&mut Args::new(leaked(text))).map_err(|error: Error| error.to_string())
}

#[test]
fn parsed_bucket_is_cached() {
    let cache = BucketCache::default();
    let words = leaked("5 5 1s");
    let mut options = SpecOptions::with_cache(Some(&cache));
    let mut args = Args::new(words);
    Spec::token_bucket(&mut args, &mut options).unwrap();
    assert!(options.is_plain(&args));
    assert!(cache.get([Some(b"5"), Some(b"5"), Some(b"1s")], Discipline::Burst).is_some());
    let words = leaked("5 5 1s COST 2");
    let (mut args, mut options) = (Args::new(words), SpecOptions::default());
    Spec::token_bucket(&mut args, &mut options).unwrap();
    assert!(!options.is_plain(&args));
}

/// Returns the amount that a call keeps, and the lowered limit.
fn keep_and_limit(text: &str) -> (Amount, Amount) {
    let spec = plain_spec(&words(text)).map(|spec| (spec.keep, spec.limit.limit()));
    spec.unwrap_or_else(|error| unreachable!("{text}: {error}"))
}

/// Name of every algorithm, with its required arguments and a valid word for each.
const ARGUMENTS: [(&str, &[(&str, &str)]); 6] = [
    ("TOKENBUCKET", &[("capacity", "10"), ("refill", "1"), ("period", "1s")]),
    ("LEAKYBUCKET", &[("capacity", "10"), ("leak", "1"), ("period", "1s")]),
    ("FIXED", &[("limit", "10"), ("window", "60s")]),
    ("SLIDING", &[("limit", "10"), ("window", "60s")]),
    ("SLIDINGLOG", &[("limit", "10"), ("window", "60s")]),
    ("CONCURRENCY", &[("limit", "10"), ("ttl", "60s"), ("holder", "me")]),
];

/// Returns the syntax of an algorithm.
fn syntax(algorithm: &str) -> &'static Syntax {
    SYNTAXES.into_iter().find(|syntax| syntax.word == algorithm).unwrap()
}

/// Returns a valid spec of an algorithm.
fn valid_spec(algorithm: &'static str, arguments: &[(&str, &'static str)]) -> Vec<&'static str> {
    std::iter::once(algorithm).chain(arguments.iter().map(|(_, word)| *word)).collect()
}

/// Parses words with any content, and returns the limit and the request, or the error.
fn parse<'a>(words: &[&'a str]) -> Result<(AnyLimit, Request), String> {
    let words: Vec<&'a [u8]> = std::iter::once("RL.TAKE").chain(words.iter().copied()).map(str::as_bytes).collect();
    plain_spec(&words).map(|spec| (spec.limit, spec.request)).map_err(|error| error.to_string())
}

/// Words that are malformed or out of range as a duration.
const INVALID_DURATIONS: [&str; 49] = [
    "",
    "s",
    "us",
    "x",
    "1S",
    "1Ms",
    "1MS",
    "1H",
    "1sec",
    "1min",
    "1w",
    "1y",
    "1ns",
    "1ss",
    "1 s",
    " 1s",
    "1s ",
    "1d2h",
    "1h30m",
    "00:01:00",
    "1.s",
    ".5s",
    "+1s",
    "1e",
    "1em",
    "1E3s",
    "infs",
    "inf",
    "nan",
    "1s\n",
    "-1s",
    "-1",
    "-0.5us",
    "3651d",
    "3650.0000001d",
    "3650.00000000000000000001d",
    "87600.1h",
    "315360000.000001",
    "315360000000001ms",
    "1e10",
    "1e400d",
    "1e99999999999999999999d",
    "99999999999999999999us",
    "0.9us",
    "0.0000009",
    "1e-7",
    "0.0009ms",
    "1e-99999999999999999999d",
    "-0",
];

/// Forms of a duration of zero.
const ZERO_DURATIONS: [&str; 6] = ["0", "0s", "0us", "0d", "0.0", "0e9"];

/// Returns all permutations of a few words.
fn permutations<'a>(words: &[&'a str]) -> Vec<Vec<&'a str>> {
    let [first, rest @ ..] = words else { return vec![Vec::new()] };
    let with_first = |order: Vec<&'a str>| {
        (0..=order.len()).map(move |index| [&order[..index], &[*first], &order[index..]].concat())
    };
    permutations(rest).into_iter().flat_map(with_first).collect()
}
