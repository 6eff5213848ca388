//! Benchmarks of the core without a server: `cargo bench`.

use divan::{Bencher, black_box};
use ratelimit_core::syntax::KeyRequest;
use ratelimit_core::wire::args::Args;
use ratelimit_core::{Limit, Request, Span, Timestamp, Usage, evaluate, with_limit};
use std::any::Any;

/// Calls of every algorithm that are always admitted, and calls that are always denied.
const CALLS: [&str; 12] = [
    "TOKENBUCKET 1e9 1e9 60s",
    "TOKENBUCKET 0 1e9 60s",
    "LEAKYBUCKET 1e9 1e9 60s",
    "FIXED 1e12 60s",
    "FIXED 1e12 60s ALIGNED",
    "FIXED 0 60s",
    "SLIDING 1e12 60s",
    "SLIDING 0 60s",
    "SLIDING 1e12 60s STRICT",
    "SLIDING 0 60s STRICT",
    "SLIDINGLOG 1e12 1s",
    "CONCURRENCY 1e12 60s holder",
];

fn main() {
    divan::main();
}

/// Parses the words of a call to a limit and a request.
#[divan::bench(args = CALLS)]
fn parse(bencher: Bencher, call: &str) {
    let words = words(call);
    bencher.bench(|| KeyRequest::take(&mut Args::new(black_box(&words)), None).is_ok());
}

/// Evaluates and charges calls 10 microseconds apart.
#[divan::bench(args = CALLS)]
fn decide_and_charge(bencher: Bencher, call: &str) {
    let words = words(call);
    let Ok(KeyRequest::One(spec)) = KeyRequest::take(&mut Args::new(&words), None) else { return };
    with_limit!(spec, limit => bench_calls(bencher, limit, spec.request));
}

fn bench_calls<L: Limit>(bencher: Bencher, limit: &L, request: Request) {
    let mut now = Timestamp::from_clock(1_700_000_000_000_000);
    let mut usage = L::Usage::default();
    bencher.bench_local(|| {
        now = now.plus(Span::from_micros(10));
        let evaluation = evaluate(limit, &usage, now, black_box(request));
        evaluation.change.apply(limit, &mut usage, now);
        (evaluation.decision(limit, &usage, now, true), usage.is_unused())
    });
}

/// Peeks at a key after 100,000 calls, at the time of the last call and `BEHIND` microseconds before it.
#[divan::bench(args = ["SLIDINGLOG 1e12 1h", "SLIDINGLOG 1 1h FORCE", "CONCURRENCY 1e12 1h #"], consts = [0, 1000])]
fn peek_at_large_usage<const BEHIND: u64>(bencher: Bencher, call: &str) {
    let words = words(call);
    let Ok(KeyRequest::One(spec)) = KeyRequest::take(&mut Args::new(&words), None) else { return };
    with_limit!(spec, limit => {
        let (mut usage, mut now) = (unused(limit), Timestamp::from_clock(1_700_000_000_000_000));
        for number in 0..100_000 {
            now = now.plus(Span::MICROSECOND);
            charge(&call.replace('#', &number.to_string()), &mut usage, now);
        }
        let now = now.minus(Span::from_micros(BEHIND));
        bencher.bench_local(|| evaluate(limit, &usage, now, black_box(spec.request)).decision(limit, &usage, now, false));
    });
}

/// Charges a call on `usage`, which must be of the call's kind.
fn charge<U: Usage>(call: &str, usage: &mut U, now: Timestamp) {
    let words = words(call);
    let Ok(KeyRequest::One(spec)) = KeyRequest::take(&mut Args::new(&words), None) else { return };
    let usage: &mut dyn Any = usage;
    with_limit!(spec, limit => {
        if let Some(usage) = usage.downcast_mut() {
            evaluate(limit, usage, now, spec.request).change.apply(limit, usage, now);
        }
    });
}

fn unused<L: Limit>(_: &L) -> L::Usage {
    L::Usage::default()
}

/// Splits `word word ...` into the words of a call.
fn words(call: &str) -> Vec<&[u8]> {
    std::iter::once("RL.TAKE").chain(call.split(' ')).map(str::as_bytes).collect()
}
