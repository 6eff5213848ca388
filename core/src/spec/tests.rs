use super::*;

fn read(text: &str) -> Result<Ask, Error> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.TAKE"[..]).chain(text.split(' ').map(str::as_bytes)).collect();
    let mut args = Args::new(&words);
    let spec = Spec::any(&mut args)?;
    args.end().map(|()| spec.ask)
}

fn units(units: u64) -> Amount {
    Amount::saturating(units * 1_000_000)
}

#[test]
fn reads_what_is_asked() {
    for (text, ask) in [
        ("TOKENBUCKET 200 100 60s", Ask::Take(Amount::ONE)),
        ("tokenbucket 200 100 60s cost 2", Ask::Take(units(2))),
        ("TOKENBUCKET 200 100 60s COST 0", Ask::Take(Amount::ZERO)),
        ("TOKENBUCKET 200 100 60s COST -0 FORCE", Ask::Force(Amount::ZERO)),
        ("TOKENBUCKET 200 100 60s COST -2", Ask::GiveBack(units(2))),
        ("TOKENBUCKET 200 100 60s COST -0.0000001", Ask::GiveBack(Amount::ZERO)),
        ("TOKENBUCKET 200 100 60s UPTO COST 10", Ask::UpTo(units(10))),
        ("TOKENBUCKET 200 100 60s MAXWAIT 0", Ask::Within(Amount::ONE, Span::ZERO)),
        ("FIXED 5 1m FORCE ALIGNED COST 3", Ask::Force(units(3))),
        ("SLIDING 5 1m UPTO", Ask::UpTo(Amount::ONE)),
        ("LEAKYBUCKET 5 1 1s COST 0.5", Ask::Take(Amount::saturating(500_000))),
        ("SLIDING 5 1m COST 2 STRICT", Ask::Take(units(2))),
        ("SLIDINGLOG 5 1m FORCE", Ask::Force(Amount::ONE)),
        ("CONCURRENCY 5 1m me", Ask::Take(Amount::ONE)),
        ("CONCURRENCY 5 1m me COST 0.1", Ask::Take(Amount::saturating(100_000))),
        ("CONCURRENCY 5 1m me cost 0.0000001", Ask::Take(Amount::saturating(1))),
        ("TOKENBUCKET 5 1 1s maxwait 1.5s COST 3", Ask::Within(units(3), Span::from_micros(1_500_000))),
        ("FIXED 5 1m COST 1000000000000 upto", Ask::UpTo(Amount::MAX_ARGUMENT)),
    ] {
        assert_eq!(read(text), Ok(ask), "{text}");
    }
}

#[test]
fn refuses_with_the_word_or_the_argument() {
    for (text, error) in [
        (
            "NOSUCH 1 1s",
            "ERR syntax error, unexpected 'NOSUCH', where an algorithm is needed: TOKENBUCKET, LEAKYBUCKET, FIXED, \
             SLIDING, SLIDINGLOG or CONCURRENCY",
        ),
        ("TOKENBUCKET 1 1 1s COST 1 COST 2", "ERR syntax error, unexpected 'COST'"),
        ("TOKENBUCKET 1 1 1s UPTO FORCE", "ERR syntax error, unexpected 'FORCE'"),
        ("FIXED 1 1s MAXWAIT 5s", "ERR syntax error, unexpected 'MAXWAIT'"),
        ("FIXED 1 1s ALIGNED aligned", "ERR syntax error, unexpected 'aligned'"),
        ("SLIDING 1 1s ALIGNED", "ERR syntax error, unexpected 'ALIGNED'"),
        ("CONCURRENCY 1 1s me UPTO", "ERR syntax error, unexpected 'UPTO'"),
        ("CONCURRENCY 1 1s", "ERR wrong number of arguments"),
        ("CONCURRENCY 1 1s me COST 0", "ERR cost must be a number above 0, up to 1000000000000, such as 1"),
        ("CONCURRENCY 1 1s me COST -1", "ERR cost must be a number above 0, up to 1000000000000, such as 1"),
        ("CONCURRENCY 1 0 me", "ERR ttl must be a duration from 1us to 3650d, such as 60s"),
        ("TOKENBUCKET 1 1", "ERR wrong number of arguments"),
        ("TOKENBUCKET 1 1 1s COST", "ERR wrong number of arguments"),
        ("TOKENBUCKET x 1 1s", "ERR capacity must be a number from 0 to 1000000000000, such as 100"),
        ("TOKENBUCKET 1 0 1s", "ERR refill must be a number from 0.000001 to 1000000000000, such as 100"),
        ("LEAKYBUCKET 1 -1 1s", "ERR leak must be a number from 0.000001 to 1000000000000, such as 100"),
        (
            "TOKENBUCKET 1e12 1 1s",
            "ERR refill must be enough to refill the capacity within 36500d, such as the capacity itself",
        ),
        ("TOKENBUCKET 1 1 0s", "ERR period must be a duration from 1us to 3650d, such as 60s"),
        ("FIXED 1 1S", "ERR window must be a duration from 1us to 3650d, such as 60s"),
        ("FIXED -1 1s", "ERR limit must be a number from 0 to 1000000000000, such as 100"),
        ("FIXED 1 1s COST x", "ERR cost must be a number from -1000000000000 to 1000000000000, such as 1"),
        ("FIXED 1 1s COST 0 UPTO", "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10"),
        ("FIXED 1 1s COST -1 UPTO", "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10"),
        // Rounded up it would be one.
        (
            "FIXED 1 1s COST 0.9999999 UPTO",
            "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10",
        ),
        ("FIXED 1 1s COST 0.5 UPTO", "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10"),
        (
            "FIXED 1 1s COST -1 FORCE",
            "ERR cost must be a number from 0 to 1000000000000 with FORCE or MAXWAIT, such as 1",
        ),
        ("TOKENBUCKET 1 1 1s MAXWAIT 1x", "ERR maxwait must be 0 or a duration from 1us to 3650d, such as 500ms"),
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
        let words: Vec<&[u8]> = std::iter::once(&b"RL.TAKE"[..]).chain(text.split(' ').map(str::as_bytes)).collect();
        let spec = Spec::any(&mut Args::new(&words)).unwrap();
        assert_eq!(format!("{:?}", spec.limit), format!("{limit:?}"), "{text}");
    }
}

