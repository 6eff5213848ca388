use super::{Window, checked, windows};

fn told(words: &str) -> Vec<(String, u64, bool)> {
    windows(words).into_iter().map(|Window { label, seconds, whole, .. }| (label, seconds, whole)).collect()
}

#[test]
fn each_limit_of_a_policy_has_its_window() {
    let text = "TOKENBUCKET 20 10 1s SLIDING 5 1.5m STRICT AS five FIXED 9 1mo ALIGNED OFFSET +01:00 BAN 3 1h 1d";
    let expected = [("tokenbucket-20-10", 2, false), ("five", 90, true), ("fixed-9-1mo", 30 * 86_400, true)];
    assert_eq!(told(text), expected.map(|(label, seconds, whole)| (label.to_owned(), seconds, whole)));
    assert_eq!(told("tokenbucket 3 3 1m"), [("tokenbucket-3-3".to_owned(), 60, true)]);
    assert!(windows("CONCURRENCY 2 1m")[0].held && windows("FIXED 1 1s SHADOW")[0].shadow);
}

#[test]
fn hostile_words_are_passed_over() {
    for text in ["", "FIXED", "FIXED 1", "TOKENBUCKET 1 0 1s", "COST", "AS", "FIXED x y COST z", "BAN", "SHADOW COST 1"]
    {
        let _ = windows(text);
    }
}

#[test]
fn wrong_words_are_refused_as_the_server_would() {
    assert_eq!(checked("FIXED 5 1m ALIGNED TOKENBUCKET 1 1 1s AS b"), Ok(()));
    assert!(checked("FIXED 5 1min").is_err_and(|told| told.contains("duration")));
    assert!(checked("").is_err());
}
