//! RDB payloads of any fields: rejected, or a possible state, on which calls keep the laws.

use crate::laws::{Field, Fields, assert_lawful, assert_lawful_call, assert_sound};
use arbitrary::{Arbitrary, Unstructured};
use ratelimit_core::algorithm::bucket::{Bucket, Discipline};
use ratelimit_core::algorithm::fixed_window::FixedWindow;
use ratelimit_core::algorithm::fixed_window::calendar::{Calendar, Offset};
use ratelimit_core::algorithm::leases::Concurrency;
use ratelimit_core::algorithm::log::SlidingLog;
use ratelimit_core::algorithm::sliding_window::SlidingWindow;
use ratelimit_core::algorithm::strict_window::StrictWindow;
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::syntax::KeyRequest;
use ratelimit_core::wire::args::Args;
use ratelimit_core::{Amount, Limit, Period, Request, Timestamp, Usage, UsageKind};

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
    if payload.aligned {
        check(&payload, &FixedWindow::aligned(limit, window, Offset::UTC));
    } else {
        check(&payload, &FixedWindow::new(limit, window));
    }
    for (calendar, offset) in [("1w", "+14:00"), ("1mo", "-14:00"), ("3mo", "+05:45"), ("1y", "+00:00")] {
        let (calendar, offset) = (Calendar::parse(calendar.as_bytes()), Offset::parse(offset.as_bytes()));
        let (Some(calendar), Some(offset)) = (calendar, offset) else { unreachable!() };
        check(&payload, &FixedWindow::calendar(limit, calendar, offset));
        check(&payload, &FixedWindow::aligned(limit, window, offset));
    }
    check(&payload, &SlidingWindow::new(limit, window));
    check(&payload, &StrictWindow::new(limit, window));
    check(&payload, &SlidingLog::new(limit, window));
    check(&payload, &Concurrency::new(limit, window).for_holder(b"holder"));
    check_composite(&payload);
}

fn check<L: Limit>(payload: &Payload, limit: &L) {
    let mut fields = Fields { fields: payload.fields.clone().into() };
    let Some(mut usage) = L::Usage::decode(&mut fields, L::Usage::VERSION) else { return };
    assert_sound(&usage);
    let now = Timestamp::from_micros(payload.now % Timestamp::MAX.micros()).unwrap_or_default();
    let cost = Amount::saturating(u64::from(payload.cost));
    let requests = [Request::Take(cost), Request::Take(Amount::ZERO), Request::Force(cost), Request::Refund(cost)];
    // A lease can only be taken: it has no FORCE, and is released by its holder.
    let count = if L::Usage::KIND == UsageKind::Concurrency { 2 } else { requests.len() };
    for request in requests.into_iter().take(count) {
        assert_lawful(limit, &mut usage, now, request);
    }
}

fn check_composite(payload: &Payload) {
    let mut fields = Fields { fields: payload.fields.clone().into() };
    let Some(mut usage) = CompositeUsage::decode(&mut fields, CompositeUsage::VERSION) else { return };
    assert_sound(&usage);
    let now = Timestamp::from_micros(payload.now % Timestamp::MAX.micros()).unwrap_or_default();
    let window = payload.window.max(1);
    let limits = format!("FIXED 9 {window}us TOKENBUCKET 9 9 {window}us AS a SLIDING 9 {window}us STRICT");
    let extras = format!("SLIDINGLOG 9 {window}us CONCURRENCY 9 {window}us h");
    for (options, limits) in [
        ("COST 0 FORCE", &limits),
        ("COST 2", &limits),
        ("ONCE id 1m", &extras),
        ("SETTLE id 3", &limits),
        ("SETTLE i 0", &extras),
        ("COST -1", &limits),
        ("COST 3 UPTO", &extras),
    ] {
        let ban = if payload.aligned { " BAN 2 1m 1m" } else { "" };
        let text = format!("RL.TAKE {options} {limits}{ban}");
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        let Ok(KeyRequest::Composite(call)) = KeyRequest::take(&mut Args::new(&words), None) else { continue };
        assert_lawful_call(&call, &mut usage, now);
    }
}
