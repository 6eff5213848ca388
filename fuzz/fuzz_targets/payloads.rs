//! RDB payloads of any fields: refused, or a state that a call could have made and can go on from.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use redis_ratelimit_fuzz::limiter::bucket::{Bucket, Discipline};
use redis_ratelimit_fuzz::limiter::fixed_window::FixedWindow;
use redis_ratelimit_fuzz::limiter::leases::Concurrency;
use redis_ratelimit_fuzz::limiter::log::SlidingLog;
use redis_ratelimit_fuzz::limiter::sliding_window::SlidingWindow;
use redis_ratelimit_fuzz::limiter::strict_window::StrictWindow;
use redis_ratelimit_fuzz::limiter::{Amount, Ask, Limit, Period, Timestamp, Usage};
use redis_ratelimit_fuzz::{Field, Fields, assert_lawful, assert_sound};

#[derive(Arbitrary, Debug)]
struct Payload {
    fields: Vec<Field>,
    limit: u32,
    window: u32,
    now: u64,
    cost: u32,
    aligned: bool,
}

fuzz_target!(|payload: Payload| {
    let limit = Amount::saturating(u64::from(payload.limit) * 1000);
    let Some(window) = Period::parse(format!("{}us", payload.window).as_bytes()) else { return };
    if let Ok(bucket) = Bucket::new(limit, Amount::ONE, window, Discipline::Burst) {
        check(&payload, &bucket);
    }
    check(&payload, &FixedWindow::new(limit, window, payload.aligned));
    check(&payload, &SlidingWindow::new(limit, window));
    check(&payload, &StrictWindow::new(limit, window));
    check(&payload, &SlidingLog::new(limit, window));
    check(&payload, &Concurrency::new(limit, window, b"holder"));
});

fn check<L: Limit>(payload: &Payload, limit: &L) {
    let mut fields = Fields { fields: payload.fields.clone().into() };
    let Some(mut usage) = L::Usage::decode(&mut fields, L::Usage::KIND.version()) else { return };
    assert_sound(&usage);
    let now = Timestamp::from_micros(payload.now % Timestamp::MAX.micros()).unwrap_or_default();
    let cost = Amount::saturating(u64::from(payload.cost));
    for ask in [Ask::Take(cost), Ask::Take(Amount::ZERO)] {
        assert_lawful(limit, &mut usage, now, ask);
    }
}
