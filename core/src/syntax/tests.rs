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
use crate::kind::Kind;
use crate::limit::{Decision, Identity, Limit, Verdict};
use crate::number::{Amount, Period, Span, Timestamp};
use crate::testing::calls::{amounts, call, lengths, units};
use crate::wire::args::{Args, Words};
use crate::wire::error::{Error, Hint, MustBe, Position, Reason, Syntax, one_of};
use proptest::prelude::*;
use std::borrow::Cow;

/// The words of a call, its command's name first.
fn words(text: &str) -> Vec<&[u8]> {
    std::iter::once(&b"RL.TAKE"[..]).chain(text.split(' ').map(str::as_bytes)).collect()
}

/// The words of a call, leaked, so that what is read of them is `'static`.
fn leaked(text: &str) -> &'static Vec<&'static [u8]> {
    Box::leak(Box::new(words(text.to_owned().leak())))
}

/// The spec of a call that a plain key can serve.
fn plain(words: &impl Words) -> Result<Spec<'_>, Error> {
    match KeyRequest::take(&mut Args::new(words))? {
        KeyRequest::One(spec) => Ok(spec),
        asked => unreachable!("{asked:?}"),
    }
}

/// The spec of a call of its algorithm's own command.
fn read_alone(text: &str) -> Result<Spec<'static>, Error> {
    let mut args = Args::new(leaked(text));
    let name = args.word()?;
    match KeyRequest::one(&mut args, Spec::reader(name).unwrap())? {
        KeyRequest::One(spec) => Ok(spec),
        asked => unreachable!("{asked:?}"),
    }
}

fn read(text: &str) -> Result<Request, Error> {
    plain(&words(text)).map(|spec| spec.request)
}

#[test]
fn reads_what_is_asked() {
    for (text, request) in [
        ("TOKENBUCKET 200 100 60s", Request::Take(Amount::ONE)),
        ("tokenbucket 200 100 60s cost 2", Request::Take(units(2))),
        ("TOKENBUCKET 200 100 60s COST 0", Request::Take(Amount::ZERO)),
        ("TOKENBUCKET 200 100 60s COST -0 FORCE", Request::Force(Amount::ZERO)),
        ("TOKENBUCKET 200 100 60s COST -2", Request::GiveBack(units(2))),
        ("TOKENBUCKET 200 100 60s COST -0.0000001", Request::GiveBack(Amount::ZERO)),
        ("TOKENBUCKET 200 100 60s UPTO COST 10", Request::UpTo(units(10))),
        ("TOKENBUCKET 200 100 60s MAXWAIT 0", Request::Within(Amount::ONE, Span::ZERO)),
        ("FIXED 5 1m FORCE ALIGNED COST 3", Request::Force(units(3))),
        ("SLIDING 5 1m UPTO", Request::UpTo(Amount::ONE)),
        ("LEAKYBUCKET 5 1 1s COST 0.5", Request::Take(Amount::saturating(500_000))),
        ("SLIDING 5 1m COST 2 STRICT", Request::Take(units(2))),
        ("SLIDINGLOG 5 1m FORCE", Request::Force(Amount::ONE)),
        ("CONCURRENCY 5 1m me", Request::Take(Amount::ONE)),
        ("CONCURRENCY 5 1m me COST 0.1", Request::Take(Amount::saturating(100_000))),
        ("CONCURRENCY 5 1m me cost 0.0000001", Request::Take(Amount::saturating(1))),
        ("TOKENBUCKET 5 1 1s maxwait 1.5s COST 3", Request::Within(units(3), Span::from_micros(1_500_000))),
        ("FIXED 5 1m COST 1000000000000 upto", Request::UpTo(Amount::MAX_ARGUMENT)),
    ] {
        assert_eq!(read(text), Ok(request), "{text}");
    }
}

