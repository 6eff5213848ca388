use super::*;

#[test]
fn names_are_a_list_to_choose_from() {
    assert_eq!(one_of(&["A", "B", "C"]), "A, B or C");
    assert_eq!(one_of(&["A", "B"]), "A or B");
    assert_eq!(one_of(&["A"]), "A");
}

#[test]
fn an_unexpected_word_is_cut_and_escaped() {
    for (word, text) in [
        (&b"FOO"[..], "ERR syntax error, unexpected 'FOO', which is given twice"),
        (b"a'b\r\n\0\xff", r"ERR syntax error, unexpected 'a\'b\r\n\x00\xff', which is given twice"),
        (b"", "ERR syntax error, unexpected '', which is given twice"),
    ] {
        assert_eq!(Error::unexpected(word, Reason::Again).to_string(), text);
    }
    let long = Error::unexpected(&[b'x'; 1000], Reason::Again).to_string();
    assert_eq!(long, format!("ERR syntax error, unexpected '{}...', which is given twice", "x".repeat(32)));
}

#[test]
fn number_of_more_than_64_characters_is_refused_for_its_length() {
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
    // What begins as no number is none, however long it is.
    let word = "A".repeat(65);
    assert_eq!(text(&NUMBER, &word), format!("ERR cost must be a number such as 7, not '{}...'", "A".repeat(32)));
}

