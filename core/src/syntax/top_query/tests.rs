use super::*;

/// Parses the arguments of RL.TOP, and returns the count, the minutes of SINCE, and `true` for RESET.
fn parse(words: &[&str]) -> Result<(usize, Option<u64>, bool), String> {
    let words: Vec<&[u8]> = ["RL.TOP"].iter().chain(words).map(|word| word.as_bytes()).collect();
    let query = Query::parse(&mut Args::new(&words)).map_err(|error| error.to_string())?;
    Ok((query.count, query.minutes, query.reset))
}

#[test]
fn count_since_and_reset_are_parsed() {
    for (words, expected) in [
        (&[][..], (10, None, false)),
        (&["reset"], (10, None, true)),
        (&["COUNT", "1"], (1, None, false)),
        (&["COUNT", "65536", "RESET"], (65_536, None, true)),
        (&["Reset", "count", "7"], (7, None, true)),
        (&["SINCE", "1m"], (10, Some(1), false)),
        (&["since", "60"], (10, Some(1), false)),
        // Rounded down to whole minutes.
        (&["SINCE", "119.9s"], (10, Some(1), false)),
        (&["SINCE", "59m", "COUNT", "3"], (3, Some(59), false)),
        (&["RESET", "SINCE", "1h"], (10, Some(60), true)),
    ] {
        assert_eq!(parse(words), Ok(expected), "{words:?}");
    }
}

#[test]
fn invalid_arguments_of_top_are_rejected() {
    let count = "ERR count must be a whole number";
    for (words, message) in [
        ("COUNT 0", " from 1 to 65536, such as 10, not '0'"),
        ("COUNT 65537", " from 1 to 65536, such as 10, not '65537'"),
        ("COUNT -1", " from 1 to 65536, such as 10, not '-1'"),
        ("COUNT 1.5", " from 1 to 65536, such as 10, not '1.5'"),
        ("COUNT x", " such as 10, not 'x'"),
        ("RESET COUNT RESET", " such as 10, not 'RESET'"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        assert_eq!(parse(&words), Err(format!("{count}{message}")), "{words:?}");
    }
    for (since, message) in [
        ("59s", "since must be a duration from 1m to 1h, such as 5m, not '59s'"),
        ("1", "since must be a duration from 1m to 1h, such as 5m, not '1'"),
        ("61m", "since must be a duration from 1m to 1h, such as 5m, not '61m'"),
        ("3600001ms", "since must be a duration from 1m to 1h, such as 5m, not '3600001ms'"),
        ("4000d", "since must be a duration from 1m to 1h, such as 5m, not '4000d'"),
        ("5min", "since must be a duration such as 5m, not '5min' (units: us ms s m h d)"),
    ] {
        assert_eq!(parse(&["SINCE", since]), Err(format!("ERR {message}")));
    }
    assert_eq!(parse(&["SINCE"]), Err("ERR since is missing: SINCE duration".to_owned()));
    assert_eq!(parse(&["COUNT"]), Err("ERR count is missing: COUNT count".to_owned()));
    for (words, message) in [
        (&["x"][..], "'x', where COUNT, SINCE or RESET is needed"),
        (&["RESET", "RESET"], "'RESET', which is given twice"),
        (&["COUNT", "1", "COUNT", "1"], "'COUNT', which is given twice"),
        (&["COUNT", "1", "RESET", "10"], "'10', where COUNT, SINCE or RESET is needed"),
        (&["RESTE"], "'RESTE', where COUNT, SINCE or RESET is needed; did you mean RESET?"),
    ] {
        assert_eq!(parse(words), Err(format!("ERR syntax error, unexpected {message}")), "{words:?}");
    }
}
