use super::*;

#[test]
fn names_are_joined_to_a_list() {
    assert_eq!(one_of(&["A", "B", "C"]), "A, B or C");
    assert_eq!(one_of(&["A", "B"]), "A or B");
    assert_eq!(one_of(&["A"]), "A");
}

#[test]
fn unexpected_word_is_truncated_and_escaped() {
    for (word, text) in [
        (&b"FOO"[..], "ERR syntax error, unexpected 'FOO', which is given twice"),
        (b"a'b\r\n\0\xff", r"ERR syntax error, unexpected 'a\'b\r\n\x00\xff', which is given twice"),
        (b"", "ERR syntax error, unexpected '', which is given twice"),
    ] {
        assert_eq!(Error::unexpected(word, Reason::Duplicate).to_string(), text);
    }
    let long = Error::unexpected(&[b'x'; 1000], Reason::Duplicate).to_string();
    assert_eq!(long, format!("ERR syntax error, unexpected '{}...', which is given twice", "x".repeat(32)));
}

#[test]
fn error_of_a_long_number_names_the_maximum_length() {
    const NUMBER: MustBe = MustBe::number("a number", " from 0 to 9", "7");
    const DURATION: MustBe = MustBe::duration("a duration", " from 1us to 1s", "1ms");
    let text = |must_be: &'static MustBe, word: &str| Error::out_of_range("cost", must_be, word.as_bytes()).to_string();
    let shown = "1".repeat(32);
    let long = "1".repeat(65);
    assert_eq!(
        text(&NUMBER, &long),
        format!("ERR cost must be a number such as 7, not '{shown}...' (at most 64 characters)")
    );
    assert_eq!(
        text(&DURATION, &long),
        format!("ERR cost must be a duration such as 1ms, not '{shown}...' (at most 64 characters)")
    );
    assert_eq!(
        text(&NUMBER, &long[1..]),
        format!("ERR cost must be a number from 0 to 9, such as 7, not '{shown}...'")
    );
    // A word that does not look like a number gets no hint about its length.
    let word = "A".repeat(65);
    assert_eq!(text(&NUMBER, &word), format!("ERR cost must be a number such as 7, not '{}...'", "A".repeat(32)));
}

