use super::*;
use serde_json::{Value, json};

fn replayed(limit: &str, goal: &str, log: &str) -> Value {
    let goal = Goal::read(goal).unwrap();
    let words = Replay { limit: limit.into(), goal, top: 3, max_keys: 1000, ..of_the_command_line() };
    words.over(log.as_bytes()).unwrap().json()
}

/// How many calls each key makes, each second.
fn steady(seconds: u64, keys: &[(&str, u64)]) -> String {
    let second = |second: u64| {
        keys.iter()
            .flat_map(move |(key, calls)| (0..*calls).map(move |_| format!("{} {key}\n", 1_700_000_000 + second)))
    };
    (0..seconds).flat_map(second).collect()
}

#[test]
fn a_report_tells_what_became_of_each_key_and_the_smallest_limit_of_the_kind() {
    let log = steady(10, &[("a", 1), ("b", 3), ("c", 7)]) + "rubbish\n1 late\n";
    let report = replayed("FIXED 2 1s", "10%", &log);
    let mut expected = json!({
        "calls": 110, "admitted": 50, "denied": 60, "keys": 3, "keys_denied": 2, "denied_keys": [["c", 50], ["b", 10]],
        "skipped": 2, "limit": "FIXED 2 1s", "goal": "10%", "first": "2023-11-14T22:13:20Z", "last": "2023-11-14T22:13:29Z",
        "skipped_why": {"not_understood": 1, "out_of_order": 1, "beyond_keys": 0, "overfull": 0},
        "first_not_understood": [111, "rubbish"],
        // 6 a second would deny one of c each second: 10 of 110.
        "smallest": "FIXED 6 1s", "smallest_denied": 10,
    });
    assert_eq!(report, expected);
    expected = replayed("FIXED 2 1s", "0%", &log);
    assert_eq!((&expected["smallest"], &expected["smallest_denied"]), (&json!("FIXED 7 1s"), &json!(0)));
}

#[test]
fn the_smallest_limit_is_smaller_than_the_one_that_was_asked_for_if_that_denies_little() {
    let log = steady(10, &[("a", 1), ("b", 3)]);
    assert_eq!(replayed("SLIDINGLOG 1000000 1s", "0%", &log)["smallest"], "SLIDINGLOG 3 1s");
    assert_eq!(replayed("TOKENBUCKET 600 200 1s", "0%", &log)["smallest"], "TOKENBUCKET 8 2.666667 1s");
    assert_eq!(replayed("FIXED 0 1s", "1%", &log)["smallest"], Value::Null);
    // A limit of nothing denies all, however many times nothing it is.
    assert_eq!(replayed("FIXED 0 1s FIXED 10 1h", "1%", &log)["smallest"], Value::Null);
}

#[test]
fn each_of_several_limits_is_lowered_by_itself_and_one_in_the_shadow_stays() {
    // Three calls a second, ten seconds: 30 an hour.
    let log = steady(10, &[("a", 1), ("b", 3)]);
    let smallest = |limit: &str, goal: &str| replayed(limit, goal, &log)["smallest"].clone();
    assert_eq!(smallest("FIXED 20 1s FIXED 1000 1h", "0%"), "FIXED 3 1s FIXED 30 1h");
    assert_eq!(smallest("FIXED 1 1s FIXED 1000 1h", "0%"), "FIXED 3 1s FIXED 30 1h");
    assert_eq!(smallest("FIXED 20 1s SHADOW FIXED 1000 1h", "0%"), "FIXED 20 1s SHADOW FIXED 30 1h");
    assert_eq!(smallest("FIXED 20 1s FIXED 1000 1h SHADOW", "0%"), "FIXED 3 1s FIXED 1000 1h SHADOW");
    assert_eq!(smallest("FIXED 1 1s SHADOW", "0%"), "FIXED 1 1s SHADOW");
    // With what it may deny spent by the first, the others deny no more.
    let report = replayed("TOKENBUCKET 20 20 1s FIXED 1000 1h", "25%", &log);
    assert!(report["smallest_denied"].as_u64().unwrap() <= 10);
}