#[test]
fn every_refusal_has_its_text_on_the_wire() {
    const MUST_BE: MustBe = MustBe::number("a thing", " of these", "this");
    const SYNTAX: Syntax = Syntax { word: "DO", arguments: "this that" };
    const FIRST: Position = Position { syntax: &SYNTAX, is_first: true };
    for (error, text) in [
        (Error::WrongArity, "ERR wrong number of arguments"),
        (Error::missing("that", &SYNTAX), "ERR that is missing: DO this that"),
        (Error::out_of_range("cost", &MUST_BE, b"9"), "ERR cost must be a thing of these, such as this, not '9'"),
        (Error::out_of_range("cost", &MUST_BE, b"x\0"), r"ERR cost must be a thing such as this, not 'x\x00'"),
        (
            Error::out_of_place("cost", &MUST_BE, b"x", FIRST),
            "ERR cost must be a thing such as this, not 'x' (DO this that, with no key between)",
        ),
        (
            Error::out_of_place("cost", &MUST_BE, b"5s", FIRST),
            "ERR cost must be a thing such as this, not '5s' (the order is this that)",
        ),
        (
            Error::hinted("cost", &MUST_BE, b"x", Hint::Twice),
            "ERR cost must be a thing of these, such as this, not 'x' twice",
        ),
        (
            Error::SameWindow(Box::new(["FIXED 5 1m", "FIXED 9 1m"].map(str::to_owned))),
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
            Error::TooManyEntries { most: 5, setting: "max-leases" },
            "ERR the key has 5 entries, as many as ratelimit.max-leases allows",
        ),
        (Error::no_policy([&b"user:1"[..], b"a'\n"].into_iter()), r"NOPOLICY no policy 'user:1' or 'a\'\n'"),
        (
            Error::NoHolder,
            "ERR the policy has a CONCURRENCY limit: the call needs ONCE id ttl, and the id is the holder",
        ),
        (Error::NoItem, "ERR the policy has a SKETCH: the call needs ITEM item"),
        (Error::MoreToTell("EACH"), "ERR RL.DELAY replies one integer, which is not enough for EACH: use RL.LIMIT"),
        (Error::UnreadablePolicy, "ERR the policy was set by a later version of module ratelimit"),
        (Error::other_version(b"gold", 3, 2), "ERR policy 'gold' has version 3, not 2"),
        (
            Error::TooManyPolicies { most: 4096 },
            "ERR there are 4096 policies, as many as ratelimit.max-policies allows",
        ),
        (Error::NoLaterStamp, "ERR the policy already has the highest possible version"),
        (Error::StampAhead, "ERR the version of the policy is more than a day ahead of this server's clock"),
        (Error::InvalidEffect, "ERR invalid effect"),
        (Error::Internal, "ERR internal error in module ratelimit"),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn a_word_is_shown_whole_up_to_32_characters() {
    let shown = |word: &[u8]| match Error::unexpected(word, Reason::AtEnd) {
        Error::Unexpected { shown, .. } => shown,
        error => unreachable!("{error:?}"),
    };
    for (length, dots) in [(31, ""), (32, ""), (33, "...")] {
        let expected = "x".repeat(length.min(32));
        assert_eq!(shown(&vec![b'x'; length]), format!("'{expected}{dots}'"));
    }
    // Of what is escaped, whole bytes.
    for (length, whole, dots) in [(7, 7, ""), (8, 8, ""), (9, 8, "..."), (1000, 8, "...")] {
        let expected = r"\xff".repeat(whole);
        assert_eq!(shown(&vec![0xff; length]), format!("'{expected}{dots}'"));
    }
    let (thirty, word) = ("x".repeat(30), [&[b'x'; 30][..], b"\n"].concat());
    assert_eq!(shown(&word), format!(r"'{thirty}\n'"));
    assert_eq!(shown(&[&word[..], b"x"].concat()), format!(r"'{thirty}\n...'"));
}

#[test]
fn what_was_perhaps_meant_is_told_if_it_is_near() {
    const NAMES: [&str; 9] =
        ["TOKENBUCKET", "LEAKYBUCKET", "FIXED", "SLIDING", "SLIDINGLOG", "CONCURRENCY", "COST", "AS", "UPTO"];
    let meant = |word: &[u8]| Needed::instead_of(word, What::Word, NAMES.to_vec(), Vec::new()).meant;
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
        assert_eq!(meant(word.as_bytes()), Meant::Word(name), "{word}");
    }
    let long = vec![b'x'; 100_000];
    let (longer, go_on) = ("TOKENBUCKET and more than that".as_bytes(), b"COSTING");
    for word in
        [&b""[..], b"A", b"5", b"plan", b"BUCKET", b"CONCUR", b"5s", b"ASS", b"\xff\xff", b"RL.", &long, longer, go_on]
    {
        assert_eq!(meant(word), Meant::Unknown, "{:?}", word.get(..9).unwrap_or(word));
    }
}

#[test]
fn a_value_without_its_option_is_told_again_if_it_is_short_and_plain() {
    let meant = |option, word: &[u8]| {
        let mut needed = Needed::instead_of(word, What::Word, vec![], vec![]);
        needed.or_value(option, word);
        needed.meant
    };
    let value = |option, shown: &str| Meant::Value(option, shown.to_owned());
    assert_eq!(meant("COST", b"1234567890123456"), value("COST", "'1234567890123456'"));
    assert_eq!(meant("OR", b"gold"), value("OR", "'gold'"));
    for (option, word) in [
        ("COST", &b"12345678901234567"[..]),
        ("OR", b"seventeen.letters"),
        ("OR", b"two words"),
        ("OR", b"GOLD"),
        ("OR", b""),
        ("COST", b"gold"),
    ] {
        assert_eq!(meant(option, word), Meant::Unknown, "{word:?}");
    }
}

#[test]
fn letters_that_are_not_each_others_are_not_swapped() {
    let meant =
        |word: &[u8], names: &[&'static str]| Needed::instead_of(word, What::Word, names.to_vec(), Vec::new()).meant;
    assert_eq!(meant(b"ABCD", &["ABDC"]), Meant::Word("ABDC"));
    for word in [&b"ABCX"[..], b"ABXD"] {
        assert_eq!(meant(word, &["ABDC"]), Meant::Unknown);
    }
    // A whole name is nearer than a longer one.
    assert_eq!(meant(b"FIXED", &["FIXEDS", "FIXED"]), Meant::Word("FIXED"));
}