#[test]
fn every_error_has_its_text() {
    const MUST_BE: MustBe = MustBe::number("a number", " from 1 to 5", "3");
    const SYNTAX: Syntax = Syntax { word: "FIXED", arguments: "limit window" };
    const FIRST: Position = Position { syntax: &SYNTAX, is_first: true };
    for (error, text) in [
        (Error::WrongArity, "ERR wrong number of arguments"),
        (Error::Missing { argument: "window", syntax: &SYNTAX }, "ERR window is missing: FIXED limit window"),
        (Error::out_of_range("cost", &MUST_BE, b"9"), "ERR cost must be a number from 1 to 5, such as 3, not '9'"),
        (Error::out_of_range("cost", &MUST_BE, b"x\0"), r"ERR cost must be a number such as 3, not 'x\x00'"),
        (
            Error::out_of_range_at("cost", &MUST_BE, b"x", FIRST),
            "ERR cost must be a number such as 3, not 'x' (FIXED limit window, with no key between)",
        ),
        (
            Error::out_of_range_at("cost", &MUST_BE, b"5s", FIRST),
            "ERR cost must be a number such as 3, not '5s' (the order is limit window)",
        ),
        (
            Error::hinted("cost", &MUST_BE, b"x", Hint::Twice),
            "ERR cost must be a number from 1 to 5, such as 3, not 'x' twice",
        ),
        (
            Error::SameIdentity(Box::new(["FIXED 5 1m", "FIXED 9 1m"].map(str::to_owned))),
            "ERR specs of one kind must have different windows or different names, such as \
             FIXED 10 1m AS burst, not FIXED 5 1m and FIXED 9 1m",
        ),
        (
            Error::TooFewSpecs { keys: 3, specs: 2 },
            "ERR numkeys must be the number of keys and of specs, such as 2 for two of each \
             (there are specs for 2 of 3 keys)",
        ),
        (
            Error::WrongType { holds: "a string", needs: "a bucket" },
            "WRONGTYPE Operation against a key holding a string, where a bucket is needed",
        ),
        (Error::OutOfMemory, "OOM command not allowed when used memory > 'maxmemory'."),
        (
            Error::TooManyEntries { max: 5, setting: "max-leases" },
            "ERR the key has 5 entries, as many as ratelimit.max-leases allows",
        ),
        (Error::no_policy([&b"user:1"[..], b"a'\n"].into_iter()), r"NOPOLICY no policy 'user:1' or 'a\'\n'"),
        (
            Error::NoHolder,
            "ERR the policy has a CONCURRENCY limit: the call needs ONCE id ttl, and the id is the holder",
        ),
        (Error::NoItem, "ERR the policy has a SKETCH: the call needs ITEM item"),
        (Error::LongerReply("EACH"), "ERR RL.DELAY replies one integer, which is not enough for EACH: use RL.LIMIT"),
        (Error::UnreadablePolicy, "ERR the policy was set by a later version of module ratelimit"),
        (Error::other_version(b"gold", 3, 2), "ERR policy 'gold' has version 3, not 2"),
        (Error::TooManyPolicies { max: 4096 }, "ERR there are 4096 policies, as many as ratelimit.max-policies allows"),
        (Error::NoLaterStamp, "ERR the policy already has the highest possible version"),
        (Error::StampAhead, "ERR the version of the policy is more than a day ahead of this server's clock"),
        (Error::InvalidEffect, "ERR invalid effect"),
        (Error::Internal, "ERR internal error in module ratelimit"),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn word_is_truncated_after_32_characters() {
    let shown = |word: &[u8]| match Error::unexpected(word, Reason::AtEnd) {
        Error::Unexpected { shown, .. } => shown,
        error => unreachable!("{error:?}"),
    };
    for (length, dots) in [(31, ""), (32, ""), (33, "...")] {
        let expected = "x".repeat(length.min(32));
        assert_eq!(shown(&vec![b'x'; length]), format!("'{expected}{dots}'"));
    }
    // Escaped bytes are not split.
    for (length, escapes, dots) in [(7, 7, ""), (8, 8, ""), (9, 8, "..."), (1000, 8, "...")] {
        let expected = r"\xff".repeat(escapes);
        assert_eq!(shown(&vec![0xff; length]), format!("'{expected}{dots}'"));
    }
    let (thirty, word) = ("x".repeat(30), [&[b'x'; 30][..], b"\n"].concat());
    assert_eq!(shown(&word), format!(r"'{thirty}\n'"));
    assert_eq!(shown(&[&word[..], b"x"].concat()), format!(r"'{thirty}\n...'"));
}

#[test]
fn only_a_similar_word_is_suggested() {
    const NAMES: [&str; 9] =
        ["TOKENBUCKET", "LEAKYBUCKET", "FIXED", "SLIDING", "SLIDINGLOG", "CONCURRENCY", "COST", "AS", "UPTO"];
    let suggested = |word: &[u8]| Needed::instead_of(word, Expected::Word, NAMES.to_vec(), Vec::new()).suggestion;
    for (word, name) in [
        ("TOKENBUKET", "TOKENBUCKET"),
        ("tokenbuckets", "TOKENBUCKET"),
        ("TOKEN_BUCKET", "TOKENBUCKET"),
        ("token-bucket", "TOKENBUCKET"),
        ("TOEKNBUCEKT", "TOKENBUCKET"),
        ("LEAKBUCKET", "LEAKYBUCKET"),
        ("RL.FIXED", "FIXED"),
        ("rl.fxied", "FIXED"),
        ("FIXEDWINDOW", "FIXED"),
        ("SLIDNG", "SLIDING"),
        ("SLIDING_LOG", "SLIDINGLOG"),
        ("SLIDINGLOGS", "SLIDINGLOG"),
        ("CONCURENCY", "CONCURRENCY"),
        ("COSTS", "COST"),
        ("CSOT", "COST"),
        ("UPT0", "UPTO"),
        ("as", "AS"),
        ("TOKENBUCKET-and-the-rest", "TOKENBUCKET"),
    ] {
        assert_eq!(suggested(word.as_bytes()), Suggestion::Word(name), "{word}");
    }
    let huge = vec![b'x'; 100_000];
    for word in [
        &b""[..],
        b"A",
        b"5",
        b"plan",
        b"BUCKET",
        b"CONCUR",
        b"5s",
        b"ASS",
        b"\xff\xff",
        b"RL.",
        &huge,
        b"TOKENBUCKET and more than that",
        b"COSTING",
    ] {
        assert_eq!(suggested(word), Suggestion::Unknown, "{:?}", word.get(..9).unwrap_or(word));
    }
}

#[test]
fn missing_option_is_suggested_for_a_short_value() {
    let suggested = |option, word: &[u8]| {
        let mut needed = Needed::instead_of(word, Expected::Word, vec![], vec![]);
        needed.suggest_value_of(option, word);
        needed.suggestion
    };
    let value = |option, shown: &str| Suggestion::Value(option, shown.to_owned());
    assert_eq!(suggested("COST", b"1234567890123456"), value("COST", "'1234567890123456'"));
    assert_eq!(suggested("OR", b"gold"), value("OR", "'gold'"));
    for (option, word) in [
        ("COST", &b"12345678901234567"[..]),
        ("OR", b"seventeen.letters"),
        ("OR", b"two words"),
        ("OR", b"GOLD"),
        ("OR", b""),
        ("COST", b"gold"),
    ] {
        assert_eq!(suggested(option, word), Suggestion::Unknown, "{word:?}");
    }
}

#[test]
fn swapped_neighbours_count_as_one_typo() {
    let suggested = |word: &[u8], names: &[&'static str]| {
        Needed::instead_of(word, Expected::Word, names.to_vec(), Vec::new()).suggestion
    };
    assert_eq!(suggested(b"ABCD", &["ABDC"]), Suggestion::Word("ABDC"));
    for word in [&b"ABCX"[..], b"ABXD"] {
        assert_eq!(suggested(word, &["ABDC"]), Suggestion::Unknown);
    }
    // An exact match is preferred to a longer name.
    assert_eq!(suggested(b"FIXED", &["FIXEDS", "FIXED"]), Suggestion::Word("FIXED"));
}