#[test]
fn a_log_that_gzip_has_made_is_read_also_in_parts() {
    use std::io::Write as _;
    let log = steady(10, &[("a", 1), ("b", 3)]);
    let (first, second) = log.split_at(100);
    let mut zipped = vec![];
    for part in [first, second] {
        let mut writer = flate2::write::GzEncoder::new(&mut zipped, flate2::Compression::fast());
        writer.write_all(part.as_bytes()).unwrap();
        writer.finish().unwrap();
    }
    let asked = |longest| Replay { limit: "FIXED 2 1s".into(), longest, ..of_the_command_line() };
    assert_eq!(
        asked(u64::MAX).over(zipped.as_slice()).unwrap().json(),
        asked(u64::MAX).over(log.as_bytes()).unwrap().json()
    );
    let told = asked(100).over(zipped.as_slice()).unwrap_err();
    assert!(told.ends_with("the log is longer than 0 MB"), "{told}");
    zipped.truncate(zipped.len() - 9);
    assert!(asked(u64::MAX).over(zipped.as_slice()).is_err());
}

#[test]
fn no_limit_that_is_smaller_by_a_step_keeps_to_the_goal() {
    let log = (0..2000_u64).map(|call| format!("{} k{} {}", 1000 + call / 7, call % 5, 1 + call % 3));
    let log = log.collect::<Vec<_>>().join("\n");
    for limit in
        ["FIXED 10 20s", "SLIDING 10 20s", "SLIDING 10 20s STRICT", "SLIDINGLOG 10 20s", "LEAKYBUCKET 10 5 20s"]
    {
        let report = replayed(limit, "5%", &log);
        let smallest = report["smallest"].as_str().unwrap();
        let again = replayed(smallest, "5%", &log);
        assert_eq!(again["denied"], report["smallest_denied"], "{limit}");
        assert!(again["denied"].as_u64().unwrap() <= 100, "{limit}");
        let words: Vec<&str> = smallest.split(' ').collect();
        let less = limit.replacen(" 10 ", &format!(" {} ", words[1].parse::<u64>().unwrap() - 1), 1);
        let less = less.replacen(" 5 ", &format!(" {} ", (words[1].parse::<f64>().unwrap() - 1.0) / 2.0), 1);
        assert!(replayed(&less, "5%", &log)["denied"].as_u64().unwrap() > 100, "{less} is smaller than {smallest}");
    }
}

#[test]
fn several_limits_and_a_ban_decide_as_one() {
    let log = steady(4, &[("a", 3)]);
    assert_eq!(replayed("FIXED 2 1s FIXED 5 1h", "0%", &log)["admitted"], 5);
    assert_eq!(replayed("FIXED 2 1s BAN 2 1m 1h", "0%", &log)["admitted"], 4);
    assert_eq!(replayed("FIXED 2 1s SHADOW FIXED 100 1h", "0%", &log)["admitted"], 12);
    assert_eq!(replayed("FIXED 2 1s COST 2 FIXED 100 1h", "0%", &log)["admitted"], 4);
}

#[test]
fn a_cost_of_its_own_is_back_after_a_call_that_costs_nothing() {
    let log = "1 a 0\n1 a\n1 a 0\n1 a\n1 a\n";
    let report = replayed("FIXED 4 1s COST 2 FIXED 100 1h", "100%", log);
    assert_eq!((&report["admitted"], &report["denied"]), (&json!(4), &json!(1)));
}

#[test]
fn a_goal_is_a_share() {
    assert_eq!(Goal::read("1%").unwrap().of(1000), 10);
    assert_eq!(Goal::read("0.05%").unwrap().of(10_000), 5);
    assert_eq!(Goal::read("100%").unwrap().of(u64::MAX), u64::MAX);
    assert_eq!(Goal::read("0.5%").unwrap().to_string(), "0.5%");
    for wrong in ["1", "101%", "-1%", "%", "one%"] {
        assert!(Goal::read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_text_of_a_report_says_the_same() {
    let words = |log: &str| {
        let asked = Replay { limit: "FIXED 2 1s".into(), top: 1, ..of_the_command_line() };
        asked.over(log.as_bytes()).unwrap().to_string()
    };
    let text = words(&(steady(600, &[("a", 1), ("b\u{1b}[31m", 3), ("c", 7)]) + "rubbish\n1 late\n"));
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

fn of_the_command_line() -> Replay {
    use clap::Parser;
    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        replay: Replay,
    }
    Words::parse_from(["replay", "the log", "--limit", "FIXED 1 1s"]).replay
}