#[test]
fn refuses_with_the_word_or_the_argument() {
    for (text, error) in [
        (
            "NOSUCH 1 1s",
            "ERR syntax error, unexpected 'NOSUCH', where an option, POLICY or an algorithm is needed: COST, UPTO, FORCE, \
             MAXWAIT, KEEP, ONCE, SETTLE or EACH; TOKENBUCKET, LEAKYBUCKET, FIXED, SLIDING, SLIDINGLOG, CONCURRENCY or SKETCH; \
             for a policy: RL.TAKE key POLICY name",
        ),
        ("TOKENBUCKET 1 1 1s COST 1 COST 2", "ERR syntax error, unexpected 'COST', which is given twice"),
        ("TOKENBUCKET 1 1 1s UPTO FORCE", "ERR syntax error, unexpected 'FORCE', which cannot be combined with UPTO"),
        (
            "FIXED 1 1s MAXWAIT 5s",
            "ERR syntax error, unexpected 'MAXWAIT', where an option of the spec before, BAN or an algorithm is needed: \
             COST, UPTO, FORCE, KEEP, AS, ALIGNED, OFFSET, ANCHOR, ONCE or SETTLE; TOKENBUCKET, LEAKYBUCKET, FIXED, SLIDING, \
             SLIDINGLOG, CONCURRENCY or SKETCH",
        ),
        ("FIXED 1 1s ALIGNED aligned", "ERR syntax error, unexpected 'aligned', which is given twice"),
        ("CONCURRENCY 1 1s", "ERR holder is missing: CONCURRENCY limit ttl holder"),
        ("CONCURRENCY 1 1s me COST 0", "ERR cost must be a number above 0, up to 1000000000000, such as 1, not '0'"),
        ("CONCURRENCY 1 1s me COST -1", "ERR cost must be a number above 0, up to 1000000000000, such as 1, not '-1'"),
        ("CONCURRENCY 1 0 me", "ERR ttl must be a duration from 1us to 3650d, such as 60s, not '0'"),
        ("TOKENBUCKET 1 1", "ERR period is missing: TOKENBUCKET capacity refill period"),
        ("TOKENBUCKET 1 1 1s COST", "ERR cost is missing: COST amount"),
        (
            "TOKENBUCKET x 1 1s",
            "ERR capacity must be a number such as 100, not 'x' (TOKENBUCKET capacity refill period, with no key between)",
        ),
        ("TOKENBUCKET 1 0 1s", "ERR refill must be a number from 0.000001 to 1000000000000, such as 100, not '0'"),
        ("LEAKYBUCKET 1 -1 1s", "ERR leak must be a number from 0.000001 to 1000000000000, such as 100, not '-1'"),
        (
            "TOKENBUCKET 1e12 1 1s",
            "ERR refill must be enough to refill the capacity within 36500d, such as the capacity itself, not '1'",
        ),
        ("TOKENBUCKET 1 1 0s", "ERR period must be a duration from 1us to 3650d, such as 60s, not '0s'"),
        ("SLIDING 1 1S", "ERR window must be a duration such as 60s, not '1S' (units, in lower case: us ms s m h d)"),
        ("FIXED -1 1s", "ERR limit must be a number from 0 to 1000000000000, such as 100, not '-1'"),
        ("FIXED 1 1s COST x", "ERR cost must be a number such as 1, not 'x'"),
        (
            "FIXED 1 1s COST 0 UPTO",
            "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10, not '0'",
        ),
        (
            "FIXED 1 1s COST -1 UPTO",
            "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10, not '-1'",
        ),
        // Rounded up it would be one.
        (
            "FIXED 1 1s COST 0.9999999 UPTO",
            "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10, not '0.9999999'",
        ),
        (
            "FIXED 1 1s COST 0.5 UPTO",
            "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10, not '0.5'",
        ),
        (
            "FIXED 1 1s COST -1 FORCE",
            "ERR cost must be a number from 0 to 1000000000000 with FORCE or MAXWAIT, such as 1, not '-1'",
        ),
        (
            "TOKENBUCKET 1 1 1s MAXWAIT 1x",
            "ERR maxwait must be 0 or a duration such as 500ms, not '1x' (units: us ms s m h d)",
        ),
    ] {
        assert_eq!(read(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn reads_the_limit_that_is_said() {
    let minute = || Period::parse(b"60s").unwrap();
    for (text, limit) in [
        (
            "TOKENBUCKET 7 3 60s",
            AnyLimit::Bucket(Bucket::new(units(7), units(3), minute(), Discipline::Burst).unwrap()),
        ),
        (
            "LEAKYBUCKET 7 3 60s",
            AnyLimit::Bucket(Bucket::new(units(7), units(3), minute(), Discipline::Queue).unwrap()),
        ),
        ("FIXED 7 60s", AnyLimit::FixedWindow(FixedWindow::new(units(7), minute(), false))),
        ("FIXED 7 60s aligned", AnyLimit::FixedWindow(FixedWindow::new(units(7), minute(), true))),
        ("SLIDING 7 60s", AnyLimit::SlidingWindow(SlidingWindow::new(units(7), minute()))),
        ("SLIDING 7 60s strict", AnyLimit::StrictWindow(StrictWindow::new(units(7), minute()))),
        ("SLIDINGLOG 7 60s", AnyLimit::SlidingLog(SlidingLog::new(units(7), minute()))),
        ("CONCURRENCY 7 60s me", AnyLimit::Concurrency(Concurrency::new(units(7), minute()))),
    ] {
        assert_eq!(format!("{:?}", plain(&words(text)).unwrap().limit), format!("{limit:?}"), "{text}");
    }
}

fn read_throttle(text: &str) -> Result<(Bucket, Request), Error> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.THROTTLE"[..]).chain(text.split(' ').map(str::as_bytes)).collect();
    throttle(&mut Args::new(&words))
}

#[test]
fn a_throttle_is_a_bucket_of_one_more_than_its_burst() {
    for (text, capacity, refill, period, request) in [
        ("15 30 60", 16, 30, "60s", Request::Take(Amount::ONE)),
        ("0 1 1 5", 1, 1, "1s", Request::Take(units(5))),
        ("15 30 60 0", 16, 30, "60s", Request::Take(Amount::ZERO)),
        ("999999999999 1000000000000 315360000 1000000000000", 1_000_000_000_000, 1_000_000_000_000, "3650d", {
            Request::Take(Amount::MAX_ARGUMENT)
        }),
    ] {
        let period = Period::parse(period.as_bytes()).unwrap();
        let expected = Bucket::new(units(capacity), units(refill), period, Discipline::Burst).unwrap();
        let (bucket, asked) = read_throttle(text).unwrap();
        assert_eq!((format!("{bucket:?}"), asked), (format!("{expected:?}"), request), "{text}");
    }
}

#[test]
fn a_throttle_is_refused_with_the_argument() {
    const COUNT: &str = "ERR count must be a whole number from 1 to 1000000000000, such as 30, not";
    const PERIOD: &str = "ERR period must be a whole number of seconds from 1 to 315360000, such as 60, not";
    for (text, error) in [
        ("15 30", "ERR period is missing: RL.THROTTLE key max_burst count period [quantity]".to_owned()),
        ("15 30 60 1 1", "ERR syntax error, unexpected '1', where no more words can follow".to_owned()),
        ("1.5 30 60", "ERR max_burst must be a whole number from 0 to 999999999999, such as 15, not '1.5'".to_owned()),
        (
            "1000000000000 30 60",
            "ERR max_burst must be a whole number from 0 to 999999999999, such as 15, not '1000000000000'".to_owned(),
        ),
        ("15 0 60", format!("{COUNT} '0'")),
        ("15 1000000000001 60", format!("{COUNT} '1000000000001'")),
        ("15 30 0", format!("{PERIOD} '0'")),
        (
            "15 30 60s",
            "ERR period must be a whole number of seconds such as 60, not '60s' \
             (the order is key max_burst count period [quantity])"
                .to_owned(),
        ),
        ("15 30 315360001", format!("{PERIOD} '315360001'")),
        ("15 30 60 -1", "ERR quantity must be a whole number from 0 to 1000000000000, such as 1, not '-1'".to_owned()),
        (
            "99 1 315360000",
            "ERR count must be enough to refill the burst within 36500d, such as max_burst itself, not '1'".to_owned(),
        ),
    ] {
        assert_eq!(read_throttle(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn holders_are_names_of_1_to_256_bytes_and_one_at_least() {
    const HOLDER: &str = "ERR holder must be a name of 1 to 256 bytes, such as worker-7, not";
    let (longest, too_long) = ([0xff; MAX_HOLDER], [b'x'; MAX_HOLDER + 1]);
    let read = |words: &[&[u8]]| holders(&mut Args::new(&words)).map(|holders| holders.concat());
    assert_eq!(read(&[b"RL.RELEASE", b"a"]), Ok(b"a".to_vec()));
    assert_eq!(read(&[b"RL.RELEASE", b"a", b"b", b"a"]), Ok(b"aba".to_vec()));
    assert_eq!(read(&[b"RL.RELEASE", &longest]), Ok(longest.to_vec()));
    assert_eq!(read(&[b"RL.RELEASE"]), Err(Error::WrongArity));
    for (words, shown) in [
        (&[&b"RL.RELEASE"[..], b""][..], "''".to_owned()),
        (&[b"RL.RELEASE", b"a", b""], "''".to_owned()),
        (&[b"RL.RELEASE", &too_long], format!("'{}...'", "x".repeat(32))),
    ] {
        assert_eq!(read(words).unwrap_err().to_string(), format!("{HOLDER} {shown}"));
    }
}

fn read_several(words: &[&[u8]]) -> Result<usize, Error> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.MTAKE"[..]).chain(words.iter().copied()).collect();
    ManyKeysRequest::take(&mut Args::new(&words)).map(|request| request.keys.len())
}

#[test]
fn several_are_refused_with_numkeys_if_it_may_be_wrong_and_with_what_was_found() {
    const MUST_BE: &str = "ERR numkeys must be the number of keys and of specs, such as 2 for two of each";
    let names = one_of(&Spec::ALGORITHMS.map(|(name, _)| name));
    let found = |word: &str| {
        format!(
            "ERR syntax error, unexpected '{word}', where an option, POLICY or an algorithm is needed: \
             COST, FORCE, MAXWAIT, KEEP, ONCE or SETTLE; {names}; numkeys must be the number of keys"
        )
    };
    let left = |word: &str| {
        format!(
            "ERR syntax error, unexpected '{word}' after the last spec; \
             numkeys must be the number of keys and of specs"
        )
    };
    for (text, error) in [
        ("0 a FIXED 5 6", format!("{MUST_BE}, not '0'")),
        ("a b FIXED 5 6 FIXED 5 6", format!("{MUST_BE}, not 'a'")),
        ("9 a b FIXED 5 6 FIXED 5 6", format!("{MUST_BE}, not '9'")),
        ("1 a b FIXED 5 6 FIXED 5 6", found("b")),
        ("3 a b FIXED 5 6 FIXED 5 6", found("5")),
        // A key twice is not what is wrong.
        ("6 a b FIXED 5 6 FIXED 5 6", found("5")),
        ("8 a b FIXED 5 6 FIXED 5 6", format!("{MUST_BE} (there are specs for 0 of 8 keys)")),
        ("2 a b FIXED 5 6", format!("{MUST_BE} (there are specs for 1 of 2 keys)")),
        ("2 a b TOKENBUKET 5 5 6 FIXED 5 6", format!("{}; did you mean TOKENBUCKET?", found("TOKENBUKET"))),
        ("1 a FIXED 5 6 FIXED 5 6", left("FIXED")),
        ("1 a FIXED 5 6 MAXWAIT 1s", left("MAXWAIT")),
        (
            "2 a b FIXED 5 6 TOKENBUKET 5 5 6",
            format!(
                "ERR syntax error, unexpected 'TOKENBUKET', \
                 where an option of the spec before, POLICY or an algorithm is needed: \
                 COST, UPTO, FORCE, KEEP, AS, ALIGNED, OFFSET, ANCHOR, ONCE or SETTLE; {names}; did you mean TOKENBUCKET?"
            ),
        ),
        (
            "2 a b FIXED 5 6 UPTO FIXED 5 6",
            "ERR syntax error, unexpected 'UPTO', since RL.MTAKE and RL.MPEEK take all or nothing".to_owned(),
        ),
        ("2 a b FIXED 5 6 FIXED 5", "ERR window is missing: FIXED limit window".to_owned()),
        (
            "2 a a FIXED 5 6 FIXED 5 6",
            "ERR keys must be different from each other, such as {alice}:minute {alice}:day, not 'a' twice".to_owned(),
        ),
    ] {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        assert_eq!(read_several(&words).unwrap_err().to_string(), error, "{text}");
    }
    assert_eq!(read_several(&[b"2", b"a", b"b", b"FIXED", b"5", b"6", b"FIXED", b"5", b"6"]), Ok(2));
}

#[test]
fn a_refusal_is_short_whatever_was_found() {
    for junk in [&[0xff; 1000][..], &[b'x'; 1000]] {
        let calls: [&[&[u8]]; 4] = [
            &[b"1", b"a", junk, b"5", b"6"],
            &[b"1", b"a", b"COST", b"5", junk],
            &[b"2", b"a", b"b", b"FIXED", b"5", b"6", junk, b"5", b"6"],
            &[b"1", b"a", b"FIXED", b"5", b"6", junk],
        ];
        let on_keys = calls.map(|call| read_several(call).unwrap_err());
        let calls: [&[&[u8]]; 3] = [&[junk], &[b"EACH", junk], &[b"FIXED", b"5", b"6", junk]];
        let on_one = calls.map(|call| {
            let words: Vec<&[u8]> = std::iter::once(&b"RL.TAKE"[..]).chain(call.iter().copied()).collect();
            plain(&words).unwrap_err()
        });
        let alone: Vec<&[u8]> = vec![b"RL.FIXED", b"5", b"6", junk];
        let alone = KeyRequest::one(&mut Args::new(&alone), Spec::fixed_window).unwrap_err();
        for error in on_keys.into_iter().chain(on_one).chain([alone]) {
            let text = error.to_string();
            assert!(text.contains("...'") && text.len() < 300, "{} bytes: {text}", text.len());
        }
    }
}

#[test]
fn a_limit_displays_as_the_words_that_it_is_read_from() {
    for (text, words) in [
        ("tokenbucket 200 100 60s", "TOKENBUCKET 200 100 1m"),
        ("TOKENBUCKET 0.5 1e-06 100ms COST 0 FORCE", "TOKENBUCKET 0.5 0.000001 100ms"),
        ("LEAKYBUCKET 1000000 12.34 1.5h", "LEAKYBUCKET 1000000 12.34 90m"),
        ("FIXED 1000 1d ALIGNED", "FIXED 1000 1d ALIGNED"),
        ("FIXED 0 36h", "FIXED 0 36h"),
        ("SLIDING 100 90", "SLIDING 100 90s"),
        ("SLIDING 100 1us STRICT", "SLIDING 100 1us STRICT"),
        ("SLIDINGLOG 5 1500ms COST 3 UPTO", "SLIDINGLOG 5 1500ms"),
        ("CONCURRENCY 3 30s worker-7", "CONCURRENCY 3 30s"),
    ] {
        assert_eq!(plain(&self::words(text)).unwrap().limit.to_string(), words);
    }
    assert_eq!(Span::ZERO.to_string(), "0");
}

// One key

/// The call that a plain key cannot serve.
fn several(text: &str) -> Result<CompositeRequest<'static>, Error> {
    match KeyRequest::take(&mut Args::new(leaked(text)))? {
        KeyRequest::Composite(call) => Ok(*call),
        asked => unreachable!("{asked:?}"),
    }
}

fn asks(call: &CompositeRequest) -> Vec<Request> {
    call.specs.iter().map(|spec| spec.request).collect()
}

/// A call of two specs, and what it asks of the first and of the second.
fn both(text: &str) -> [Request; 2] {
    let asks = asks(&several(text).unwrap_or_else(|error| unreachable!("{text}: {error}")));
    asks.try_into().unwrap()
}

fn take(cost: u64) -> Request {
    Request::Take(units(cost))
}

const NOTHING: Request = Request::Take(Amount::ZERO);

#[test]
fn options_before_the_first_spec_are_for_all() {
    for (options, request) in [
        ("COST 5", take(5)),
        ("cost 5 force", Request::Force(units(5))),
        ("UPTO COST 5", Request::UpTo(units(5))),
        ("FORCE", Request::Force(Amount::ONE)),
        ("COST 0", NOTHING),
        ("COST 0 FORCE", Request::Force(Amount::ZERO)),
        ("COST -2", Request::GiveBack(units(2))),
        ("EACH", take(1)),
        ("ONCE a 1s", take(1)),
        ("EACH COST 3 ONCE a 1s", take(3)),
    ] {
        assert_eq!(both(&format!("{options} FIXED 10 1m SLIDING 10 1m")), [request, request], "{options}");
    }
    // With one spec a plain key serves them.
    for (options, request) in [
        ("COST 5", take(5)),
        ("UPTO COST 5", Request::UpTo(units(5))),
        ("COST -2", Request::GiveBack(units(2))),
        ("COST 0", NOTHING),
        ("FORCE", Request::Force(Amount::ONE)),
    ] {
        for spec in ["FIXED 10 1m", "TOKENBUCKET 10 1 1s"] {
            assert_eq!(read(&format!("{options} {spec}")), Ok(request), "{options} {spec}");
        }
    }
    assert_eq!(read("MAXWAIT 5s TOKENBUCKET 10 1 1s"), Ok(Request::Within(Amount::ONE, Span::SECOND.times(5))));
}

#[test]
fn options_behind_a_spec_are_for_that_one_and_win() {
    let wait = |cost, seconds| Request::Within(units(cost), Span::SECOND.times(seconds));
    for (text, first, second) in [
        ("COST 4000 FIXED 60 1m COST 1 SLIDING 10 1m", take(1), take(4000)),
        ("COST 4000 FIXED 60 1m SLIDING 10 1m COST 1", take(4000), take(1)),
        // What goes with the call's cost goes with that alone.
        ("COST 4 FORCE FIXED 60 1m COST 1 SLIDING 10 1m", take(1), Request::Force(units(4))),
        ("COST 4 UPTO FIXED 60 1m COST 1 SLIDING 10 1m", take(1), Request::UpTo(units(4))),
        ("COST 4 MAXWAIT 5s TOKENBUCKET 9 9 1m COST 1 TOKENBUCKET 9 9 1s", take(1), wait(4, 5)),
        ("FORCE FIXED 60 1m COST 1 SLIDING 10 1m", take(1), Request::Force(Amount::ONE)),
        // A mode of its own with the call's cost.
        ("COST 4 FIXED 60 1m FORCE SLIDING 10 1m", Request::Force(units(4)), take(4)),
        ("COST 4 UPTO FIXED 60 1m FORCE SLIDING 10 1m", Request::Force(units(4)), Request::UpTo(units(4))),
        ("COST 4 FORCE TOKENBUCKET 9 9 1m MAXWAIT 2s SLIDING 10 1m", wait(4, 2), Request::Force(units(4))),
        ("COST 4 MAXWAIT 5s TOKENBUCKET 9 9 1m MAXWAIT 2s TOKENBUCKET 9 9 1s", wait(4, 2), wait(4, 5)),
        // Both.
        ("COST 4 FIXED 60 1m FORCE COST 2 SLIDING 10 1m", Request::Force(units(2)), take(4)),
        // MAXWAIT is for token buckets; all others must admit at once.
        ("COST 4 MAXWAIT 5s TOKENBUCKET 9 9 1m SLIDING 10 1m", wait(4, 5), take(4)),
        ("COST 4 MAXWAIT 5s LEAKYBUCKET 9 9 1m FIXED 10 1m", take(4), take(4)),
        ("MAXWAIT 5s SLIDINGLOG 9 1m SLIDING 10 1m STRICT", take(1), take(1)),
        // No cost is for a lease but its own.
        ("COST 4 FORCE CONCURRENCY 9 1m me FIXED 10 1m", take(1), Request::Force(units(4))),
        ("COST 4 CONCURRENCY 9 1m me COST 2 FIXED 10 1m", take(2), take(4)),
        ("UPTO COST 4 FIXED 10 1m CONCURRENCY 9 1m me", Request::UpTo(units(4)), take(1)),
        // A call that charges nothing charges nothing of its own either.
        ("COST 0 FIXED 10 1m COST 5 SLIDING 9 1m", NOTHING, NOTHING),
        ("COST 0 FIXED 10 1m COST 5 FORCE SLIDING 9 1m", NOTHING, NOTHING),
        ("COST 0 FIXED 10 1m CONCURRENCY 9 1m me", NOTHING, NOTHING),
        ("COST 0 FIXED 10 1m CONCURRENCY 9 1m me COST 2", NOTHING, NOTHING),
        ("COST -3 FIXED 10 1m COST 5 SLIDING 9 1m", NOTHING, Request::GiveBack(units(3))),
        ("COST -3 FIXED 10 1m CONCURRENCY 9 1m me", Request::GiveBack(units(3)), NOTHING),
        ("COST 0 FORCE FIXED 10 1m COST 5 SLIDING 9 1m", NOTHING, Request::Force(Amount::ZERO)),
        ("SETTLE a 7 FIXED 10 1m COST 5 SLIDING 9 1m", NOTHING, NOTHING),
        ("SETTLE a 7 FIXED 10 1m COST 5 FORCE CONCURRENCY 9 1m me", NOTHING, NOTHING),
        // But one that charges may look at one.
        ("COST 4 FIXED 10 1m COST 0 SLIDING 9 1m", NOTHING, take(4)),
    ] {
        assert_eq!(both(text), [first, second], "{text}");
    }
    // Of the only spec too.
    for (text, request) in [
        ("COST 4 FORCE FIXED 60 1m COST 1", take(1)),
        ("COST 4 FIXED 60 1m UPTO", Request::UpTo(units(4))),
        ("COST 4 FIXED 60 1m COST -1", Request::GiveBack(Amount::ONE)),
        ("COST 0 FIXED 60 1m COST 1", NOTHING),
        ("COST 5 CONCURRENCY 9 1m me", take(1)),
        ("COST 0 CONCURRENCY 9 1m me", NOTHING),
    ] {
        assert_eq!(read(text), Ok(request), "{text}");
    }
}

#[test]
fn what_a_call_is_for_is_what_its_cost_says_and_not_that_of_one_of_several() {
    for (text, purpose) in [
        ("FIXED 10 1m SLIDING 9 1m", Purpose::Charge),
        ("FIXED 10 1m COST 0 SLIDING 9 1m COST 0", Purpose::Charge),
        ("COST 0 FIXED 10 1m COST 1 SLIDING 9 1m", Purpose::Check),
        ("COST -0 FORCE FIXED 10 1m SLIDING 9 1m", Purpose::Check),
        ("COST -1 FIXED 10 1m SLIDING 9 1m", Purpose::GiveBack),
        ("COST -0.0000001 FIXED 10 1m SLIDING 9 1m", Purpose::GiveBack),
        ("SETTLE a 0 FIXED 10 1m SLIDING 9 1m", Purpose::Settle),
        ("ONCE a 1s FIXED 10 1m SLIDING 9 1m", Purpose::Charge),
        // The cost of the only one is the call's.
        ("FIXED 10 1m AS a", Purpose::Charge),
        ("FIXED 10 1m AS a COST 0", Purpose::Check),
        ("FIXED 10 1m AS a COST 0 FORCE", Purpose::Check),
        ("TOKENBUCKET 10 1 1s AS a COST 0 MAXWAIT 1s", Purpose::Check),
        ("FIXED 10 1m AS a COST -1", Purpose::GiveBack),
        ("FIXED 10 1m AS a UPTO", Purpose::Charge),
        ("FIXED 10 1m SETTLE a 0", Purpose::Settle),
        // Which nothing denies, but a plain key's leases would.
        ("COST -1 CONCURRENCY 10 1m me", Purpose::GiveBack),
        ("COST -1 FIXED 10 1m COST 1", Purpose::GiveBack),
    ] {
        assert_eq!(several(text).unwrap().purpose, purpose, "{text}");
    }
}

#[test]
fn a_spec_of_several_has_no_upto_or_negative_cost_of_its_own() {
    let upto = "ERR syntax error, unexpected 'UPTO', since RL.MTAKE and RL.MPEEK take all or nothing";
    let cost = "ERR cost must be a number from 0 to 1000000000000 behind one of several limits, such as 1, not";
    for (text, error) in [
        ("FIXED 10 1m UPTO SLIDING 9 1m", upto),
        ("UPTO FIXED 10 1m SLIDING 9 1m COST 2 UPTO", upto),
        ("FIXED 10 1m COST -1 SLIDING 9 1m", &format!("{cost} '-1'")),
        ("COST -2 FIXED 10 1m SLIDING 9 1m COST -1", &format!("{cost} '-1'")),
        ("COST 0 FIXED 10 1m SLIDING 9 1m COST -0.0000001", &format!("{cost} '-0.0000001'")),
        // What the call has is wrong even if no spec takes it.
        (
            "COST 0.5 UPTO FIXED 10 1m COST 1 SLIDING 9 1m COST 1",
            "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10, not '0.5'",
        ),
        (
            "COST -1 FORCE FIXED 10 1m COST 1 SLIDING 9 1m COST 1",
            "ERR cost must be a number from 0 to 1000000000000 with FORCE or MAXWAIT, such as 1, not '-1'",
        ),
        (
            "COST -1 FIXED 10 1m FORCE SLIDING 9 1m",
            "ERR cost must be a number from 0 to 1000000000000 with FORCE or MAXWAIT, such as 1, not '-1'",
        ),
    ] {
        assert_eq!(several(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn a_call_has_up_to_8_specs() {
    let windows = |count: usize| (1..=count).map(|hours| format!("FIXED 10 {hours}h")).collect::<Vec<_>>().join(" ");
    for count in 2..=8 {
        let call = several(&windows(count)).unwrap();
        assert_eq!(call.specs.len(), count);
        assert_eq!((call.idempotency, call.each, call.ban), (Idempotency::Every, false, None));
    }
    let refused = "ERR syntax error, unexpected 'FIXED', since a call has 8 specs at most";
    assert_eq!(several(&windows(9)).unwrap_err().to_string(), refused);
    assert_eq!(several(&format!("{} BAN 1 1s 1s", windows(8))).unwrap().specs.len(), MAX_SPECS, "a ban is none");
}

#[test]
fn two_specs_are_told_apart_by_kind_and_window_or_by_names() {
    let unnamed = "ERR specs of one kind must have different windows or different names, such as \
                   FIXED 10 1m AS burst, not";
    let unnamed = |one, other| format!("{unnamed} {one} and {other}");
    let names =
        "ERR names must be different from each other for limits of one kind, such as AS requests, not 'a' twice";
    let names = || names.to_owned();
    let leases = || "ERR syntax error, unexpected 'CONCURRENCY', since a key can have only one".to_owned();
    for (text, error) in [
        ("TOKENBUCKET 10 1 1m TOKENBUCKET 20 2 60s", unnamed("TOKENBUCKET 10 1 1m", "TOKENBUCKET 20 2 1m")),
        ("TOKENBUCKET 10 1 1m LEAKYBUCKET 20 2 1m", unnamed("TOKENBUCKET 10 1 1m", "LEAKYBUCKET 20 2 1m")),
        ("FIXED 10 1m FIXED 20 1m", unnamed("FIXED 10 1m", "FIXED 20 1m")),
        ("FIXED 10 1m ALIGNED FIXED 20 1m ALIGNED", unnamed("FIXED 10 1m ALIGNED", "FIXED 20 1m ALIGNED")),
        ("SLIDING 10 1m SLIDING 20 1m", unnamed("SLIDING 10 1m", "SLIDING 20 1m")),
        ("SLIDING 10 1m STRICT SLIDING 20 1m STRICT", unnamed("SLIDING 10 1m STRICT", "SLIDING 20 1m STRICT")),
        ("SLIDINGLOG 10 1m SLIDINGLOG 20 1m", unnamed("SLIDINGLOG 10 1m", "SLIDINGLOG 20 1m")),
        ("FIXED 10 1m SLIDING 10 1m FIXED 10 2m FIXED 20 1m", unnamed("FIXED 10 1m", "FIXED 20 1m")),
        ("FIXED 10 1m FIXED 20 1m KEEP 5 BAN 1 1s 1s", unnamed("FIXED 10 1m", "FIXED 20 1m")),
        ("FIXED 10 1m AS a FIXED 20 2m AS a", names()),
        ("TOKENBUCKET 10 1 1m AS a LEAKYBUCKET 20 2 2m AS a", names()),
        ("CONCURRENCY 10 1m me CONCURRENCY 10 2m you", leases()),
        ("CONCURRENCY 10 1m me AS a CONCURRENCY 10 1m me AS b", leases()),
    ] {
        assert_eq!(several(text).unwrap_err().to_string(), error, "{text}");
    }
    for text in [
        "TOKENBUCKET 10 1 1m TOKENBUCKET 20 2 1h",
        "FIXED 10 1m FIXED 20 1m ALIGNED",
        "FIXED 10 1m SLIDING 20 1m SLIDINGLOG 30 1m SLIDING 20 1m STRICT TOKENBUCKET 5 5 1m",
        "FIXED 10 1m AS a FIXED 20 1m",
        "FIXED 10 1m AS a FIXED 20 1m AS b FIXED 30 1m AS A",
        "FIXED 10 1m AS a SLIDING 20 1m AS a",
        "CONCURRENCY 10 1m me FIXED 10 1m",
    ] {
        assert!(several(text).is_ok(), "{text}");
    }
}

#[test]
fn a_limit_is_known_by_its_kind_and_window() {
    for (text, kind, micros, flags) in [
        ("TOKENBUCKET 10 1 1m", Kind::Bucket, 60_000_000, 0),
        ("LEAKYBUCKET 10 1 2us", Kind::Bucket, 2, 0),
        ("FIXED 10 1h", Kind::FixedWindow, 3_600_000_000, 0),
        ("FIXED 10 1h ALIGNED", Kind::FixedWindow, 3_600_000_000, 1),
        ("SLIDING 10 1m", Kind::SlidingWindow, 60_000_000, 0),
        ("SLIDING 10 1m STRICT", Kind::StrictWindow, 60_000_000, 0),
        ("SLIDINGLOG 10 1m", Kind::SlidingLog, 60_000_000, 0),
        ("CONCURRENCY 10 1m me", Kind::Concurrency, 0, 0),
    ] {
        let limit = plain(&words(text)).unwrap().limit;
        assert_eq!((limit.kind(), limit.identity()), (kind, Identity { micros, words: flags }), "{text}");
        assert_eq!(limit.limit(), units(10), "{text}");
    }
}

#[test]
fn a_name_stands_behind_the_numbers() {
    let longest = "aZ09_-".repeat(6)[..MAX_NAME].to_owned();
    for name in ["a", "requests", "AS", "COST", "0", "_", "-", &longest] {
        for spec in ["TOKENBUCKET 9 9 1m", "LEAKYBUCKET 9 9 1m", "FIXED 9 1m", "SLIDING 9 1m", "SLIDINGLOG 9 1m"] {
            let text = format!("{spec} AS {name} COST 2");
            let call = several(&text).unwrap();
            assert_eq!((call.specs.len(), call.specs[0].name), (1, Some(name.as_bytes())), "{text}");
            assert_eq!((call.specs[0].request, call.specs[0].own_cost), (take(2), true));
        }
        let text = format!("FIXED 9 1m CONCURRENCY 9 1m me AS {name}");
        assert_eq!(several(&text).unwrap().specs[1].name, Some(name.as_bytes()));
    }
    for name in ["", " ", "a b", "a.b", "a%", "\u{e4}", "a\n", &format!("{longest}x")] {
        let refused = Error::out_of_range("name", &NAME, name.as_bytes()).to_string();
        assert_eq!(said(&["FIXED", "9", "1m", "AS", name]).unwrap_err(), refused, "{name:?}");
    }
    assert_eq!(said(&["FIXED", "9", "1m", "AS"]).unwrap_err(), "ERR name is missing: AS name");
}

#[test]
fn a_call_that_counts_once_has_an_id_and_a_time() {
    let (minute, longest) = (Period::parse(b"1m").unwrap(), "x".repeat(MAX_ID));
    for id in ["a", "req-17", "ONCE", &longest] {
        for text in [
            format!("ONCE {id} 1m FIXED 9 1m"),
            format!("FIXED 9 1m ONCE {id} 1m"),
            format!("FIXED 9 1m COST 5 ONCE {id} 60 UPTO"),
            format!("ONCE {id} 1m FIXED 9 1m SLIDING 9 1m"),
            format!("EACH ONCE {id} 1m COST 5 FIXED 9 1m CONCURRENCY 9 1m me"),
        ] {
            let idempotency = several(&text).unwrap().idempotency;
            assert_eq!(idempotency, Idempotency::Once { id: id.as_bytes().to_vec().leak(), ttl: minute }, "{text}");
        }
    }
    let with_once = "ERR cost must be a number from 0 to 1000000000000 with ONCE, such as 1, not '-1'";
    let too_late = "which is for all specs and must come before the first";
    let id = |id: &str| Error::out_of_range("id", &ID, id.as_bytes()).to_string();
    let ttl = |ttl: &[u8]| Error::out_of_range("ttl", &DURATION, ttl).to_string();
    for (text, error) in [
        ("ONCE  1m FIXED 9 1m", id("").as_str()),
        (&format!("ONCE {longest}x 1m FIXED 9 1m"), &id(&format!("{longest}x"))),
        ("ONCE a 0 FIXED 9 1m", &ttl(b"0")),
        ("ONCE a b FIXED 9 1m", &ttl(b"b")),
        ("ONCE", "ERR id is missing: ONCE id ttl"),
        ("ONCE a", "ERR ttl is missing: ONCE id ttl"),
        ("ONCE a 1m", "ERR a spec is missing: RL.TAKE key [options] spec [spec ...]"),
        ("ONCE a 1m COST -1 FIXED 9 1m SLIDING 9 1m", with_once),
        ("ONCE a 1m COST -1 FIXED 9 1m COST 1 SLIDING 9 1m COST 1", with_once),
        ("ONCE a 1m FIXED 9 1m COST -1", with_once),
        ("COST -1 FIXED 9 1m ONCE a 1m", with_once),
        ("FIXED 9 1m COST -1 ONCE a 1m", with_once),
        ("FIXED 9 1m ONCE a 1m SLIDING 9 1m", &format!("ERR syntax error, unexpected 'ONCE', {too_late}")),
        ("FIXED 9 1m SLIDING 9 1m ONCE a 1m", &format!("ERR syntax error, unexpected 'ONCE', {too_late}")),
        ("FIXED 9 1m SLIDING 9 1m SETTLE a 1", &format!("ERR syntax error, unexpected 'SETTLE', {too_late}")),
        ("FIXED 9 1m EACH", &format!("ERR syntax error, unexpected 'EACH', {too_late}")),
        ("FIXED 9 1m SLIDING 9 1m each", &format!("ERR syntax error, unexpected 'EACH', {too_late}")),
        ("ONCE a 1m FIXED 9 1m ONCE b 1m", "ERR syntax error, unexpected 'ONCE', since the call has an id already"),
        ("ONCE a 1m FIXED 9 1m SETTLE a 1", "ERR syntax error, unexpected 'SETTLE', since the call has an id already"),
        ("SETTLE a 1 FIXED 9 1m ONCE a 1m", "ERR syntax error, unexpected 'ONCE', since the call has an id already"),
        (
            "ONCE a 1m SETTLE a 1 FIXED 9 1m",
            "ERR syntax error, unexpected 'SETTLE', which cannot be combined with ONCE",
        ),
        ("EACH EACH FIXED 9 1m", "ERR syntax error, unexpected 'EACH', which is given twice"),
    ] {
        assert_eq!(several(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn a_settlement_says_an_amount_in_place_of_a_cost() {
    for (text, amount) in [
        ("SETTLE a 7 FIXED 9 1m", "7"),
        ("FIXED 9 1m SETTLE a 0", "0"),
        ("SETTLE a 0.0000001 FIXED 9 1m SLIDING 9 1m", "0.000001"),
        ("FIXED 9 1m AS a SETTLE a 1e12", "1000000000000"),
        // What keeps what it charged says that by its own cost.
        ("SETTLE a 7 FIXED 9 1m COST 2", "7"),
        ("SETTLE a 7 FIXED 9 1m COST 2 FORCE SLIDING 9 1m", "7"),
    ] {
        let call = several(text).unwrap();
        assert_eq!(call.purpose, Purpose::Settle, "{text}");
        let expected = Idempotency::Settle { id: b"a", amount: Amount::parse_up(amount.as_bytes()).unwrap() };
        assert_eq!(call.idempotency, expected, "{text}");
        assert!(call.specs.iter().all(|spec| spec.request == NOTHING), "{text}");
        assert_eq!(call.specs[0].own_cost, text.contains("COST"), "{text}");
    }
    for (text, word) in [
        ("SETTLE a 7 COST 1 FIXED 9 1m", "COST"),
        ("UPTO SETTLE a 7 FIXED 9 1m", "UPTO"),
        ("SETTLE a 7 FORCE FIXED 9 1m SLIDING 9 1m", "FORCE"),
        ("MAXWAIT 1s SETTLE a 7 FIXED 9 1m SLIDING 9 1m", "MAXWAIT"),
        ("SETTLE a 7 KEEP 1 FIXED 9 1m SLIDING 9 1m", "KEEP"),
        ("FIXED 9 1m SETTLE a 7 COST 1", "COST"),
        ("FIXED 9 1m SETTLE a 7 UPTO", "UPTO"),
        ("COST 1 FIXED 9 1m SETTLE a 7", "COST"),
        ("FORCE FIXED 9 1m SETTLE a 7", "FORCE"),
        ("SETTLE a 7 FIXED 9 1m FORCE SLIDING 9 1m", "FORCE"),
        ("SETTLE a 7 TOKENBUCKET 9 9 1m MAXWAIT 1s", "MAXWAIT"),
    ] {
        let expected = format!("ERR syntax error, unexpected '{word}', since SETTLE sets the cost");
        assert_eq!(several(text).unwrap_err().to_string(), expected, "{text}");
    }
    for (text, word) in [
        ("SETTLE a x FIXED 9 1m", "x"),
        ("SETTLE a -1 FIXED 9 1m", "-1"),
        ("FIXED 9 1m SETTLE a 1000000000001", "1000000000001"),
    ] {
        let amount = Error::out_of_range("amount", &SETTLED, word.as_bytes()).to_string();
        assert_eq!(several(text).unwrap_err().to_string(), amount, "{text}");
    }
}

#[test]
fn a_look_settles_nothing_and_has_no_use_for_an_id() {
    let peek = |text: &str| KeyRequest::peek(&mut Args::new(leaked(text)));
    for text in ["FIXED 9 1m ONCE a 1m COST 2", "COST 2 ONCE a 1m FIXED 9 1m", "COST 2 FIXED 9 1m"] {
        assert!(matches!(peek(text), Ok(KeyRequest::One(Spec { request, .. })) if request == take(2)), "{text}");
    }
    let Ok(KeyRequest::Composite(call)) = peek("ONCE a 1m FIXED 9 1m SLIDING 9 1m") else { unreachable!() };
    assert_eq!(call.idempotency, Idempotency::Every);
    for text in ["SETTLE a 1 FIXED 9 1m", "FIXED 9 1m SETTLE a 1", "SETTLE a 1 FIXED 9 1m SLIDING 9 1m"] {
        let refused = "ERR syntax error, unexpected 'SETTLE', since a peek cannot settle a charge";
        assert_eq!(peek(text).unwrap_err().to_string(), refused, "{text}");
    }
    // It is read all the same.
    assert_eq!(
        peek("FIXED 9 1m ONCE a x").unwrap_err().to_string(),
        Error::out_of_range("ttl", &DURATION, b"x").to_string()
    );
}

#[test]
fn each_decision_is_told_if_that_is_asked_before_the_specs() {
    for (text, each) in [
        ("EACH FIXED 9 1m", true),
        ("COST 2 each FIXED 9 1m SLIDING 9 1m", true),
        ("COST 2 FIXED 9 1m SLIDING 9 1m", false),
    ] {
        assert_eq!(several(text).unwrap().each, each, "{text}");
    }
}

#[test]
fn a_ban_stands_last() {
    let period = |text: &[u8]| Period::parse(text).unwrap();
    let ban =
        |strikes, window, block| Some(BanRule { strikes, window: period(window), block: period(block), longest: None });
    let growing = |longest| Some(BanRule { longest: Some(period(longest)), ..ban(3, b"1m", b"1h").unwrap() });
    for (text, expected) in [
        ("FIXED 9 1m BAN 10 1m 1h", ban(10, b"1m", b"1h")),
        ("FIXED 9 1m COST 2 UPTO ban 1 1us 3650d", ban(1, b"1us", b"3650d")),
        ("EACH FIXED 9 1m SLIDING 9 1m BAN 4294967295 5 6", ban(u32::MAX, b"5s", b"6s")),
        ("FIXED 9 1m ONCE BAN 5m BAN 2 5 6", ban(2, b"5s", b"6s")),
        ("FIXED 9 1m BAN 3 1m 1h MAX 1d", growing(b"1d")),
        ("FIXED 9 1m BAN 3 1m 1h max 3600", growing(b"1h")),
        ("FIXED 9 1m BAN 3 1m 1h MAX 3650d", growing(b"3650d")),
    ] {
        assert_eq!(several(text).unwrap().ban, expected, "{text}");
    }
    let strikes = "ERR strikes must be a whole number from 1 to 4294967295, such as 10, not";
    for (text, error) in [
        ("BAN 1 1s 1s", "ERR syntax error, unexpected 'BAN', which must come after the last spec"),
        ("COST 1 ban 1 1s 1s", "ERR syntax error, unexpected 'ban', which must come after the last spec"),
        (
            "FIXED 9 1m BAN 1 1s 1s SLIDING 9 1m",
            "ERR syntax error, unexpected 'SLIDING', since nothing can come after BAN",
        ),
        ("FIXED 9 1m BAN 1 1s 1s COST 1", "ERR syntax error, unexpected 'COST', since nothing can come after BAN"),
        ("FIXED 9 1m BAN 1 1s 1s BAN 1 1s 1s", "ERR syntax error, unexpected 'BAN', since nothing can come after BAN"),
        ("FIXED 9 1m BAN 1 1s", "ERR block is missing: BAN strikes window block [MAX longest]"),
        ("FIXED 9 1m BAN", "ERR strikes is missing: BAN strikes window block [MAX longest]"),
        ("FIXED 9 1m BAN 0 1s 1s", &format!("{strikes} '0'")),
        ("FIXED 9 1m BAN 4294967296 1s 1s", &format!("{strikes} '4294967296'")),
        ("FIXED 9 1m BAN 1.5 1s 1s", &format!("{strikes} '1.5'")),
        (
            "FIXED 9 1m BAN 1m 10 1h",
            "ERR strikes must be a whole number such as 10, not '1m' (the order is strikes window block [MAX longest])",
        ),
        ("FIXED 9 1m BAN 1 0 1s", "ERR window must be a duration from 1us to 3650d, such as 60s, not '0'"),
        ("FIXED 9 1m BAN 1 1s x", "ERR block must be a duration such as 60s, not 'x' (units: us ms s m h d)"),
        ("FIXED 9 1m BAN 1 1s 2s MAX", "ERR longest is missing: BAN strikes window block [MAX longest]"),
        (
            "FIXED 9 1m BAN 1 1s 2s MAX 1999ms",
            "ERR longest must be a duration from block up to 3650d, such as 1d, not '1999ms'",
        ),
        (
            "FIXED 9 1m BAN 1 1s 2s MAX 3651d",
            "ERR longest must be a duration from block up to 3650d, such as 1d, not '3651d'",
        ),
        ("FIXED 9 1m BAN 1 1s 2s MAX 1w", "ERR longest must be a duration such as 1d, not '1w' (units: us ms s m h d)"),
        (
            "FIXED 9 1m BAN 1 1s 2s 1d",
            "ERR syntax error, unexpected '1d', before which MAX is missing: BAN strikes window block [MAX longest]",
        ),
        ("FIXED 9 1m BAN 1 1s 2s MAX 1d 2d", "ERR syntax error, unexpected '2d', since nothing can come after BAN"),
        (
            "FIXED 9 1m BAN 1 1s 2s MAX 1d MAX 2d",
            "ERR syntax error, unexpected 'MAX', since nothing can come after BAN",
        ),
    ] {
        assert_eq!(several(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn a_command_of_its_own_has_one_spec() {
    for (text, word) in [
        ("FIXED 9 1m FIXED 9 2m", "FIXED"),
        ("FIXED 9 1m BAN 1 1s 1s", "BAN"),
        ("FIXED 9 1m EACH", "EACH"),
        ("FIXED 9 1m COST 1 POLICY a", "POLICY"),
    ] {
        let needed = "where an option is needed: COST, UPTO, FORCE, KEEP, AS, ALIGNED, OFFSET, ANCHOR, ONCE or SETTLE";
        let expected = format!("ERR syntax error, unexpected '{word}', {needed}; did you mean RL.TAKE?");
        assert_eq!(read_alone(text).unwrap_err().to_string(), expected);
    }
    for (text, request) in [
        ("FIXED 9 1m", take(1)),
        ("FIXED 9 1m COST 2 KEEP 3", take(2)),
        ("CONCURRENCY 9 1m me COST 2", take(2)),
        ("TOKENBUCKET 9 9 1m MAXWAIT 0", Request::Within(Amount::ONE, Span::ZERO)),
    ] {
        assert_eq!(read_alone(text).unwrap().request, request, "{text}");
    }
}

#[test]
fn a_first_lease_is_asked_for_by_nx() {
    for (text, nx) in [
        ("CONCURRENCY 9 1m me", false),
        ("CONCURRENCY 9 1m me NX", true),
        ("CONCURRENCY 9 1m NX", false),
        ("CONCURRENCY 9 1m NX nx COST 2", true),
        ("COST 0 CONCURRENCY 9 1m me NX", true),
        ("FIXED 9 1m ALIGNED", false),
        ("SLIDING 9 1m STRICT", false),
    ] {
        assert_eq!(plain(&words(text)).unwrap().nx, nx, "{text}");
    }
}

// BLOCK

/// What RL.ACQUIRE asks, and for how long it would wait; or how it is refused.
fn acquire(text: &str) -> Result<(KeyRequest<'static>, Block), String> {
    let read = |args: &mut Args<'static>| {
        let mut behind = SpecOptions::default();
        let (numbers, Acquiring { block, .. }) = Spec::acquire(args, &mut behind)?;
        let is_plain = behind.is_nothing(args);
        let asked = KeyRequest::alone(args, &numbers, &behind)?;
        // What a call in a hurry goes by.
        assert!(
            !is_plain || matches!(asked, KeyRequest::One(spec) if spec.request == take(1) && spec.kept == Amount::ZERO)
        );
        Ok((asked, block))
    };
    read(&mut Args::new(leaked(text))).map_err(|error: Error| error.to_string())
}

/// What RL.ACQUIRE reads: the request as its debug text, and how long the call blocks.
fn acquired(text: &str) -> (String, Block) {
    let (asked, block) = acquire(text).unwrap();
    (format!("{asked:?}"), block)
}

#[test]
fn an_acquire_may_wait_as_long_as_it_takes_or_for_a_time() {
    for (text, block) in [
        ("9 1m me", Block::No),
        ("9 1m me COST 2 KEEP 1", Block::No),
        ("9 1m me BLOCK 0", Block::Forever),
        ("9 1m me block 1us", Block::For(Span::MICROSECOND)),
        ("9 1m me Block 5", Block::For(Span::SECOND.times(5))),
        ("9 1m me BLOCK 1.5s", Block::For(Span::from_micros(1_500_000))),
        ("9 1m me BLOCK 500ms", Block::For(Span::from_micros(500_000))),
        ("9 1m me BLOCK 3650d", Block::For(Span::MAX_ARGUMENT)),
        // A holder may have any name.
        ("9 1m BLOCK", Block::No),
        ("9 1m BLOCK BLOCK 5", Block::For(Span::SECOND.times(5))),
    ] {
        assert_eq!(acquire(text).unwrap().1, block, "{text}");
    }
}

#[test]
fn to_block_stands_anywhere_among_the_options_and_changes_none_of_them() {
    for options in [
        &[][..],
        &["COST 2"],
        &["NX"],
        &["AS a"],
        &["KEEP 20%", "COST 0.5"],
        &["NX", "AS a", "COST 3"],
        &["KEEP 2", "NX", "COST 3", "AS a"],
    ] {
        for order in orders(&[options, &["BLOCK 5s"]].concat()) {
            let text = format!("9 1m me {}", order.join(" "));
            let without = order.iter().filter(|option| **option != "BLOCK 5s");
            let without = without.fold("9 1m me".to_owned(), |text, option| format!("{text} {option}"));
            assert_eq!(acquired(&without).1, Block::No);
            assert_eq!(acquired(&text), (acquired(&without).0, Block::For(Span::SECOND.times(5))), "{text}");
            // All but that is what is read of the same words elsewhere.
            let alone = |args: &mut Args<'static>| KeyRequest::one(args, Spec::concurrency).unwrap();
            assert_eq!(format!("{:?}", alone(&mut Args::new(leaked(&without)))), acquired(&without).0);
        }
    }
}

#[test]
fn how_long_to_block_is_refused_whatever_it_says() {
    // Only the bare 0 has no end.
    let zeros = NO_TIME.into_iter().filter(|zero| *zero != "0");
    for block in zeros.chain(NO_DURATIONS) {
        let words: Vec<&[u8]> = ["RL.ACQUIRE", "9", "1m", "me", "BLOCK", block].map(str::as_bytes).into();
        let error = Spec::acquire(&mut Args::new(&words), &mut SpecOptions::default()).unwrap_err();
        let must_be = MustBe::duration("0 (no end) or a duration", " from 1us to 3650d", "5s");
        let expected = Error::out_of_range("block", Box::leak(Box::new(must_be)), block.as_bytes());
        assert_eq!(error, expected, "{block:?}");
    }
    for (text, error) in [
        ("9 1m me BLOCK", "ERR block is missing: BLOCK duration"),
        ("9 1m me NX BLOCK", "ERR block is missing: BLOCK duration"),
        ("9 1m me BLOCK NX", "ERR block must be 0 (no end) or a duration such as 5s, not 'NX' (units: us ms s m h d)"),
        (
            "9 1m me BLOCK 4000d",
            "ERR block must be 0 (no end) or a duration from 1us to 3650d, such as 5s, not '4000d'",
        ),
        ("9 1m me BLOCK 5s BLOCK 5s", "ERR syntax error, unexpected 'BLOCK', which is given twice"),
        ("9 1m me BLOCK 0 NX block 0", "ERR syntax error, unexpected 'block', which is given twice"),
        ("9 1m me BLOCK 5s NX COST 2 NX", "ERR syntax error, unexpected 'NX', which is given twice"),
        ("9 1m me BLOCK 5s COST 0", "ERR cost must be a number above 0, up to 1000000000000, such as 1, not '0'"),
    ] {
        assert_eq!(acquire(text).unwrap_err(), error, "{text}");
    }
    for (text, word) in [
        ("9 1m me 5s", "5s"),
        ("9 1m me BLOCK 5s 5s", "5s"),
        ("9 1m me NX UPTO BLOCK 5s", "UPTO"),
        ("9 1m me BLOCK 5s FIXED 9 1m", "FIXED"),
    ] {
        let meant = if word == "FIXED" { "; did you mean RL.TAKE?" } else { "" };
        let needed = format!("where an option is needed: COST, KEEP, AS, NX, BLOCK or FENCE{meant}");
        assert_eq!(acquire(text).unwrap_err(), format!("ERR syntax error, unexpected '{word}', {needed}"), "{text}");
    }
}

#[test]
fn a_fencing_token_is_asked_for_by_rl_acquire_alone() {
    let fence = |text: &str| {
        let mut args = Args::new(leaked(text));
        Spec::acquire(&mut args, &mut SpecOptions::default()).map(|(_, acquiring)| acquiring)
    };
    for (text, expected) in [
        ("9 1m me", Acquiring { block: Block::No, fence: false }),
        ("9 1m me fence", Acquiring { block: Block::No, fence: true }),
        ("9 1m me FENCE COST 2 BLOCK 0 NX", Acquiring { block: Block::Forever, fence: true }),
        ("9 1m me AS a BLOCK 5s FENCE", Acquiring { block: Block::For(Span::SECOND.times(5)), fence: true }),
        ("9 1m FENCE", Acquiring { block: Block::No, fence: false }),
    ] {
        assert_eq!(fence(text).unwrap(), expected, "{text}");
    }
    let told = |error: Error| error.to_string();
    let again = "ERR syntax error, unexpected 'FENCE', which is given twice";
    assert_eq!(fence("9 1m me FENCE NX FENCE").map_err(told), Err(again.to_owned()));
    let elsewhere = "ERR syntax error, unexpected 'FENCE', which only RL.ACQUIRE has";
    for text in ["CONCURRENCY 9 1m me FENCE", "FIXED 9 1m fence", "FENCE FIXED 9 1m", "POLICY p FENCE"] {
        let refused = KeyRequest::take(&mut Args::new(leaked(text))).unwrap_err();
        assert_eq!(refused.to_string(), elsewhere, "{text}");
    }
}

#[test]
fn nothing_else_blocks_and_what_does_is_told() {
    fn refused<T: std::fmt::Debug>(read: Result<T, Error>, text: &str) {
        let error = read.unwrap_err().to_string();
        assert_eq!(error, "ERR syntax error, unexpected 'BLOCK', which only RL.ACQUIRE has", "{text}");
    }
    for text in [
        "CONCURRENCY 9 1m me BLOCK 5s",
        "CONCURRENCY 9 1m me COST 2 block 0",
        "CONCURRENCY 9 1m me NX BLOCK",
        "FIXED 9 1m BLOCK 5s",
        "FIXED 9 1m ALIGNED BLOCK 5s",
        "TOKENBUCKET 9 9 1m MAXWAIT 1s BLOCK 5s",
    ] {
        refused(read_alone(text), text);
        for text in [text.to_owned(), format!("SLIDING 9 1m {text}"), format!("COST 1 {text}")] {
            refused(KeyRequest::take(&mut Args::new(leaked(&text))), &text);
            refused(KeyRequest::peek(&mut Args::new(leaked(&text))), &text);
        }
        for keys in ["1 a", "1 a COST 1", "2 a b", "2 a b FIXED 9 1h"] {
            let text = format!("{keys} {text}");
            refused(ManyKeysRequest::take(&mut Args::new(leaked(&text))), &text);
            refused(ManyKeysRequest::peek(&mut Args::new(leaked(&text))), &text);
        }
    }
    for text in [
        "BLOCK 5s CONCURRENCY 9 1m me",
        "COST 1 BLOCK 5s CONCURRENCY 9 1m me",
        "FIXED 9 1m BAN 1 1s 1s BLOCK 5s",
        "POLICY p BLOCK 5s",
        "POLICY p OR q ONCE a 1m BLOCK 5s",
    ] {
        refused(KeyRequest::take(&mut Args::new(leaked(text))), text);
        refused(KeyRequest::peek(&mut Args::new(leaked(text))), text);
    }
    for text in [
        "1 a BLOCK 5s CONCURRENCY 9 1m me",
        "1 a COST 1 BLOCK 5s CONCURRENCY 9 1m me",
        "1 a POLICY p BLOCK 5s",
        "2 a b POLICY p COST 2 BLOCK 5s POLICY q",
    ] {
        refused(ManyKeysRequest::take(&mut Args::new(leaked(text))), text);
    }
    for text in [
        "BLOCK 5s CONCURRENCY 9 1m",
        "CONCURRENCY 9 1m BLOCK 5s",
        "CONCURRENCY 9 1m COST 2 AS a SHADOW BLOCK 5s",
        "FIXED 9 1m SHADOW block 5s",
        "FIXED 9 1m BAN 1 1s 1s BLOCK 5s",
    ] {
        refused(Policy::read(&mut Args::new(leaked(text))), text);
    }
    for text in ["BLOCK 5s", "OR q BLOCK 5s", "COST 1 ONCE a 1m BLOCK 0"] {
        refused(ByPolicy::after_first_name(b"p", &mut Args::new(leaked(text))), text);
    }
}

// KEEP

/// What a call keeps of the limit, and what is left of it.
fn kept(text: &str) -> (Amount, Amount) {
    let spec = plain(&words(text)).map(|spec| (spec.kept, spec.limit.limit()));
    spec.unwrap_or_else(|error| unreachable!("{text}: {error}"))
}

#[test]
fn what_is_kept_is_an_amount_or_a_share_of_the_limit() {
    let millionths = Amount::saturating;
    for (text, expected) in [
        ("KEEP 3", units(3)),
        ("KEEP 0", Amount::ZERO),
        ("KEEP 0.0000001", millionths(1)),
        ("KEEP 10", units(10)),
        ("KEEP 20%", units(2)),
        ("KEEP 0%", Amount::ZERO),
        ("KEEP 100%", units(10)),
        ("KEEP 1e2%", units(10)),
        ("KEEP 12.5%", millionths(1_250_000)),
        // Rounded up to a millionth, whatever the number of digits.
        ("KEEP 0.000001%", millionths(1)),
        ("KEEP 33.33333%", millionths(3_333_333)),
        ("KEEP 33.333333%", millionths(3_333_334)),
        ("KEEP 33.33333000000000000000000000000000000001%", millionths(3_333_334)),
        ("KEEP 99.999999999999999999999999999%", units(10)),
        // Never more than there is.
        ("KEEP 11", units(10)),
        ("KEEP 1e12", units(10)),
    ] {
        for (algorithm, arguments) in ARGUMENTS {
            let spec = valid(algorithm, arguments).join(" ");
            let left = units(10).minus(expected);
            assert_eq!(kept(&format!("{spec} {text}")), (expected, left), "{spec} {text}");
            assert_eq!(kept(&format!("{spec}  {text}").replace("  ", " COST 2 ")), (expected, left), "{spec} {text}");
        }
        assert_eq!(kept(&format!("{text} FIXED 10 1m")), (expected, units(10).minus(expected)), "{text}");
    }
    for keep in ["", "x", "-1", "-1%", "%", "100.0000001%", "100.00000000000000000000000000001%", "101%", "1e3%", "5 %"]
    {
        let refused = Error::out_of_range("keep", &KEEP, keep.as_bytes()).to_string();
        for limit in ["10", "0"] {
            assert_eq!(said(&["FIXED", limit, "1m", "KEEP", keep]).unwrap_err(), refused, "{keep:?}");
        }
        assert_eq!(said(&["KEEP", keep, "FIXED", "10", "1m"]).unwrap_err(), refused, "{keep:?}");
    }
    // To the last millionth of the largest limit.
    assert_eq!(kept("FIXED 1e12 1m KEEP 1e-16%"), (millionths(1), millionths(999_999_999_999_999_999)));
    assert_eq!(kept("FIXED 1e12 1m KEEP 99.9999999999999999%"), (millionths(999_999_999_999_999_999), millionths(1)));
    assert_eq!(kept("FIXED 999999999999.999999 1m KEEP 50%").0, millionths(500_000_000_000_000_000));
}

#[test]
fn an_amount_is_kept_where_the_cost_of_the_call_goes_and_a_share_everywhere() {
    let kept = |text: &str| {
        let call = several(text).unwrap_or_else(|error| unreachable!("{text}: {error}"));
        call.specs.iter().map(|spec| spec.kept.whole_units()).collect::<Vec<u64>>()
    };
    for (text, expected) in [
        ("KEEP 3 FIXED 10 1m SLIDING 20 1m", [3, 3]),
        ("KEEP 3 FIXED 10 1m COST 1 SLIDING 20 1m", [0, 3]),
        ("KEEP 3 FIXED 10 1m CONCURRENCY 20 1m me", [3, 0]),
        ("KEEP 10% FIXED 10 1m SLIDING 20 1m", [1, 2]),
        ("KEEP 10% FIXED 10 1m COST 1 CONCURRENCY 20 1m me", [1, 2]),
        ("KEEP 10% FIXED 10 1m KEEP 4 SLIDING 20 1m", [4, 2]),
        ("KEEP 3 FIXED 10 1m KEEP 50% SLIDING 20 1m", [5, 3]),
        ("FIXED 10 1m KEEP 4 SLIDING 20 1m", [4, 0]),
        ("KEEP 3 FIXED 10 1m CONCURRENCY 20 1m me KEEP 1", [3, 1]),
        ("COST 0 KEEP 3 FIXED 10 1m SLIDING 20 1m COST 1 KEEP 5", [3, 5]),
        ("FORCE FIXED 10 1m COST 1 KEEP 4 SLIDING 20 1m", [4, 0]),
    ] {
        assert_eq!(kept(text), expected, "{text}");
    }
}

#[test]
fn what_is_forced_settled_or_given_back_keeps_nothing() {
    let refused = "ERR syntax error, unexpected 'KEEP', which cannot be combined with FORCE, SETTLE or a negative cost";
    for text in [
        "FIXED 10 1m KEEP 1 FORCE",
        "FIXED 10 1m FORCE KEEP 0",
        "FIXED 10 1m KEEP 10% COST -1",
        "KEEP 1 FORCE FIXED 10 1m",
        "KEEP 1 FORCE FIXED 10 1m COST 1 SLIDING 10 1m COST 1",
        "FORCE FIXED 10 1m KEEP 1 SLIDING 10 1m",
        "KEEP 10% FIXED 10 1m COST 1 FORCE SLIDING 10 1m",
        "KEEP 1 FIXED 10 1m FORCE SLIDING 10 1m",
        "COST -1 KEEP 1 FIXED 10 1m SLIDING 10 1m",
        "COST -1 FIXED 10 1m SLIDING 10 1m COST 1 KEEP 1",
        "COST -1 FIXED 10 1m CONCURRENCY 10 1m me KEEP 1",
        "SETTLE a 1 FIXED 10 1m KEEP 1",
        "SETTLE a 1 FIXED 10 1m COST 1 KEEP 1 SLIDING 10 1m",
    ] {
        assert_eq!(several(text).unwrap_err().to_string(), refused, "{text}");
    }
    // An amount that goes with the call's cost is not kept from a spec that is forced for its own.
    assert!(several("KEEP 1 FIXED 10 1m COST 1 FORCE SLIDING 10 1m").is_ok());
}

#[test]
fn to_keep_more_than_there_is_never_passes() {
    for text in ["COST 0", "COST 0.000001", "COST 5", "UPTO"] {
        for (algorithm, arguments) in &ARGUMENTS[..5] {
            let spec = valid(algorithm, arguments).join(" ");
            let read = |keep: &str| decide(plain(leaked(&format!("{spec} {text} KEEP {keep}"))).unwrap());
            let told = read("10.000001");
            assert_eq!((told.verdict, told.limit, told.remaining), (Verdict::Never, units(10), Amount::ZERO), "{spec}");
            // All that there is passes with nothing.
            let all = read("10").verdict;
            assert_eq!(all, if text == "COST 0" { Verdict::Allowed(Span::ZERO) } else { Verdict::Never }, "{spec}");
        }
    }
    let wait = "TOKENBUCKET 10 1 1s COST 0 MAXWAIT 5s KEEP 11";
    assert_eq!(decide(plain(leaked(wait)).unwrap()).verdict, Verdict::Never);
    for words in ["COST 0 CONCURRENCY 10 1m me KEEP 11", "CONCURRENCY 10 1m me KEEP 11"] {
        assert_eq!(decide(plain(leaked(words)).unwrap()).verdict, Verdict::Never);
    }
}

#[test]
fn a_look_is_a_look_whatever_it_keeps() {
    for (text, purpose) in [
        ("FIXED 10 1m COST 0 AS a KEEP 9", Purpose::Check),
        ("FIXED 10 1m COST 0 AS a KEEP 11", Purpose::Check),
        ("COST 0 KEEP 11 FIXED 10 1m AS a", Purpose::Check),
        ("COST 0 MAXWAIT 1s KEEP 11 TOKENBUCKET 10 1 1s AS a", Purpose::Check),
        ("COST 0 FIXED 10 1m SLIDING 10 1m KEEP 11", Purpose::Check),
        ("COST 0 KEEP 11 CONCURRENCY 10 1m me AS a", Purpose::Check),
        ("FIXED 10 1m COST 0.000001 AS a KEEP 11", Purpose::Charge),
        ("FIXED 10 1m UPTO AS a KEEP 11", Purpose::Charge),
    ] {
        let call = several(text).unwrap();
        assert_eq!(call.purpose, purpose, "{text}");
        assert_eq!(call.specs.iter().all(|spec| spec.request.is_look()), purpose == Purpose::Check, "{text}");
    }
}

/// The decision of a key that was never seen.
fn decide(spec: Spec) -> Decision {
    fn of<L: Limit>(limit: &L, request: Request) -> Decision {
        let (usage, now) = (L::Usage::default(), Timestamp::EPOCH);
        evaluate(limit, &usage, now, request).decision(limit, &usage, now, false)
    }
    crate::algorithm::any::with_limit!(spec, limit => of(limit, spec.request)).keeping(spec.kept)
}

proptest! {
    /// "Passes only if that much stays available after it; waits are exact for it too; remaining is told without it."
    #[test]
    fn what_keeps_so_much_passes_just_when_so_much_more_would(
        most in amounts(), window in lengths(), kept in amounts(), cost in amounts(), uses in amounts(),
        later in lengths(), again in lengths(),
    ) {
        let (now, limit) = (Timestamp::from_clock(1_700_000_000_000_000), Amount::saturating(most));
        let period = Period::new(Span::from_micros(window)).unwrap();
        let kept = Amount::saturating(kept).min(limit);
        let limits = [
            Bucket::new(limit, limit.minus(Amount::saturating(most / 3)), period, Discipline::Burst)
                .map(AnyLimit::Bucket).ok(),
            Bucket::new(limit, limit, period, Discipline::Queue).map(AnyLimit::Bucket).ok(),
            Some(AnyLimit::FixedWindow(FixedWindow::new(limit, period, false))),
            Some(AnyLimit::FixedWindow(FixedWindow::new(limit, period, true))),
            Some(AnyLimit::SlidingWindow(SlidingWindow::new(limit, period))),
            Some(AnyLimit::StrictWindow(StrictWindow::new(limit, period))),
            Some(AnyLimit::SlidingLog(SlidingLog::new(limit, period))),
        ];
        let cost = Amount::saturating(cost).min(Amount::MAX_ARGUMENT.minus(kept));
        for whole in limits.into_iter().flatten() {
            let spec = Spec::plain(ParsedLimit::of(whole));
            let keeping = spec.keeping(kept);
            prop_assert_eq!(keeping.limit.limit(), limit.minus(kept));
            prop_assert_eq!(keeping.limit.identity(), whole.identity());
            with_both(&spec.limit, &keeping.limit, now, [later, again], Amount::saturating(uses), cost, kept)?;
        }
    }
}

/// Compares a limit and the same lowered, on a usage that was charged and forced.
fn with_both(
    whole: &AnyLimit,
    lowered: &AnyLimit,
    now: Timestamp,
    later: [u64; 2],
    uses: Amount,
    cost: Amount,
    kept: Amount,
) -> Result<(), TestCaseError> {
    fn compare<L: Limit>(
        [whole, lowered]: [&L; 2],
        now: Timestamp,
        later: [u64; 2],
        uses: Amount,
        cost: Amount,
        kept: Amount,
    ) -> Result<(), TestCaseError> {
        let (mut usage, mut now) = (L::Usage::default(), now);
        for span in later {
            call(whole, &mut usage, now, Request::Take(uses));
            call(whole, &mut usage, now, Request::Force(cost));
            now = now.plus(Span::from_micros(span));
            prop_assert_eq!(lowered.verdict(&usage, now, cost), whole.verdict(&usage, now, cost.plus(kept)));
            prop_assert_eq!(lowered.remaining(&usage, now), whole.remaining(&usage, now).minus(kept));
            prop_assert_eq!(lowered.reset(&usage, now), whole.reset(&usage, now));
        }
        Ok(())
    }
    macro_rules! same {
        ($($variant:ident),*) => {
            match (whole, lowered) {
                $((AnyLimit::$variant(whole), AnyLimit::$variant(lowered)) => {
                    compare([whole, lowered], now, later, uses, cost, kept)
                })*
                _ => unreachable!("of one kind"),
            }
        };
    }
    same!(Bucket, FixedWindow, SlidingWindow, StrictWindow, SlidingLog)
}

// Several keys

#[test]
fn options_before_the_first_spec_are_for_all_keys() {
    let read = |text: &str| {
        ManyKeysRequest::take(&mut Args::new(leaked(text))).map(|call| {
            let specs = call.keys.iter().map(|(_, of_key)| {
                let KeyRequest::One(spec) = of_key else { unreachable!("{of_key:?}") };
                (spec.request, spec.kept.whole_units())
            });
            let specs = specs.collect::<Vec<_>>();
            (specs, call.idempotency, call.purpose)
        })
    };
    let (once, settle) = (
        Idempotency::Once { id: b"a", ttl: Period::parse(b"1m").unwrap() },
        Idempotency::Settle { id: b"a", amount: units(7) },
    );
    for (text, first, second, idempotency, purpose) in [
        ("2 a b FIXED 9 1m FIXED 9 1m COST 2", (take(1), 0), (take(2), 0), Idempotency::Every, Purpose::Charge),
        ("2 a b COST 3 FIXED 9 1m FIXED 9 1m COST 2", (take(3), 0), (take(2), 0), Idempotency::Every, Purpose::Charge),
        (
            "2 a b COST 3 FORCE FIXED 9 1m FIXED 9 1m COST 2",
            (Request::Force(units(3)), 0),
            (take(2), 0),
            Idempotency::Every,
            Purpose::Charge,
        ),
        ("2 a b KEEP 50% ONCE a 1m FIXED 9 1m FIXED 8 1m KEEP 1", (take(1), 4), (take(1), 1), once, Purpose::Charge),
        (
            "2 a b MAXWAIT 1s TOKENBUCKET 9 9 1m FIXED 9 1m",
            (Request::Within(Amount::ONE, Span::SECOND), 0),
            (take(1), 0),
            Idempotency::Every,
            Purpose::Charge,
        ),
        ("2 a b SETTLE a 7 FIXED 9 1m FIXED 9 1m COST 2", (NOTHING, 0), (NOTHING, 0), settle, Purpose::Settle),
        (
            "2 a b COST -1 FIXED 9 1m CONCURRENCY 9 1m me",
            (Request::GiveBack(Amount::ONE), 0),
            (NOTHING, 0),
            Idempotency::Every,
            Purpose::GiveBack,
        ),
        ("2 a b COST 0 FIXED 9 1m FIXED 9 1m COST 5", (NOTHING, 0), (NOTHING, 0), Idempotency::Every, Purpose::Check),
        (
            "2 a b FIXED 9 1m COST -1 FIXED 9 1m",
            (Request::GiveBack(Amount::ONE), 0),
            (take(1), 0),
            Idempotency::Every,
            Purpose::Charge,
        ),
    ] {
        assert_eq!(read(text), Ok((vec![first, second], idempotency, purpose)), "{text}");
    }
    // Two keys may have limits that one could not tell apart.
    assert!(read("2 a b CONCURRENCY 9 1m me AS x CONCURRENCY 9 1m me AS x").is_ok());
    for (text, error) in [
        ("1 a UPTO FIXED 9 1m", "unexpected 'UPTO', since RL.MTAKE and RL.MPEEK take all or nothing"),
        ("1 a COST 2 upto FIXED 9 1m", "unexpected 'UPTO', since RL.MTAKE and RL.MPEEK take all or nothing"),
        (
            "1 a EACH FIXED 9 1m",
            "unexpected 'EACH', where an option, POLICY or an algorithm is needed: COST, FORCE, MAXWAIT,",
        ),
        ("1 a FIXED 9 1m ONCE a 1m", "unexpected 'ONCE', which is for all specs and must come before the first"),
        ("1 a FIXED 9 1m SETTLE a 1", "unexpected 'SETTLE', which is for all specs and must come before the first"),
        ("1 a FIXED 9 1m BAN 1 1s 1s", "unexpected 'BAN' after the last spec"),
        (
            "2 a b FIXED 9 1m BAN 1 1s 1s FIXED 9 1m",
            "unexpected 'BAN', where an option of the spec before, POLICY or an alg",
        ),
    ] {
        let told = read(text).unwrap_err().to_string();
        assert!(told.starts_with(&format!("ERR syntax error, {error}")), "{text}: {told}");
    }
    let with_once = Err(Error::out_of_range("cost", &COST_WITH_ONCE, b"-1"));
    assert_eq!(read("1 a ONCE a 1m COST -1 FIXED 9 1m"), with_once);
    assert_eq!(read("1 a ONCE a 1m FIXED 9 1m COST -1"), with_once);
    assert_eq!(read("2 a b COST 5"), Err(Error::TooFewSpecs { keys: 2, specs: 0 }));
    // A look.
    let peek = |text: &str| ManyKeysRequest::peek(&mut Args::new(leaked(text)));
    assert_eq!(peek("1 a ONCE a 1m FIXED 9 1m").unwrap().idempotency, Idempotency::Every);
    let refused = "ERR syntax error, unexpected 'SETTLE', since a peek cannot settle a charge";
    assert_eq!(peek("1 a SETTLE a 1 FIXED 9 1m").unwrap_err().to_string(), refused);
}

/// Every algorithm, the arguments that it must have, and the words that may stand for them.
const ARGUMENTS: [(&str, &[(&str, &str)]); 6] = [
    ("TOKENBUCKET", &[("capacity", "10"), ("refill", "1"), ("period", "1s")]),
    ("LEAKYBUCKET", &[("capacity", "10"), ("leak", "1"), ("period", "1s")]),
    ("FIXED", &[("limit", "10"), ("window", "60s")]),
    ("SLIDING", &[("limit", "10"), ("window", "60s")]),
    ("SLIDINGLOG", &[("limit", "10"), ("window", "60s")]),
    ("CONCURRENCY", &[("limit", "10"), ("ttl", "60s"), ("holder", "me")]),
];

/// How the arguments of an algorithm stand behind its name.
fn syntax(algorithm: &str) -> &'static Syntax {
    SYNTAXES.into_iter().find(|syntax| syntax.word == algorithm).unwrap()
}

/// An algorithm and a word for each of its arguments.
fn valid(algorithm: &'static str, arguments: &[(&str, &'static str)]) -> Vec<&'static str> {
    std::iter::once(algorithm).chain(arguments.iter().map(|(_, word)| *word)).collect()
}

/// What is read of words that may hold anything, or how they are refused.
fn said<'a>(words: &[&'a str]) -> Result<(AnyLimit, Request), String> {
    let words: Vec<&'a [u8]> = std::iter::once("RL.TAKE").chain(words.iter().copied()).map(str::as_bytes).collect();
    plain(&words).map(|spec| (spec.limit, spec.request)).map_err(|error| error.to_string())
}

const NO_NUMBERS: [&str; 41] = [
    "", " ", "x", "ten", "1x", "1s", "0x10", "1,5", "1_000", "\u{661}", "1/2", "1%", "1.", ".5", ".", "1.5.5", "1..5",
    "+1", "+", "-", "--1", "+-1", "- 1", " 1", "1 ", "1\n", "e", "e1", "1e", "1e+", "1e-", "1e1.5", "1ee1", "1E3",
    "1e 3", "1.e3", "nan", "NaN", "inf", "-inf", "Infinity",
];
/// Checked before anything is rounded.
const TOO_MUCH: [&str; 8] = [
    "1000000000001",
    "1000000000000.000001",
    "1000000000000.0000001",
    "1e13",
    "1e300",
    "18446744073709551616",
    "1e9223372036854775808",
    "1e99999999999999999999",
];
const LESS_THAN_0: [&str; 4] = ["-1", "-0.0000001", "-1e-99999999999999999999", "-1e12"];
const TOO_SLOW: [&str; 6] = ["0", "0.0", "0e5", "0.0000009", "9e-7", "0.00000099999999999999"];
const NO_DURATIONS: [&str; 49] = [
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
const NO_TIME: [&str; 6] = ["0", "0s", "0us", "0d", "0.0", "0e9"];

/// Whatever the words of an argument are, of those that it refuses, the answer says its name and what it must be.
#[test]
fn an_argument_is_refused_by_its_name_whatever_it_says() {
    let long = ["9".repeat(100), format!("1000000000000.{}1", "0".repeat(100)), format!("{}us", "9".repeat(100))];
    let amounts =
        || NO_NUMBERS.iter().chain(&TOO_MUCH).chain(&LESS_THAN_0).copied().chain(long.iter().map(String::as_str));
    let durations = || NO_DURATIONS.iter().chain(&NO_TIME).copied().chain(long.iter().map(String::as_str));
    for (algorithm, arguments) in ARGUMENTS {
        for (place, (name, _)) in arguments.iter().enumerate() {
            let (refused, must_be): (Vec<&str>, &MustBe) = match *name {
                "capacity" | "limit" => (amounts().collect(), &AMOUNT),
                "refill" | "leak" => (amounts().chain(TOO_SLOW).collect(), &RATE),
                "holder" => (vec![""], &HOLDER),
                _ => (durations().collect(), &DURATION),
            };
            let position = Position { syntax: syntax(algorithm), is_first: place == 0 };
            for word in refused {
                let mut words = valid(algorithm, arguments);
                words[place + 1] = word;
                let of_calendar = algorithm == "FIXED" && *name == "window" && matches!(word, "1w" | "1y");
                let expected = if of_calendar {
                    Error::hinted(name, &WINDOW, word.as_bytes(), Hint::NotAligned)
                } else {
                    Error::out_of_place(name, must_be, word.as_bytes(), position)
                };
                assert_eq!(said(&words).unwrap_err(), expected.to_string(), "{algorithm} {name} {word:?}");
            }
        }
    }
}

#[test]
fn a_cost_and_a_maxwait_are_refused_whatever_they_say() {
    let negative: Vec<String> = TOO_MUCH.iter().map(|much| format!("-{much}")).collect();
    let costs = NO_NUMBERS.iter().chain(&TOO_MUCH).copied().chain(negative.iter().map(String::as_str));
    for (algorithm, arguments) in ARGUMENTS {
        let must_be = if algorithm == "CONCURRENCY" { &COST_OF_LEASE } else { &COST };
        for cost in costs.clone().chain(["-.5", "-1.", "-+1"]) {
            let words = [valid(algorithm, arguments), vec!["COST", cost]].concat();
            let expected = Error::out_of_range("cost", must_be, cost.as_bytes()).to_string();
            assert_eq!(said(&words).unwrap_err(), expected, "{algorithm} {cost:?}");
        }
    }
    for maxwait in NO_DURATIONS {
        let words = ["TOKENBUCKET", "10", "1", "1s", "MAXWAIT", maxwait];
        let expected = Error::out_of_range("maxwait", &PATIENCE, maxwait.as_bytes()).to_string();
        assert_eq!(said(&words).unwrap_err(), expected, "{maxwait:?}");
    }
}

#[test]
fn a_maxwait_of_nothing_may_have_any_unit() {
    for maxwait in ["0", "0s", "0us", "0.0", "0e5d"] {
        assert_eq!(said(&["TOKENBUCKET", "1", "1", "1s", "MAXWAIT", maxwait]).unwrap().1, {
            Request::Within(Amount::ONE, Span::ZERO)
        });
    }
}

#[test]
fn a_limit_and_a_give_back_round_down_and_a_cost_up() {
    let millionths = Amount::saturating;
    for (limit, most) in [("0.0000001", "0"), ("1.9999999", "1.999999"), ("0.30000000000000004", "0.3")] {
        for (algorithm, arguments) in ARGUMENTS {
            let mut words = valid(algorithm, arguments);
            words[1] = limit;
            let read = said(&words).unwrap().0.to_string();
            assert_eq!(read.split(' ').nth(1), Some(most), "{algorithm}");
        }
    }
    for (cost, request) in [
        ("0.0000001", Request::Take(millionths(1))),
        ("4.9999999", Request::Take(units(5))),
        ("0.30000000000000004", Request::Take(millionths(300_001))),
        ("1e-06", Request::Take(millionths(1))),
        ("1e-99999999999999999999", Request::Take(millionths(1))),
        ("-0.0000001", Request::GiveBack(Amount::ZERO)),
        ("-0.9999999", Request::GiveBack(millionths(999_999))),
        ("-1e-99999999999999999999", Request::GiveBack(Amount::ZERO)),
        ("-1e12", Request::GiveBack(Amount::MAX_ARGUMENT)),
        ("-0.0", Request::Take(Amount::ZERO)),
        ("-0e5", Request::Take(Amount::ZERO)),
    ] {
        assert_eq!(said(&["FIXED", "10", "60s", "COST", cost]).unwrap().1, request, "{cost}");
    }
}

/// All orders of a few words.
fn orders<'a>(words: &[&'a str]) -> Vec<Vec<&'a str>> {
    let [first, rest @ ..] = words else { return vec![Vec::new()] };
    let behind = |order: Vec<&'a str>| {
        (0..=order.len()).map(move |place| [&order[..place], &[*first], &order[place..]].concat())
    };
    orders(rest).into_iter().flat_map(behind).collect()
}

#[test]
fn options_come_in_any_order_and_any_case() {
    for (limit, options) in [
        ("TOKENBUCKET 10 1 1s", &["COST 12", "FORCE"][..]),
        ("TOKENBUCKET 10 1 1s", &["COST 12", "UPTO"]),
        ("TOKENBUCKET 10 1 1s", &["COST 7", "MAXWAIT 5"]),
        ("LEAKYBUCKET 10 1 1s", &["COST 12", "FORCE"]),
        ("FIXED 10 60s", &["ALIGNED", "COST 12", "UPTO"]),
        ("FIXED 10 60s", &["ALIGNED", "COST 12", "FORCE"]),
        ("FIXED 10 60s", &["ALIGNED", "COST -1"]),
        ("SLIDING 10 60s", &["STRICT", "COST 12", "UPTO"]),
        ("SLIDING 10 60s", &["STRICT", "COST 12", "FORCE"]),
        ("SLIDINGLOG 10 60s", &["COST 12", "FORCE"]),
    ] {
        let read = |options: &str| {
            let text = format!("{limit} {options}");
            let words: Vec<&str> = text.split(' ').collect();
            let (limit, request) = said(&words).unwrap();
            (limit.to_string(), request)
        };
        let expected = read(&options.join(" "));
        assert_ne!(expected.1, Request::Take(Amount::ONE), "they are read at all");
        for order in orders(options) {
            let text = order.join(" ");
            let mixed: String = text
                .chars()
                .enumerate()
                .map(|(at, letter)| if at % 2 == 0 { letter.to_ascii_lowercase() } else { letter })
                .collect();
            for text in [text.to_lowercase(), mixed, text] {
                assert_eq!(read(&text), expected, "{limit} {text}");
            }
        }
    }
}

#[test]
fn a_word_out_of_place_is_told_with_those_that_there_are() {
    const TOKEN: &str = "COST, UPTO, FORCE, MAXWAIT, KEEP, AS, ONCE or SETTLE";
    const PLAIN: &str = "COST, UPTO, FORCE, KEEP, AS, ONCE or SETTLE";
    const FIXED: &str = "COST, UPTO, FORCE, KEEP, AS, ALIGNED, OFFSET, ANCHOR, ONCE or SETTLE";
    const SLIDING: &str = "COST, UPTO, FORCE, KEEP, AS, STRICT, ONCE or SETTLE";
    const LEASES: &str = "COST, KEEP, AS or NX";
    let algorithms = one_of(&Spec::ALGORITHMS.map(|(name, _)| name));
    for (text, word, options) in [
        ("TOKENBUCKET 10 1 1s 5", "5", TOKEN),
        ("TOKENBUCKET 10 1 1s COST 1 FOO", "FOO", TOKEN),
        ("TOKENBUCKET 10 1 1s CO", "CO", TOKEN),
        ("TOKENBUCKET 10 1 1s COSTS 1", "COSTS", TOKEN),
        ("TOKENBUCKET 10 1 1s ALIGNED", "ALIGNED", TOKEN),
        ("TOKENBUCKET 10 1 1s STRICT", "STRICT", TOKEN),
        ("TOKENBUCKET 10 1 1s NX", "NX", TOKEN),
        ("LEAKYBUCKET 10 1 1s MAXWAIT 1s", "MAXWAIT", PLAIN),
        ("FIXED 10 60s STRICT", "STRICT", FIXED),
        ("FIXED 10 60s MAXWAIT 1s", "MAXWAIT", FIXED),
        ("SLIDING 10 60s ALIGNED", "ALIGNED", SLIDING),
        ("SLIDING 10 60s MAXWAIT 1s", "MAXWAIT", SLIDING),
        ("SLIDING 10 60s STRICT MAXWAIT 1s", "MAXWAIT", SLIDING),
        ("SLIDINGLOG 10 60s STRICT", "STRICT", PLAIN),
        ("SLIDINGLOG 10 60s MAXWAIT 1s", "MAXWAIT", PLAIN),
        ("CONCURRENCY 10 60s me UPTO", "UPTO", LEASES),
        ("CONCURRENCY 10 60s me FORCE", "FORCE", LEASES),
        ("CONCURRENCY 10 60s me MAXWAIT 1s", "MAXWAIT", LEASES),
        ("CONCURRENCY 10 60s me ONCE a 1s", "ONCE", LEASES),
        ("CONCURRENCY 10 60s me SETTLE a 1", "SETTLE", LEASES),
        ("CONCURRENCY 10 60s me extra", "extra", LEASES),
    ] {
        let meant = match word {
            "COSTS" => "; did you mean COST?",
            "5" => "; did you mean COST '5'?",
            _ => "",
        };
        let needed = format!("an option of the spec before, BAN or an algorithm is needed: {options}; {algorithms}");
        let expected = format!("ERR syntax error, unexpected '{word}', where {needed}{meant}");
        assert_eq!(read(text).unwrap_err().to_string(), expected, "{text}");
        let expected = format!("ERR syntax error, unexpected '{word}', where an option is needed: {options}{meant}");
        assert_eq!(read_alone(text).unwrap_err().to_string(), expected, "{text}");
    }
    for (text, word, there) in [
        // Twice
        ("TOKENBUCKET 10 1 1s COST 1 COST 1", "COST", ""),
        ("TOKENBUCKET 10 1 1s cost 1 UPTO cost 1", "cost", ""),
        ("TOKENBUCKET 10 1 1s UPTO UPTO", "UPTO", ""),
        ("TOKENBUCKET 10 1 1s FORCE COST 1 force", "force", ""),
        ("TOKENBUCKET 10 1 1s MAXWAIT 1s MAXWAIT 1s", "MAXWAIT", ""),
        ("TOKENBUCKET 10 1 1s KEEP 1 KEEP 10%", "KEEP", ""),
        ("TOKENBUCKET 10 1 1s AS a AS b", "AS", ""),
        ("TOKENBUCKET 10 1 1s ONCE a 1s ONCE b 1s", "ONCE", ""),
        ("TOKENBUCKET 10 1 1s SETTLE a 1 SETTLE b 1", "SETTLE", ""),
        ("FIXED 10 60s ALIGNED COST 1 Aligned", "Aligned", ""),
        ("SLIDING 10 60s STRICT STRICT", "STRICT", ""),
        ("SLIDINGLOG 10 60s COST 1 COST 1", "COST", ""),
        ("CONCURRENCY 10 60s me COST 1 COST 1", "COST", ""),
        ("CONCURRENCY 10 60s me NX COST 1 nx", "nx", ""),
        // Two of which there may be one
        ("TOKENBUCKET 10 1 1s UPTO FORCE", "FORCE", "UPTO"),
        ("TOKENBUCKET 10 1 1s FORCE UPTO", "UPTO", "FORCE"),
        ("TOKENBUCKET 10 1 1s UPTO MAXWAIT 1s", "MAXWAIT", "UPTO"),
        ("TOKENBUCKET 10 1 1s MAXWAIT 1s COST 1 FORCE", "FORCE", "MAXWAIT"),
        ("TOKENBUCKET 10 1 1s ONCE a 1s SETTLE a 1", "SETTLE", "ONCE"),
        ("LEAKYBUCKET 10 1 1s UPTO FORCE", "FORCE", "UPTO"),
        ("FIXED 10 60s UPTO ALIGNED FORCE", "FORCE", "UPTO"),
        ("SLIDING 10 60s FORCE STRICT UPTO", "UPTO", "FORCE"),
        ("SLIDINGLOG 10 60s FORCE UPTO", "UPTO", "FORCE"),
    ] {
        let reason = if there.is_empty() { Reason::Again } else { Reason::Extras(there) };
        let expected = Err(Error::unexpected(word.as_bytes(), reason));
        assert_eq!((read(text), read_alone(text).map(|spec| spec.request)), (expected.clone(), expected), "{text}");
    }
    for name in ["RL.FIXED", "THROTTLE", "FIXE", "STRICT", "10", "AS"] {
        let options = "COST, UPTO, FORCE, MAXWAIT, KEEP, ONCE, SETTLE or EACH";
        let needed = format!("an option, POLICY or an algorithm is needed: {options}; {algorithms}");
        let meant = match name {
            "RL.FIXED" | "FIXE" => "; did you mean FIXED?",
            // No policy is likely to be called so.
            "10" => "",
            _ => "; for a policy: RL.TAKE key POLICY name",
        };
        let expected = format!("ERR syntax error, unexpected '{name}', where {needed}{meant}");
        assert_eq!(said(&[name, "10", "60s"]).unwrap_err(), expected);
        assert_eq!(said(&["COST", "5", name, "10", "60s"]).unwrap_err(), expected);
    }
}

#[test]
fn a_cost_that_goes_with_no_other_option_is_told() {
    for (algorithm, arguments) in &ARGUMENTS[..5] {
        let words = |options: &[&'static str]| [&valid(algorithm, arguments), options].concat();
        let upto = |cost: &str| Error::out_of_range("cost", &COST_UPTO, cost.as_bytes()).to_string();
        for cost in [
            "0",
            "-0",
            "0.5",
            "1.5",
            "0.0000001",
            "1.000001",
            "1.0000001",
            "0.9999999",
            "1.9999999",
            "-1",
            "-0.0000001",
        ] {
            assert_eq!(said(&words(&["COST", cost, "UPTO"])).unwrap_err(), upto(cost), "{algorithm} {cost}");
            assert_eq!(said(&words(&["UPTO", "COST", cost])).unwrap_err(), upto(cost), "{algorithm} {cost}");
        }
        for (cost, most) in [("1", 1), ("1.0", 1), ("1e0", 1), ("10e-1", 1), ("1000000000000", 1_000_000_000_000)] {
            assert_eq!(
                said(&words(&["UPTO", "COST", cost])).unwrap().1,
                Request::UpTo(units(most)),
                "{algorithm} {cost}"
            );
        }
        let modes: &[&[&str]] =
            if *algorithm == "TOKENBUCKET" { &[&["FORCE"], &["MAXWAIT", "1s"]] } else { &[&["FORCE"]] };
        for mode in modes {
            for cost in ["-1", "-0.0000001", "-1e12"] {
                let with_mode = Error::out_of_range("cost", &COST_WITH_MODE, cost.as_bytes()).to_string();
                let (cost, mode) = (vec!["COST", cost], mode.to_vec());
                for options in [[cost.clone(), mode.clone()].concat(), [mode, cost].concat()] {
                    assert_eq!(said(&words(&options)).unwrap_err(), with_mode, "{algorithm} {options:?}");
                }
            }
            let options = [vec!["COST", "-0"], mode.to_vec()].concat();
            let request = said(&words(&options)).unwrap().1;
            assert!(
                matches!(request, Request::Force(Amount::ZERO) | Request::Within(Amount::ZERO, _)),
                "{algorithm} {request:?}"
            );
        }
    }
    for cost in ["0", "-0", "-1"] {
        let expected = Error::out_of_range("cost", &COST_OF_LEASE, cost.as_bytes()).to_string();
        assert_eq!(said(&["CONCURRENCY", "5", "60s", "me", "COST", cost]).unwrap_err(), expected);
    }
}

#[test]
fn a_missing_word_is_told_with_the_words_around_it() {
    for (algorithm, arguments) in ARGUMENTS {
        let words = valid(algorithm, arguments);
        assert_eq!(said(&[]).unwrap_err(), "ERR a spec is missing: RL.TAKE key [options] spec [spec ...]");
        for (place, (name, _)) in arguments.iter().enumerate() {
            let expected = format!("ERR {name} is missing: {}", syntax(algorithm));
            assert_eq!(said(&words[..=place]).unwrap_err(), expected, "{algorithm} {place}");
        }
        let told = said(&[&words[..], &["COST"]].concat()).unwrap_err();
        assert_eq!(told, "ERR cost is missing: COST amount", "{algorithm}");
    }
    for (options, told) in [
        ("MAXWAIT", "ERR maxwait is missing: MAXWAIT duration"),
        ("KEEP", "ERR keep is missing: KEEP amount, or KEEP n%"),
        ("AS", "ERR name is missing: AS name"),
        ("ONCE", "ERR id is missing: ONCE id ttl"),
        ("ONCE a", "ERR ttl is missing: ONCE id ttl"),
        ("SETTLE", "ERR id is missing: SETTLE id amount"),
        ("SETTLE a", "ERR amount is missing: SETTLE id amount"),
        ("BAN 3", "ERR window is missing: BAN strikes window block [MAX longest]"),
    ] {
        assert_eq!(read(&format!("TOKENBUCKET 10 1 1s {options}")).unwrap_err().to_string(), told);
    }
    for (options, told) in [
        ("ALIGNED OFFSET", "ERR offset is missing: ALIGNED OFFSET +hh:mm"),
        ("ALIGNED ANCHOR", "ERR anchor is missing: ALIGNED ANCHOR day"),
    ] {
        assert_eq!(read(&format!("FIXED 10 1mo {options}")).unwrap_err().to_string(), told);
    }
    let told = |text| KeyRequest::take(&mut Args::new(leaked(text))).unwrap_err().to_string();
    assert_eq!(told("POLICY"), "ERR name is missing: POLICY name [OR name ...]");
    assert_eq!(told("POLICY a OR"), "ERR name is missing: POLICY name [OR name ...]");
}

#[test]
fn a_bucket_refills_within_36500_days() {
    for (algorithm, rate) in [("TOKENBUCKET", "refill"), ("LEAKYBUCKET", "leak")] {
        let read = |text: &str| said(&[&[algorithm][..], &text.split(' ').collect::<Vec<&str>>()].concat());
        for text in [
            "36500.000001 1 1d",
            "36501 1 24h",
            "36500 0.999999 1d",
            "10.000001 1 3650d",
            "1e12 1 1s",
            "1e12 0.000001 3650d",
        ] {
            assert_eq!(
                read(text).unwrap_err(),
                Error::out_of_range(rate, &QUICK_RATE, text.split(' ').nth(1).unwrap().as_bytes()).to_string(),
                "{text}"
            );
        }
        for text in [
            "36500 1 1d",
            "10 1 3650d",
            "0 0.000001 3650d",
            "1e12 1e11 3650d",
            "1e12 1e12 3650d",
            "0.000001 0.000001 3650d",
        ] {
            assert!(read(text).is_ok(), "{text}");
        }
    }
}

#[test]
fn a_throttle_takes_whole_numbers_only() {
    for (text, argument) in [
        ("4 1 1 1.5", "quantity"),
        ("4 1 1 x", "quantity"),
        ("4 1 1 +1", "quantity"),
        ("4 1 1 1e3", "quantity"),
        ("4 1 1 1000000000001", "quantity"),
        ("4 1 1 18446744073709551617", "quantity"),
        ("4 1 1 COST 1", "quantity"),
        ("4 1 -1", "period"),
        ("4 1 0.5", "period"),
        ("4 1 9223372036854775808", "period"),
        ("4 -1 1", "count"),
        ("4 1.5 1", "count"),
        ("4 9223372036854775808 1", "count"),
        ("999999999999 1 315360000", "count"),
        ("-1 1 1", "max_burst"),
        ("x 1 1", "max_burst"),
        ("9223372036854775807 1 1", "max_burst"),
    ] {
        let told = read_throttle(text).unwrap_err().to_string();
        assert!(told.starts_with(&format!("ERR {argument} must be ")), "{text}: {told}");
    }
    // What is told to be enough is.
    for burst in ["315360", "999999999999"] {
        let (slow, quick) = (format!("{burst} 1 315360000"), format!("{burst} {burst} 315360000"));
        let expected = Error::out_of_range("count", &FAST_COUNT, b"1");
        assert_eq!((read_throttle(&slow).err(), read_throttle(&quick).is_ok()), (Some(expected), true), "{burst}");
    }
}

#[test]
fn of_several_each_is_read_like_one() {
    let (numkeys, missing) = ("ERR numkeys must be", "ERR window is missing: FIXED limit window");
    for (text, error) in [
        ("-1 a FIXED 5 60", numkeys),
        ("x a b FIXED 5 60 FIXED 5 60", numkeys),
        ("1.0 a FIXED 5 60", numkeys),
        ("2.5 a b FIXED 5 60 FIXED 5 60", numkeys),
        ("+2 a b FIXED 5 60 FIXED 5 60", numkeys),
        ("99999999999999999999 a b FIXED 5 60 FIXED 5 60", numkeys),
        (
            "4 a FIXED 5 60",
            "ERR numkeys must be the number of keys and of specs, such as 2 for two of each \
             (there are specs for 0 of 4 keys)",
        ),
        (
            "3 a b c FIXED 5 60 COST 2",
            "ERR numkeys must be the number of keys and of specs, such as 2 for two of each \
             (there are specs for 1 of 3 keys)",
        ),
        ("2 a FIXED 5 60", "ERR syntax error, unexpected '5', where an option, POLICY or an algorithm is needed"),
        (
            "2 a b c FIXED 5 60 FIXED 5 60 FIXED 5 60",
            "ERR syntax error, unexpected 'c', where an option, POLICY or an algorithm is needed",
        ),
        ("2 a b FIXED 5 60 MAXWAIT 1s FIXED 5 60", "ERR syntax error, unexpected 'MAXWAIT', where an option of"),
        ("2 a b FIXED 5 60 FIXED 5 60 UPTO", "ERR syntax error, unexpected 'UPTO', since RL.MTAKE and RL.MPEEK take"),
        ("2 a b FIXED 5 60 FIXED 5 60 extra", "ERR syntax error, unexpected 'extra' after the last spec"),
        ("2 a b FIXED 5 60 NOSUCH 5 60", "ERR syntax error, unexpected 'NOSUCH'"),
        ("2 a b FIXED 5 60 COST FIXED 5 60", "ERR cost must be"),
        ("2 a b FIXED 5 60 FIXED 5 0", "ERR window must be"),
        ("2 a b FIXED 5 60 FIXED 5 60 COST -1 FORCE", "ERR cost must be"),
        ("2 a b FIXED 5 60 TOKENBUCKET 1e12 1 1s", "ERR refill must be"),
        ("2 a b FIXED 5 60 FIXED 5 60 COST 1 COST 1", "ERR syntax error, unexpected 'COST'"),
        ("3 a b a FIXED 5 60 FIXED 5 60 FIXED 5 60", "ERR keys must be different"),
        ("2 a b FIXED 5 60 FIXED 5", missing),
    ] {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        let told = read_several(&words).unwrap_err().to_string();
        assert!(told.starts_with(error), "{text}: {told}");
    }
}

#[test]
fn what_a_policys_name_alone_asks_is_what_a_call_asks_at_length() {
    let policy = |text: &str, factor: u64| {
        let words: Vec<&[u8]> = std::iter::once("RL.POLICYSET").chain(text.split(' ')).map(str::as_bytes).collect();
        Policy::read(&mut Args::new(&words)).unwrap().scaled(units(factor))
    };
    for (text, factor, is_ready) in [
        ("FIXED 9 1h SLIDING 9 1h", 1, true),
        ("FIXED 9 1h SLIDING 9 1h", 2, true),
        ("FIXED 9 1h COST 3 SLIDING 9 1h SHADOW BAN 3 1m 1h", 1, true),
        ("TOKENBUCKET 9 9 1h FIXED 9 1h", 1, true),
        ("TOKENBUCKET 9 9 1h FIXED 9 1h", 2, false),
        ("FIXED 9 1h AS a SLIDING 9 1h", 1, false),
        ("FIXED 9 1h COST 3 AS a SLIDING 9 1h SHADOW BAN 3 1m 1h", 1, false),
    ] {
        let policy = policy(text, factor);
        let at_length = ByPolicy::after_first_name(b"p", &mut Args::new(&[&b"RL.LIMIT"[..]]))
            .unwrap()
            .request(&policy)
            .map(|asked| format!("{asked:?}"));
        let alone = policy.composite().unwrap();
        assert_eq!(
            Ok(format!("{:?}", KeyRequest::Composite(Box::new(alone.clone().into_owned())))),
            at_length,
            "{text}"
        );
        assert_eq!(matches!(alone, Cow::Borrowed(_)), is_ready, "{text}");
    }
    for leases in ["CONCURRENCY 9 1m", "FIXED 9 1h CONCURRENCY 9 1m"] {
        assert_eq!(policy(leases, 1).composite().map(Cow::into_owned).err(), Some(Error::NoHolder));
    }
}
