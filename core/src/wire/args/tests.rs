use super::*;

#[test]
fn words_are_read_from_left_to_right_behind_the_name_of_the_command() {
    let words: [&[u8]; 3] = [b"RL.DEMO", b"one", b""];
    let mut args = Args::new(&words);
    assert_eq!(args.word(), Ok(&b"one"[..]));
    assert!(!args.is_empty());
    assert_eq!(args.word(), Ok(&b""[..]));
    assert!(args.is_empty());
    assert_eq!(args.word(), Err(Error::WrongArity));
}

#[test]
fn a_key_is_told_with_its_place() {
    let words: [&[u8]; 3] = [b"RL.DEMO", b"user:1", b"user:2"];
    let mut args = Args::new(&words);
    assert_eq!(args.key(), Ok(KeyName(1)));
    assert_eq!(args.key(), Ok(KeyName(2)));
    assert_eq!(args.key(), Err(Error::WrongArity));
}

#[test]
fn the_next_words_are_read_at_once_whether_they_are_there_or_not() {
    let words: [&[u8]; 4] = [b"RL.DEMO", b"one", b"two", b"three"];
    let mut args = Args::new(&words);
    assert_eq!(args.next_words(), [Some(&b"one"[..]), Some(b"two")]);
    assert_eq!(args.next_words(), [Some(&b"three"[..]), None]);
    assert!(args.is_empty());
}

#[test]
fn a_word_that_is_expected_is_read_in_any_case_and_another_stays() {
    let words: [&[u8]; 3] = [b"RL.DEMO", b"CoSt", b"COSTS"];
    let mut args = Args::new(&words);
    assert!(!args.accept("FORCE"));
    assert!(args.accept("COST"));
    assert!(!args.accept("COST"));
    assert_eq!(args.word(), Ok(&b"COSTS"[..]));
    assert!(!args.accept("COST") && !args.accept(""), "nothing is left to accept");
}

#[test]
fn what_is_left_at_the_end_is_refused_by_its_first_word() {
    let words: [&[u8]; 3] = [b"RL.DEMO", b"first", b"second"];
    let mut args = Args::new(&words);
    assert_eq!(args.end(), Err(Error::unexpected(b"first", Reason::AtEnd)));
    args.word().unwrap();
    assert_eq!(args.end(), Err(Error::unexpected(b"second", Reason::AtEnd)));
    args.word().unwrap();
    assert_eq!(args.end(), Ok(()));
}

#[test]
fn whole_numbers_are_plain_digits_up_to_the_most() {
    for (text, most, expected) in [
        ("0", 0, Some(0)),
        ("1", 0, None),
        ("7", 7, Some(7)),
        ("8", 7, None),
        ("007", 7, Some(7)),
        ("18446744073709551615", u64::MAX, Some(u64::MAX)),
        ("18446744073709551616", u64::MAX, None),
    ] {
        assert_eq!(whole(text.as_bytes(), most), expected, "{text}");
    }
    for text in [&b""[..], b"+1", b"-1", b" 1", b"1 ", b"1.0", b"1e3", b"0x1", b"1_0", "\u{661}".as_bytes(), b"\xff"] {
        assert_eq!(whole(text, u64::MAX), None, "{}", text.escape_ascii());
    }
}

#[test]
fn numbered_keys_are_told_with_their_places_and_what_follows_is_left() {
    let words: [&[u8]; 5] = [b"RL.DEMO", b"2", b"a", b"b", b"FIXED"];
    let mut args = Args::new(&words);
    let keys: Vec<KeyName> = args.numbered_keys().unwrap().collect();
    assert_eq!(keys, [KeyName(2), KeyName(3)]);
    assert_eq!([args.name(keys[0]), args.name(keys[1])], [b"a", b"b"]);
    assert_eq!(args.word(), Ok(&b"FIXED"[..]));
}

#[test]
fn numbered_keys_are_as_many_as_their_number_and_any() {
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
fn a_name_that_comes_twice_is_found_wherever_it_stands() {
    for length in [2, FEW - 1, FEW, FEW + 1, 3 * FEW] {
        let names: Vec<String> = (0..length).map(|number| format!("{number}")).collect();
        let mut names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        assert_eq!(twin(names.iter().copied()), None, "{length}");
        for (one, other) in [(0, 1), (0, length - 1), (length - 2, length - 1)] {
            let was = names[other];
            names[other] = names[one];
            assert_eq!(twin(names.iter().copied()), Some(names[one]), "{one} and {other} of {length}");
            names[other] = was;
        }
    }
    assert_eq!((twin([].into_iter()), twin([&b"a"[..]].into_iter())), (None, None));
}
