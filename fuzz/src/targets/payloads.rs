//! RDB payloads of any fields: refused, or a state that a call could have made and can go on from.

use crate::laws::{Field, Fields, assert_lawful, assert_sound};
use ratelimit_core::bucket::{Bucket, Discipline};
use ratelimit_core::calendar::{Calendar, Offset};
use ratelimit_core::fixed_window::FixedWindow;
use ratelimit_core::leases::Concurrency;
use ratelimit_core::log::SlidingLog;
use ratelimit_core::sliding_window::SlidingWindow;
use ratelimit_core::strict_window::StrictWindow;
use ratelimit_core::{Amount, Ask, Kind, Limit, Period, Timestamp, Usage};
use arbitrary::{Arbitrary, Unstructured};

#[derive(Arbitrary, Debug)]
struct Payload {
    fields: Vec<Field>,
    limit: u32,
    window: u32,
    now: u64,
    cost: u32,
    aligned: bool,
}

pub fn run(data: &[u8]) {
    let Ok(payload) = Payload::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let limit = Amount::saturating(u64::from(payload.limit) * 1000);
    let Some(window) = Period::parse(format!("{}us", payload.window).as_bytes()) else { return };
    if let Ok(bucket) = Bucket::new(limit, Amount::ONE, window, Discipline::Burst) {
        check(&payload, &bucket);
    }
    check(&payload, &FixedWindow::new(limit, window, payload.aligned));
    for (calendar, offset) in [("1w", "+14:00"), ("1mo", "-14:00"), ("3mo", "+05:45"), ("1y", "+00:00")] {
        let (calendar, offset) = (Calendar::parse(calendar.as_bytes()), Offset::parse(offset.as_bytes()));
        let (Some(calendar), Some(offset)) = (calendar, offset) else { unreachable!() };
        check(&payload, &FixedWindow::calendar(limit, calendar, offset));
        check(&payload, &FixedWindow::aligned(limit, window, offset));
    }
    check(&payload, &SlidingWindow::new(limit, window));
    check(&payload, &StrictWindow::new(limit, window));
    check(&payload, &SlidingLog::new(limit, window));
    check(&payload, &Concurrency::new(limit, window).asked_by(b"holder"));
}

fn check<L: Limit>(payload: &Payload, limit: &L) {
    let mut fields = Fields { fields: payload.fields.clone().into() };
    let Some(mut usage) = L::Usage::decode(&mut fields, L::Usage::VERSION) else { return };
    assert_sound(&usage);
    let now = Timestamp::from_micros(payload.now % Timestamp::MAX.micros()).unwrap_or_default();
    let cost = Amount::saturating(u64::from(payload.cost));
    let asks = [Ask::Take(cost), Ask::Take(Amount::ZERO), Ask::Force(cost), Ask::GiveBack(cost)];
    // Leases are taken only, and given back by name.
    let sayable = if L::Usage::KIND == Kind::Concurrency { 2 } else { asks.len() };
    for ask in asks.into_iter().take(sayable) {
        assert_lawful(limit, &mut usage, now, ask);
    }
}