fn read_throttle(text: &str) -> Result<(Bucket, Ask), Error> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.THROTTLE"[..]).chain(text.split(' ').map(str::as_bytes)).collect();
    throttle(&mut Args::new(&words))
}

#[test]
fn a_throttle_is_a_bucket_of_one_more_than_its_burst() {
    for (text, capacity, refill, period, ask) in [
        ("15 30 60", 16, 30, "60s", Ask::Take(Amount::ONE)),
        ("0 1 1 5", 1, 1, "1s", Ask::Take(units(5))),
        ("15 30 60 0", 16, 30, "60s", Ask::Take(Amount::ZERO)),
        ("999999999999 1000000000000 315360000 1000000000000", 1_000_000_000_000, 1_000_000_000_000, "3650d", {
            Ask::Take(Amount::MAX_ARGUMENT)
        }),
    ] {
        let period = Period::parse(period.as_bytes()).unwrap();
        let expected = Bucket::new(units(capacity), units(refill), period, Discipline::Burst).unwrap();
        let (bucket, asked) = read_throttle(text).unwrap();
        assert_eq!((format!("{bucket:?}"), asked), (format!("{expected:?}"), ask), "{text}");
    }
}

#[test]
fn a_throttle_is_refused_with_the_argument() {
    const COUNT: &str = "ERR count must be a whole number from 1 to 1000000000000, such as 30";
    const PERIOD: &str = "ERR period must be a whole number of seconds from 1 to 315360000, such as 60";
    for (text, error) in [
        ("15 30", "ERR wrong number of arguments"),
        ("15 30 60 1 1", "ERR syntax error, unexpected '1'"),
        ("1.5 30 60", "ERR max_burst must be a whole number from 0 to 999999999999, such as 15"),
        ("1000000000000 30 60", "ERR max_burst must be a whole number from 0 to 999999999999, such as 15"),
        ("15 0 60", COUNT),
        ("15 1000000000001 60", COUNT),
        ("15 30 0", PERIOD),
        ("15 30 60s", PERIOD),
        ("15 30 315360001", PERIOD),
        ("15 30 60 -1", "ERR quantity must be a whole number from 0 to 1000000000000, such as 1"),
        ("99 1 315360000", "ERR count must be enough to refill the burst within 36500d, such as max_burst itself"),
    ] {
        assert_eq!(read_throttle(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn holders_are_names_of_1_to_256_bytes_and_one_at_least() {
    const HOLDER: &str = "ERR holder must be a name of 1 to 256 bytes, such as worker-7";
    let (longest, too_long) = ([0xff; MAX_HOLDER], [b'x'; MAX_HOLDER + 1]);
    let read = |words: &[&[u8]]| holders(&mut Args::new(&words)).map(|holders| holders.concat());
    assert_eq!(read(&[b"RL.RELEASE", b"a"]), Ok(b"a".to_vec()));
    assert_eq!(read(&[b"RL.RELEASE", b"a", b"b", b"a"]), Ok(b"aba".to_vec()));
    assert_eq!(read(&[b"RL.RELEASE", &longest]), Ok(longest.to_vec()));
    assert_eq!(read(&[b"RL.RELEASE"]), Err(Error::WrongArity));
    for words in [&[&b"RL.RELEASE"[..], b""][..], &[b"RL.RELEASE", b"a", b""], &[b"RL.RELEASE", &too_long]] {
        assert_eq!(read(words).unwrap_err().to_string(), HOLDER);
    }
}

fn read_several(words: &[&[u8]]) -> Result<usize, Error> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.MTAKE"[..]).chain(words.iter().copied()).collect();
    several(&mut Args::new(&words)).map(|parts| parts.len())
}

#[test]
fn several_are_refused_with_numkeys_if_it_may_be_wrong_and_with_what_was_found() {
    const MUST_BE: &str = "ERR numkeys must be the number of keys and of specs, such as 2 for two of each";
    let names = one_of(&Spec::ALGORITHMS.map(|(name, _)| name));
    let found = |word: &str| {
        format!(
            "ERR syntax error, unexpected '{word}', where an algorithm is needed: {names}; \
             numkeys must be the number of keys"
        )
    };
    let left = |word: &str| {
        format!(
            "ERR syntax error, unexpected '{word}' behind the last spec; \
             numkeys must be the number of keys and of specs"
        )
    };
    for (text, error) in [
        ("0 a FIXED 5 6", MUST_BE.to_owned()),
        ("a b FIXED 5 6 FIXED 5 6", MUST_BE.to_owned()),
        ("9 a b FIXED 5 6 FIXED 5 6", MUST_BE.to_owned()),
        ("1 a b FIXED 5 6 FIXED 5 6", found("b")),
        ("3 a b FIXED 5 6 FIXED 5 6", found("5")),
        // A key twice is not what is wrong.
        ("6 a b FIXED 5 6 FIXED 5 6", found("5")),
        ("8 a b FIXED 5 6 FIXED 5 6", format!("{MUST_BE} (there are specs for 0 of 8 keys)")),
        ("2 a b FIXED 5 6", format!("{MUST_BE} (there are specs for 1 of 2 keys)")),
        ("2 a b TOKENBUKET 5 5 6 FIXED 5 6", found("TOKENBUKET")),
        ("1 a FIXED 5 6 FIXED 5 6", left("FIXED")),
        ("1 a FIXED 5 6 MAXWAIT 1s", left("MAXWAIT")),
        (
            "2 a b FIXED 5 6 TOKENBUKET 5 5 6",
            format!(
                "ERR syntax error, unexpected 'TOKENBUKET', \
                 where an option of the spec before or an algorithm is needed: {names}"
            ),
        ),
        (
            "2 a b FIXED 5 6 UPTO FIXED 5 6",
            "ERR syntax error, unexpected 'UPTO', since several limits grant all or nothing".to_owned(),
        ),
        ("2 a b FIXED 5 6 FIXED 5", "ERR wrong number of arguments".to_owned()),
        (
            "2 a a FIXED 5 6 FIXED 5 6",
            "ERR keys must be different from each other, such as {alice}:minute {alice}:day".to_owned(),
        ),
    ] {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        assert_eq!(read_several(&words).unwrap_err().to_string(), error, "{text}");
    }
    assert_eq!(read_several(&[b"2", b"a", b"b", b"FIXED", b"5", b"6", b"FIXED", b"5", b"6"]), Ok(2));
}

#[test]
fn a_refusal_is_short_whatever_was_found() {
    let junk: &[u8] = &[0xff; 1000];
    let calls: [&[&[u8]]; 3] = [
        &[b"1", b"a", junk, b"5", b"6"],
        &[b"2", b"a", b"b", b"FIXED", b"5", b"6", junk, b"5", b"6"],
        &[b"1", b"a", b"FIXED", b"5", b"6", junk],
    ];
    for call in calls {
        let text = read_several(call).unwrap_err().to_string();
        assert!(text.contains("...'") && text.len() < 300, "{} bytes: {text}", text.len());
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
        let said: Vec<&[u8]> = std::iter::once(&b"RL.TAKE"[..]).chain(text.split(' ').map(str::as_bytes)).collect();
        assert_eq!(Spec::any(&mut Args::new(&said)).unwrap().limit.to_string(), words);
    }
    assert_eq!(Span::ZERO.to_string(), "0");
}
