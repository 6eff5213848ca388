use super::{Limit, check_limits, parse_limits};

/// Returns the name, `recovery_seconds` and `is_window` of each limit.
fn descriptions(words: &str) -> Vec<(String, u64, bool)> {
    let description = |limit: Limit| (limit.name, limit.recovery_seconds, limit.is_window);
    parse_limits(words).into_iter().map(description).collect()
}

#[test]
fn each_limit_of_a_policy_is_described() {
    let text = "TOKENBUCKET 20 10 1s SLIDING 5 1.5m STRICT AS five FIXED 9 1mo ALIGNED OFFSET +01:00 BAN 3 1h 1d";
    let expected = [("tokenbucket-20-10", 2, false), ("five", 90, true), ("fixed-9-1mo", 30 * 86_400, true)];
    assert_eq!(descriptions(text), expected.map(|(name, seconds, is_window)| (name.to_owned(), seconds, is_window)));
    assert_eq!(descriptions("tokenbucket 3 3 1m"), [("tokenbucket-3-3".to_owned(), 60, true)]);
    assert!(parse_limits("CONCURRENCY 2 1m")[0].is_concurrency && parse_limits("FIXED 1 1s SHADOW")[0].shadow);
}

#[test]
fn malformed_limits_cause_no_panic() {
    for text in ["", "FIXED", "FIXED 1", "TOKENBUCKET 1 0 1s", "COST", "AS", "FIXED x y COST z", "BAN", "SHADOW COST 1"]
    {
        let _ = parse_limits(text);
    }
}

#[test]
fn check_rejects_limits_that_the_server_rejects() {
    assert_eq!(check_limits("FIXED 5 1m ALIGNED TOKENBUCKET 1 1 1s AS b"), Ok(()));
    assert!(check_limits("FIXED 5 1min").is_err_and(|error| error.contains("duration")));
    assert!(check_limits("").is_err());
}
