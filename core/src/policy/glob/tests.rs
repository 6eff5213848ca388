use super::*;
use proptest::prelude::*;

fn matches(pattern: &[u8], text: &[u8]) -> bool {
    Pattern::compile(pattern).unwrap().matches(text)
}

#[test]
fn pattern_matches_like_keys() {
    for (pattern, matching, different) in [
        ("", &[""][..], &["a"][..]),
        ("gold", &["gold"], &["Gold", "gol", "golden", ""]),
        ("*", &["", "a", "plan:pro"], &[]),
        ("**", &["", "a"], &[]),
        ("plan:*", &["plan:", "plan:pro", "plan:*"], &["plan", "aplan:pro"]),
        ("*:pro", &["plan:pro", ":pro", ":pro:pro"], &["plan:pro:", "pro"]),
        ("*a*b*", &["ab", "xaxbx", "aab"], &["ba", "a", ""]),
        ("a*b", &["ab", "a*b", "abb", "acb"], &["abc", "a"]),
        ("?", &["a", "?"], &["", "ab"]),
        ("a?c", &["abc", "a?c"], &["ac", "abbc"]),
        ("h[ae]llo", &["hallo", "hello"], &["hillo", "hllo", "haello"]),
        ("h[^e]llo", &["hallo", "h^llo"], &["hello", "hllo"]),
        ("h[a-b]llo", &["hallo", "hbllo"], &["hcllo", "h-llo"]),
        ("[b-a]", &["a", "b"], &["c", "-"]),
        ("[^a-c]", &["d", "^"], &["a", "b", "c"]),
        ("[a-]", &["a", "]", "^"], &["-", "b]"]),
        ("[-a]", &["-", "a"], &["b"]),
        ("[a", &["a"], &["b", "[a", ""]),
        ("[^a", &["b"], &["a"]),
        ("[", &[], &["[", "a", ""]),
        ("[^", &["a", "["], &[""]),
        ("[]", &[], &["a", "]", "[]"]),
        ("[^]", &["a", "]"], &[""]),
        (r"[\]]", &["]"], &[r"\", "a"]),
        (r"[\^a]", &["^", "a"], &["b", r"\"]),
        (r"[a\-c]", &["a", "-", "c"], &["b", r"\"]),
        (r"[\", &[r"\"], &["a", "["]),
        (r"\*", &["*"], &["a", r"\*", ""]),
        (r"\?\[", &["?["], &["a["]),
        (r"\a", &["a"], &[r"\a"]),
        (r"a\", &[r"a\"], &["a", "a\\\\"]),
        (r"\\", &[r"\"], &[r"\\", ""]),
        ("a*[bc]", &["ab", "axxc"], &["a", "abd"]),
        ("*[", &[], &["[", ""]),
    ] {
        for text in matching {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern:?} must match {text:?}");
        }
        for text in different {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern:?} must not match {text:?}");
        }
    }
    assert!(matches(b"[\x80-\xff]*\0", b"\xc3\xa4\n\0"));
}

#[test]
fn many_stars_do_not_backtrack() {
    // Backtracking over all stars would take longer than the age of the universe.
    assert!(!matches(&b"*a".repeat(100), &b"a".repeat(99)));
    assert!(matches(&b"*a".repeat(100), &b"a".repeat(1000)));
    assert!(!matches(&[&b"a*".repeat(64)[..], b"b"].concat(), &b"a".repeat(256)));
}

#[test]
fn pattern_longer_than_1024_bytes_is_rejected() {
    let name = b"x".repeat(MAX_NAME);
    for pattern in
        [&b"?".repeat(256)[..], &b"\\x".repeat(256), &b"*x".repeat(256), &b"[x]".repeat(256), &b"*".repeat(1024)]
    {
        assert!(matches(pattern, &name), "{pattern:?}");
    }
    for pattern in
        [&b"?".repeat(257)[..], &b"x".repeat(1024), &b"?".repeat(255), &[b"*", &b"x".repeat(257)[..]].concat()]
    {
        assert!(!matches(pattern, &name), "{pattern:?}");
    }
    let refused = Pattern::compile(&b"*".repeat(1025)).err().unwrap();
    let expected =
        format!("ERR pattern must be a pattern of at most 1024 bytes, such as plan:*, not '{}...'", "*".repeat(32));
    assert_eq!(refused.to_string(), expected);
}

/// Matches by trying all lengths of each star.
fn matches_by_backtracking(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], _) => text.is_empty(),
        ([b'*', after @ ..], _) => (0..=text.len()).any(|taken| matches_by_backtracking(after, &text[taken..])),
        (_, []) => false,
        ([b'?', after @ ..], [_, rest @ ..]) => matches_by_backtracking(after, rest),
        ([b'[', set @ ..], [byte, rest @ ..]) => {
            let (is_negated, set) = set.strip_prefix(b"^").map_or((false, set), |set| (true, set));
            let (mut members, mut index) = (Vec::new(), 0);
            while index < set.len() && set[index] != b']' {
                if set[index] == b'\\' && index + 1 < set.len() {
                    members.push(set[index + 1]);
                    index += 2;
                } else if index + 2 < set.len() && set[index + 1] == b'-' {
                    members.extend(set[index].min(set[index + 2])..=set[index].max(set[index + 2]));
                    index += 3;
                } else {
                    members.push(set[index]);
                    index += 1;
                }
            }
            members.contains(byte) != is_negated
                && matches_by_backtracking(set.get(index + 1..).unwrap_or_default(), rest)
        }
        ([b'\\', literal, after @ ..] | [literal, after @ ..], [byte, rest @ ..]) => {
            literal == byte && matches_by_backtracking(after, rest)
        }
    }
}

proptest! {
    #[test]
    fn match_equals_that_by_backtracking(pattern in r"[*?\[\]^\\abc-]{0,10}", text in r"[abc*\[\]^-]{0,8}") {
        let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
        prop_assert_eq!(matches(pattern, text), matches_by_backtracking(pattern, text));
    }
}

#[test]
fn star_applies_across_words_of_the_bit_set() {
    let pattern = format!("*{}*", "a".repeat(64));
    for (length, is_matched) in [(63, false), (64, true), (65, true), (100, true)] {
        assert_eq!(matches(pattern.as_bytes(), "a".repeat(length).as_bytes()), is_matched, "{length}");
    }
}
