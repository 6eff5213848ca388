use crate::syntax::{KeyRequest, Spec};
use crate::wire::args::Args;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

/// Parses a call on a plain key, and returns its limit as text.
fn parse_limit(text: &str) -> Result<String, String> {
    let words: Vec<&[u8]> = std::iter::once("RL.TAKE").chain(text.split(' ')).map(str::as_bytes).collect();
    match KeyRequest::take(&mut Args::new(&words), None) {
        Ok(KeyRequest::One(Spec { limit, .. })) => Ok(limit.to_string()),
        Ok(other) => unreachable!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn alignment_of_a_window_is_parsed() {
    for (text, words) in [
        ("fixed 10 1d aligned offset +09:00", "FIXED 10 1d ALIGNED OFFSET +09:00"),
        ("FIXED 10 1d OFFSET -00:30 ALIGNED", "FIXED 10 1d ALIGNED OFFSET -00:30"),
        ("FIXED 10 1d ALIGNED OFFSET -00:00", "FIXED 10 1d ALIGNED"),
        ("FIXED 10 1w ALIGNED", "FIXED 10 1w ALIGNED"),
        ("FIXED 10 1mo ALIGNED", "FIXED 10 1mo ALIGNED"),
        ("FIXED 10 3mo ALIGNED COST 3", "FIXED 10 3mo ALIGNED"),
        ("FIXED 10 1y ALIGNED OFFSET +14:00", "FIXED 10 1y ALIGNED OFFSET +14:00"),
        ("FIXED 1000 1mo ANCHOR 31 COST 2 OFFSET +09:00 ALIGNED", "FIXED 1000 1mo ALIGNED OFFSET +09:00 ANCHOR 31"),
        ("FIXED 10 3mo ALIGNED ANCHOR 01", "FIXED 10 3mo ALIGNED"),
    ] {
        assert_eq!(parse_limit(text).as_deref(), Ok(words), "{text}");
        assert_eq!(parse_limit(words).as_deref(), Ok(words));
    }
}

#[test]
fn invalid_window_is_rejected() {
    const WINDOW: &str =
        "ERR window must be a duration from 1us to 3650d, or with ALIGNED 1w, 1mo, 3mo or 1y, such as 60s, not";
    const OFFSET: &str = "ERR offset must be a distance from UTC from -14:00 to +14:00, such as +09:00, not";
    const ANCHOR: &str = "ERR anchor must be a day of the month from 1 to 31, such as 15, not";
    const OFFSET_ALONE: &str = "ERR syntax error, unexpected 'OFFSET', which needs ALIGNED before it";
    const ANCHOR_ALONE: &str = "ERR syntax error, unexpected 'ANCHOR', which needs ALIGNED before it";
    const NO_DAY: &str =
        "ERR syntax error, unexpected 'ANCHOR', since only windows of 1mo and 3mo begin on a day of the month";
    for (text, error) in [
        ("FIXED 1 1w", format!("{WINDOW} '1w' (ALIGNED is missing)").as_str()),
        ("FIXED 1 1mo COST 2", &format!("{WINDOW} '1mo' (ALIGNED is missing)")),
        ("FIXED 1 2mo ALIGNED", &format!("{WINDOW} '2mo'")),
        ("FIXED 1 2weeks", &format!("{WINDOW} '2weeks'")),
        ("FIXED 1 1mon ALIGNED", &format!("{WINDOW} '1mon'")),
        ("FIXED 1 1MO ALIGNED", &format!("{WINDOW} '1MO'")),
        ("FIXED 1 0 ALIGNED", "ERR window must be a duration from 1us to 3650d, such as 60s, not '0'"),
        ("FIXED 1 week", "ERR window must be a duration such as 60s, not 'week' (units: us ms s m h d)"),
        ("FIXED 1 60x", "ERR window must be a duration such as 60s, not '60x' (units: us ms s m h d)"),
        ("FIXED 1 ALIGNED", "ERR window must be a duration such as 60s, not 'ALIGNED' (the order is limit window)"),
        ("FIXED 1 1d OFFSET +09:00", OFFSET_ALONE),
        ("FIXED 1 1mo OFFSET +09:00", OFFSET_ALONE),
        ("FIXED 1 1mo ANCHOR 15", ANCHOR_ALONE),
        ("FIXED 1 1mo ANCHOR 15 OFFSET +09:00", OFFSET_ALONE),
        ("FIXED 1 1d ALIGNED OFFSET 09:00", &format!("{OFFSET} '09:00'")),
        ("FIXED 1 1d ALIGNED OFFSET +14:01", &format!("{OFFSET} '+14:01'")),
        ("FIXED 1 1d ALIGNED OFFSET Asia/Tokyo", &format!("{OFFSET} 'Asia/Tokyo'")),
        ("FIXED 1 1mo ALIGNED ANCHOR 0", &format!("{ANCHOR} '0'")),
        ("FIXED 1 1mo ALIGNED ANCHOR 32", &format!("{ANCHOR} '32'")),
        ("FIXED 1 30d ALIGNED ANCHOR 15", NO_DAY),
        ("FIXED 1 1w ALIGNED ANCHOR 1", NO_DAY),
        ("FIXED 1 1y ALIGNED ANCHOR 15", NO_DAY),
        ("FIXED 1 1d ALIGNED OFFSET", "ERR offset is missing: ALIGNED OFFSET +hh:mm"),
        ("FIXED 1 1mo ALIGNED ANCHOR", "ERR anchor is missing: ALIGNED ANCHOR day"),
        (
            "FIXED 1 1d ALIGNED OFFSET +09:00 OFFSET +09:00",
            "ERR syntax error, unexpected 'OFFSET', which is given twice",
        ),
        ("FIXED 1 1mo ALIGNED ANCHOR 15 anchor 16", "ERR syntax error, unexpected 'anchor', which is given twice"),
        ("SLIDING 1 1mo STRICT", "ERR window must be a duration such as 60s, not '1mo' (units: us ms s m h d)"),
    ] {
        assert_eq!(parse_limit(text).unwrap_err(), error, "{text}");
    }
}

#[test]
fn windows_with_different_alignment_have_different_identities() {
    let parse_several = |text: &str| {
        let words: Vec<&[u8]> = std::iter::once("RL.TAKE").chain(text.split(' ')).map(str::as_bytes).collect();
        KeyRequest::take(&mut Args::new(&words), None).map(|_| ()).map_err(|error| error.to_string())
    };
    for other in ["1d", "1d ALIGNED", "1d ALIGNED OFFSET -09:00", "1mo ALIGNED OFFSET +09:00", "1w ALIGNED"] {
        assert_eq!(parse_several(&format!("FIXED 1 1d ALIGNED OFFSET +09:00 FIXED 1 {other}")), Ok(()), "{other}");
        assert!(
            parse_several(&format!("FIXED 1 {other} FIXED 2 {other}")).unwrap_err().contains("specs of one kind must"),
            "{other}"
        );
    }
}

proptest! {
    #[test]
    fn accepted_window_displays_as_its_spec(
        window in select(vec!["1d", "90m", "1us", "1w", "1mo", "3mo", "1y", "2mo"]),
        words in subsequence(vec!["ALIGNED", "OFFSET +05:45", "ANCHOR 31", "COST 2"], 0..=4).prop_shuffle(),
    ) {
        let text = [vec!["FIXED", "7", window], words.clone()].concat().join(" ");
        let has = |word| words.contains(&word);
        let (is_calendar, has_day_of_month) = (window.ends_with(['w', 'o', 'y']), window.ends_with("mo"));
        let is_valid = window != "2mo"
            && (has("ALIGNED") || !(is_calendar || has("OFFSET +05:45")))
            && (!has("ANCHOR 31") || has("ALIGNED") && has_day_of_month);
        match parse_limit(&text) {
            Ok(shown) => {
                prop_assert!(is_valid, "{text}");
                prop_assert_eq!(parse_limit(&shown), Ok(shown));
            }
            Err(error) => prop_assert!(!is_valid, "{text}: {error}"),
        }
    }
}
