//! BLOCK and FENCE, which only RL.ACQUIRE has.

use super::*;

/// Parses the arguments of RL.ACQUIRE, and returns the request as debug text with the time to wait.
fn acquire_text(text: &str) -> (String, Block) {
    let (request, block) = acquire(text).unwrap();
    (format!("{request:?}"), block)
}

#[test]
fn block_is_parsed_with_and_without_a_timeout() {
    for (text, block) in [
        ("9 1m me", Block::No),
        ("9 1m me COST 2 KEEP 1", Block::No),
        ("9 1m me BLOCK 0", Block::Forever),
        ("9 1m me block 1us", Block::For(Span::MICROSECOND)),
        ("9 1m me Block 5", Block::For(Span::SECOND.times(5))),
        ("9 1m me BLOCK 1.5s", Block::For(Span::from_micros(1_500_000))),
        ("9 1m me BLOCK 500ms", Block::For(Span::from_micros(500_000))),
        ("9 1m me BLOCK 3650d", Block::For(Span::MAX_ARGUMENT)),
        // The name of a holder may be an option word.
        ("9 1m BLOCK", Block::No),
        ("9 1m BLOCK BLOCK 5", Block::For(Span::SECOND.times(5))),
    ] {
        assert_eq!(acquire(text).unwrap().1, block, "{text}");
    }
}

#[test]
fn block_is_accepted_anywhere_and_leaves_other_options_unchanged() {
    for options in [
        &[][..],
        &["COST 2"],
        &["NX"],
        &["AS a"],
        &["KEEP 20%", "COST 0.5"],
        &["NX", "AS a", "COST 3"],
        &["KEEP 2", "NX", "COST 3", "AS a"],
    ] {
        for order in permutations(&[options, &["BLOCK 5s"]].concat()) {
            let text = format!("9 1m me {}", order.join(" "));
            let without = order.iter().filter(|option| **option != "BLOCK 5s");
            let without = without.fold("9 1m me".to_owned(), |text, option| format!("{text} {option}"));
            assert_eq!(acquire_text(&without).1, Block::No);
            assert_eq!(acquire_text(&text), (acquire_text(&without).0, Block::For(Span::SECOND.times(5))), "{text}");
            // CONCURRENCY parses the words without BLOCK to the same request.
            let request = parse_one_algorithm(&mut Args::new(leaked(&without)), Spec::concurrency).unwrap();
            assert_eq!(format!("{request:?}"), acquire_text(&without).0);
        }
    }
}

#[test]
fn malformed_block_is_rejected() {
    // Only the bare 0 waits without a timeout.
    let zeros = ZERO_DURATIONS.into_iter().filter(|zero| *zero != "0");
    for block in zeros.chain(INVALID_DURATIONS) {
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
        let suggestion = if word == "FIXED" { "; did you mean RL.TAKE?" } else { "" };
        let needed = format!("where an option is needed: COST, KEEP, AS, NX, BLOCK or FENCE{suggestion}");
        assert_eq!(acquire(text).unwrap_err(), format!("ERR syntax error, unexpected '{word}', {needed}"), "{text}");
    }
}

#[test]
fn fence_is_accepted_only_by_acquire() {
    let parse = |text: &str| {
        let mut args = Args::new(leaked(text));
        Spec::acquire(&mut args, &mut SpecOptions::default()).map(|(_, acquire_options)| acquire_options)
    };
    for (text, expected) in [
        ("9 1m me", AcquireOptions { block: Block::No, fence: false }),
        ("9 1m me fence", AcquireOptions { block: Block::No, fence: true }),
        ("9 1m me FENCE COST 2 BLOCK 0 NX", AcquireOptions { block: Block::Forever, fence: true }),
        ("9 1m me AS a BLOCK 5s FENCE", AcquireOptions { block: Block::For(Span::SECOND.times(5)), fence: true }),
        ("9 1m FENCE", AcquireOptions { block: Block::No, fence: false }),
    ] {
        assert_eq!(parse(text).unwrap(), expected, "{text}");
    }
    let message = |error: Error| error.to_string();
    let duplicate = "ERR syntax error, unexpected 'FENCE', which is given twice";
    assert_eq!(parse("9 1m me FENCE NX FENCE").map_err(message), Err(duplicate.to_owned()));
    let only_acquire = "ERR syntax error, unexpected 'FENCE', which only RL.ACQUIRE has";
    for text in ["CONCURRENCY 9 1m me FENCE", "FIXED 9 1m fence", "FENCE FIXED 9 1m", "POLICY p FENCE"] {
        let refused = KeyRequest::take(&mut Args::new(leaked(text)), None).unwrap_err();
        assert_eq!(refused.to_string(), only_acquire, "{text}");
    }
}

#[test]
fn block_outside_acquire_is_rejected_with_a_hint() {
    fn assert_rejected<T: std::fmt::Debug>(result: Result<T, Error>, text: &str) {
        let error = result.unwrap_err().to_string();
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
        assert_rejected(parse_own_command(text), text);
        for text in [text.to_owned(), format!("SLIDING 9 1m {text}"), format!("COST 1 {text}")] {
            assert_rejected(KeyRequest::take(&mut Args::new(leaked(&text)), None), &text);
            assert_rejected(KeyRequest::peek(&mut Args::new(leaked(&text)), None), &text);
        }
        for keys in ["1 a", "1 a COST 1", "2 a b", "2 a b FIXED 9 1h"] {
            let text = format!("{keys} {text}");
            assert_rejected(take_keys(&mut Args::new(leaked(&text))), &text);
            assert_rejected(peek_keys(&mut Args::new(leaked(&text))), &text);
        }
    }
    for text in [
        "BLOCK 5s CONCURRENCY 9 1m me",
        "COST 1 BLOCK 5s CONCURRENCY 9 1m me",
        "FIXED 9 1m BAN 1 1s 1s BLOCK 5s",
        "POLICY p BLOCK 5s",
        "POLICY p OR q ONCE a 1m BLOCK 5s",
    ] {
        assert_rejected(KeyRequest::take(&mut Args::new(leaked(text)), None), text);
        assert_rejected(KeyRequest::peek(&mut Args::new(leaked(text)), None), text);
    }
    for text in [
        "1 a BLOCK 5s CONCURRENCY 9 1m me",
        "1 a COST 1 BLOCK 5s CONCURRENCY 9 1m me",
        "1 a POLICY p BLOCK 5s",
        "2 a b POLICY p COST 2 BLOCK 5s POLICY q",
    ] {
        assert_rejected(take_keys(&mut Args::new(leaked(text))), text);
    }
    for text in [
        "BLOCK 5s CONCURRENCY 9 1m",
        "CONCURRENCY 9 1m BLOCK 5s",
        "CONCURRENCY 9 1m COST 2 AS a SHADOW BLOCK 5s",
        "FIXED 9 1m SHADOW block 5s",
        "FIXED 9 1m BAN 1 1s 1s BLOCK 5s",
    ] {
        assert_rejected(Policy::parse(&mut Args::new(leaked(text))), text);
    }
    for text in ["BLOCK 5s", "OR q BLOCK 5s", "COST 1 ONCE a 1m BLOCK 0"] {
        assert_rejected(PolicyRequest::after_first_name(b"p", &mut Args::new(leaked(text))), text);
    }
}
