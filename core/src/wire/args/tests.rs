use super::*;

#[test]
fn words_are_read_in_order_after_the_command() {
    let words: [&[u8]; 3] = [b"RL.DEMO", b"one", b""];
    let mut args = Args::new(&words);
    assert_eq!(args.word(), Ok(&b"one"[..]));
    assert!(!args.is_empty());
    assert_eq!(args.word(), Ok(&b""[..]));
    assert!(args.is_empty());
    assert_eq!(args.word(), Err(Error::WrongArity));
}

#[test]
fn key_is_read_as_its_index() {
    let words: [&[u8]; 3] = [b"RL.DEMO", b"user:1", b"user:2"];
    let mut args = Args::new(&words);
    assert_eq!(args.key(), Ok(KeyIndex(1)));
    assert_eq!(args.key(), Ok(KeyIndex(2)));
    assert_eq!(args.key(), Err(Error::WrongArity));
}

#[test]
fn missing_words_are_read_as_none() {
    let words: [&[u8]; 4] = [b"RL.DEMO", b"one", b"two", b"three"];
    let mut args = Args::new(&words);
    assert_eq!(args.next_words(), [Some(&b"one"[..]), Some(b"two")]);
    assert_eq!(args.next_words(), [Some(&b"three"[..]), None]);
    assert!(args.is_empty());
}

#[test]
fn only_the_expected_word_is_accepted_in_any_case() {
    let words: [&[u8]; 3] = [b"RL.DEMO", b"CoSt", b"COSTS"];
    let mut args = Args::new(&words);
    assert!(!args.accept("FORCE"));
    assert!(args.accept("COST"));
    assert!(!args.accept("COST"));
    assert_eq!(args.word(), Ok(&b"COSTS"[..]));
    assert!(!args.accept("COST") && !args.accept(""), "no word is left");
}

#[test]
fn error_at_the_end_names_the_first_remaining_word() {
    let words: [&[u8]; 3] = [b"RL.DEMO", b"first", b"second"];
    let mut args = Args::new(&words);
    assert_eq!(args.end(), Err(Error::unexpected(b"first", Reason::AtEnd)));
    args.word().unwrap();
    assert_eq!(args.end(), Err(Error::unexpected(b"second", Reason::AtEnd)));
    args.word().unwrap();
    assert_eq!(args.end(), Ok(()));
}

#[test]
fn whole_number_of_plain_digits_up_to_the_maximum_is_accepted() {
    for (text, max, expected) in [
        ("0", 0, Some(0)),
        ("1", 0, None),
        ("7", 7, Some(7)),
        ("8", 7, None),
        ("007", 7, Some(7)),
        ("18446744073709551615", u64::MAX, Some(u64::MAX)),
        ("18446744073709551616", u64::MAX, None),
    ] {
        assert_eq!(whole(text.as_bytes(), max), expected, "{text}");
    }
    for text in [&b""[..], b"+1", b"-1", b" 1", b"1 ", b"1.0", b"1e3", b"0x1", b"1_0", "\u{661}".as_bytes(), b"\xff"] {
        assert_eq!(whole(text, u64::MAX), None, "{}", text.escape_ascii());
    }
}

#[test]
fn numbered_keys_are_read_as_their_indexes() {
    let words: [&[u8]; 5] = [b"RL.DEMO", b"2", b"a", b"b", b"FIXED"];
    let mut args = Args::new(&words);
    let keys: Vec<KeyIndex> = args.numbered_keys().unwrap().collect();
    assert_eq!(keys, [KeyIndex(2), KeyIndex(3)]);
    assert_eq!([args.name(keys[0]), args.name(keys[1])], [b"a", b"b"]);
    assert_eq!(args.word(), Ok(&b"FIXED"[..]));
}

#[test]
fn numbered_keys_must_match_their_number() {
    for words in [
        &[&b"RL.DEMO"[..]][..],
        &[b"RL.DEMO", b"0", b"a"],
        &[b"RL.DEMO", b"2", b"a"],
        &[b"RL.DEMO", b"-1", b"a"],
        &[b"RL.DEMO", b"one", b"a"],
        &[b"RL.DEMO", b"18446744073709551615", b"a"],
    ] {
        assert!(Args::new(&words).numbered_keys().is_none(), "{words:?}");
    }
    let words: [&[u8]; 3] = [b"RL.DEMO", b"1", b"a"];
    assert!(Args::new(&words).numbered_keys().is_some());
}

#[test]
fn duplicate_name_is_found_at_any_position() {
    for length in [2, MAX_PAIRWISE - 1, MAX_PAIRWISE, MAX_PAIRWISE + 1, 3 * MAX_PAIRWISE] {
        let names: Vec<String> = (0..length).map(|number| format!("{number}")).collect();
        let mut names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        assert_eq!(duplicate(names.iter().copied()), None, "{length}");
        for (one, other) in [(0, 1), (0, length - 1), (length - 2, length - 1)] {
            let original = names[other];
            names[other] = names[one];
            assert_eq!(duplicate(names.iter().copied()), Some(names[one]), "{one} and {other} of {length}");
            names[other] = original;
        }
    }
    assert_eq!((duplicate([].into_iter()), duplicate([&b"a"[..]].into_iter())), (None, None));
}
