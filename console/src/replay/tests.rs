use super::*;
use serde_json::{Value, json};

fn report_json(limit: &str, goal: &str, log: &str) -> Value {
    let goal = Goal::parse(goal).unwrap();
    let replay = Replay { limit: limit.into(), goal, top: 3, max_keys: 1000, ..default_options() };
    replay.replay(log.as_bytes()).unwrap().json()
}

/// Returns a log in which each key makes a number of calls each second.
fn steady_log(seconds: u64, keys: &[(&str, u64)]) -> String {
    let second = |second: u64| {
        keys.iter()
            .flat_map(move |(key, calls)| (0..*calls).map(move |_| format!("{} {key}\n", 1_700_000_000 + second)))
    };
    (0..seconds).flat_map(second).collect()
}

#[test]
fn report_has_the_denials_of_each_key_and_the_smallest_limit() {
    let log = steady_log(10, &[("a", 1), ("b", 3), ("c", 7)]) + "rubbish\n1 late\n";
    let report = report_json("FIXED 2 1s", "10%", &log);
    let mut expected = json!({
        "calls": 110, "admitted": 50, "denied": 60, "keys": 3, "keys_denied": 2, "denied_keys": [["c", 50], ["b", 10]],
        "skipped": 2, "limit": "FIXED 2 1s", "goal": "10%", "first": "2023-11-14T22:13:20Z", "last": "2023-11-14T22:13:29Z",
        "skipped_why": {"not_understood": 1, "out_of_order": 1, "beyond_keys": 0, "overfull": 0},
        "first_not_understood": [111, "rubbish"],
        // 6 a second deny one call of c each second: 10 of 110.
        "smallest": "FIXED 6 1s", "smallest_denied": 10,
    });
    assert_eq!(report, expected);
    expected = report_json("FIXED 2 1s", "0%", &log);
    assert_eq!((&expected["smallest"], &expected["smallest_denied"]), (&json!("FIXED 7 1s"), &json!(0)));
}

#[test]
fn smallest_limit_may_be_smaller_than_the_given_one() {
    let log = steady_log(10, &[("a", 1), ("b", 3)]);
    assert_eq!(report_json("SLIDINGLOG 1000000 1s", "0%", &log)["smallest"], "SLIDINGLOG 3 1s");
    assert_eq!(report_json("TOKENBUCKET 600 200 1s", "0%", &log)["smallest"], "TOKENBUCKET 8 2.666667 1s");
    assert_eq!(report_json("FIXED 0 1s", "1%", &log)["smallest"], Value::Null);
    // A limit of 0 cannot be scaled.
    assert_eq!(report_json("FIXED 0 1s FIXED 10 1h", "1%", &log)["smallest"], Value::Null);
}

#[test]
fn each_of_several_limits_is_lowered_alone_except_in_shadow_mode() {
    // Three calls a second for ten seconds are 30 an hour.
    let log = steady_log(10, &[("a", 1), ("b", 3)]);
    let smallest = |limit: &str, goal: &str| report_json(limit, goal, &log)["smallest"].clone();
    assert_eq!(smallest("FIXED 20 1s FIXED 1000 1h", "0%"), "FIXED 3 1s FIXED 30 1h");
    assert_eq!(smallest("FIXED 1 1s FIXED 1000 1h", "0%"), "FIXED 3 1s FIXED 30 1h");
    assert_eq!(smallest("FIXED 20 1s SHADOW FIXED 1000 1h", "0%"), "FIXED 20 1s SHADOW FIXED 30 1h");
    assert_eq!(smallest("FIXED 20 1s FIXED 1000 1h SHADOW", "0%"), "FIXED 3 1s FIXED 1000 1h SHADOW");
    assert_eq!(smallest("FIXED 1 1s SHADOW", "0%"), "FIXED 1 1s SHADOW");
    // All limits together deny at most the goal.
    let report = report_json("TOKENBUCKET 20 20 1s FIXED 1000 1h", "25%", &log);
    assert!(report["smallest_denied"].as_u64().unwrap() <= 10);
}

#[test]
fn log_of_several_gzip_members_is_read() {
    use std::io::Write as _;
    let log = steady_log(10, &[("a", 1), ("b", 3)]);
    let (first, second) = log.split_at(100);
    let mut zipped = vec![];
    for part in [first, second] {
        let mut writer = flate2::write::GzEncoder::new(&mut zipped, flate2::Compression::fast());
        writer.write_all(part.as_bytes()).unwrap();
        writer.finish().unwrap();
    }
    let replay = |max_bytes| Replay { limit: "FIXED 2 1s".into(), max_bytes, ..default_options() };
    assert_eq!(
        replay(u64::MAX).replay(zipped.as_slice()).unwrap().json(),
        replay(u64::MAX).replay(log.as_bytes()).unwrap().json()
    );
    let error = replay(100).replay(zipped.as_slice()).unwrap_err();
    assert!(error.ends_with("the log is longer than 0 MB"), "{error}");
    zipped.truncate(zipped.len() - 9);
    assert!(replay(u64::MAX).replay(zipped.as_slice()).is_err());
}

#[test]
fn smallest_limit_minus_a_step_exceeds_the_goal() {
    let log = (0..2000_u64).map(|call| format!("{} k{} {}", 1000 + call / 7, call % 5, 1 + call % 3));
    let log = log.collect::<Vec<_>>().join("\n");
    for limit in
        ["FIXED 10 20s", "SLIDING 10 20s", "SLIDING 10 20s STRICT", "SLIDINGLOG 10 20s", "LEAKYBUCKET 10 5 20s"]
    {
        let report = report_json(limit, "5%", &log);
        let smallest = report["smallest"].as_str().unwrap();
        let again = report_json(smallest, "5%", &log);
        assert_eq!(again["denied"], report["smallest_denied"], "{limit}");
        assert!(again["denied"].as_u64().unwrap() <= 100, "{limit}");
        let words: Vec<&str> = smallest.split(' ').collect();
        let less = limit.replacen(" 10 ", &format!(" {} ", words[1].parse::<u64>().unwrap() - 1), 1);
        let less = less.replacen(" 5 ", &format!(" {} ", (words[1].parse::<f64>().unwrap() - 1.0) / 2.0), 1);
        assert!(report_json(&less, "5%", &log)["denied"].as_u64().unwrap() > 100, "{less} is smaller than {smallest}");
    }
}

#[test]
fn several_limits_and_a_ban_decide_together() {
    let log = steady_log(4, &[("a", 3)]);
    assert_eq!(report_json("FIXED 2 1s FIXED 5 1h", "0%", &log)["admitted"], 5);
    assert_eq!(report_json("FIXED 2 1s BAN 2 1m 1h", "0%", &log)["admitted"], 4);
    assert_eq!(report_json("FIXED 2 1s SHADOW FIXED 100 1h", "0%", &log)["admitted"], 12);
    assert_eq!(report_json("FIXED 2 1s COST 2 FIXED 100 1h", "0%", &log)["admitted"], 4);
}

#[test]
fn own_cost_of_a_limit_applies_after_a_call_without_a_cost() {
    let log = "1 a 0\n1 a\n1 a 0\n1 a\n1 a\n";
    let report = report_json("FIXED 4 1s COST 2 FIXED 100 1h", "100%", log);
    assert_eq!((&report["admitted"], &report["denied"]), (&json!(4), &json!(1)));
}

#[test]
fn goal_is_a_share_of_the_calls() {
    assert_eq!(Goal::parse("1%").unwrap().max_denied(1000), 10);
    assert_eq!(Goal::parse("0.05%").unwrap().max_denied(10_000), 5);
    assert_eq!(Goal::parse("100%").unwrap().max_denied(u64::MAX), u64::MAX);
    assert_eq!(Goal::parse("0.5%").unwrap().to_string(), "0.5%");
    for wrong in ["1", "101%", "-1%", "%", "one%"] {
        assert!(Goal::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn report_as_text_has_the_same_numbers() {
    let report_text = |log: &str| {
        let replay = Replay { limit: "FIXED 2 1s".into(), top: 1, ..default_options() };
        replay.replay(log.as_bytes()).unwrap().to_string()
    };
    let text = report_text(&(steady_log(600, &[("a", 1), ("b\u{1b}[31m", 3), ("c", 7)]) + "rubbish\n1 late\n"));
    assert_eq!(
        text,
        "6,600 calls of 3 keys, 2023-11-14T22:13:20Z to 2023-11-14T22:23:19Z (599s)\n\
         FIXED 2 1s: 3,000 admitted, 3,600 denied (54.54 %), of 2 keys\n\
         2 lines skipped:\n           \
         1  not understood, the first is line 6,601: rubbish\n           \
         1  behind a later line; --late 10s puts lines in order that are up to 10 seconds late\n\n      \
         denied  key\n       \
         3,000  c\n              \
         and 1 more\n\n\
         The smallest limit that denies at most 1%: FIXED 7 1s (0 denied, 0.00 %)\n"
    );
}

/// Returns the options of a command line with only the required ones.
fn default_options() -> Replay {
    use clap::Parser;
    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        replay: Replay,
    }
    CommandLine::parse_from(["replay", "the log", "--limit", "FIXED 1 1s"]).replay
}
