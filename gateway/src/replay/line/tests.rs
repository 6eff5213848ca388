use super::*;

/// What a line tells: microseconds, key and cost.
fn read(line: &str) -> Option<(u64, String, String)> {
    read_with(Fields::default(), line)
}

fn read_with(fields: Fields, line: &str) -> Option<(u64, String, String)> {
    let line = Lines::new(fields).read(line)?;
    Some((line.at.micros(), line.key.into_owned(), line.cost.to_string()))
}

fn told(micros: u64, key: &str, cost: &str) -> (u64, String, String) {
    (micros, key.to_owned(), cost.to_owned())
}

const AT: u64 = 971_211_336_000_000;

#[test]
fn access_logs_tell_the_clients_address_and_the_instant_whatever_the_zone() {
    let request = r#""GET /a b HTTP/1.1" 200 2326"#;
    for (time, client) in [
        ("10/Oct/2000:13:55:36 -0700", "192.0.2.1 - frank"),
        ("10/Oct/2000:20:55:36 +0000", "192.0.2.1 - -"),
        ("11/Oct/2000:02:25:36 +0530", "192.0.2.1 - a user"),
        ("10/Oct/2000:20:55:36 +0000", "shop.example:443 192.0.2.1 - -"),
        ("10/Oct/2000:20:55:36 +0000", "192.0.2.1:5060 - -"),
    ] {
        assert_eq!(read(&format!("{client} [{time}] {request}")), Some(told(AT, "192.0.2.1", "1")), "{time} {client}");
        let combined = format!(r#"{client} [{time}] {request} "http://referer" "Agent [x] 1""#);
        assert_eq!(read(&combined), Some(told(AT, "192.0.2.1", "1")));
    }
    assert_eq!(
        read(&format!("2001:db8::1 - - [10/Oct/2000:20:55:36 +0000] {request}")),
        Some(told(AT, "2001:db8::1", "1"))
    );
    assert_eq!(
        read(&format!("a.host.example - - [10/Oct/2000:20:55:36 +0000] {request}")),
        Some(told(AT, "a.host.example", "1"))
    );
}

#[test]
fn words_tell_a_time_a_key_and_a_cost() {
    for time in [
        "971211336",
        "971211336.0",
        "971211336000",
        "971211336000000",
        "971211336000000000",
        "2000-10-10T20:55:36Z",
        "2000-10-10T13:55:36-07:00",
        "2000-10-10T20:55:36",
    ] {
        assert_eq!(read(&format!("{time} user:7")), Some(told(AT, "user:7", "1")), "{time}");
        assert_eq!(read(&format!(" {time}\tuser:7  2.5\r\n")), Some(told(AT, "user:7", "2.5")), "{time}");
    }
    assert_eq!(read("971211336.123456789 k"), Some(told(AT + 123_456, "k", "1")));
    assert_eq!(read("971211336.05 k"), Some(told(AT + 50_000, "k", "1")));
    assert_eq!(read("971211336123.5 k"), Some(told(AT + 123_500, "k", "1")));
    assert_eq!(read("2000-10-10T20:55:36.000007Z k"), Some(told(AT + 7, "k", "1")));
    assert_eq!(read("971211336 k 0"), Some(told(AT, "k", "0")));
    // Against the caller, as a command does.
    assert_eq!(read("971211336 k 0.0000001"), Some(told(AT, "k", "0.000001")));
}

#[test]
fn json_lines_tell_by_the_usual_names() {
    for line in [
        r#"{"time":"2000-10-10T20:55:36Z","key":"192.0.2.1","cost":3}"#,
        r#"{"ts":971211336.0,"request":{"remote_ip":"192.0.2.1","uri":"/"},"cost":"3"}"#,
        r#"{"StartUTC":"2000-10-10T20:55:36.000000000Z","ClientHost":"192.0.2.1","cost":3.0}"#,
        r#"{"start_time":"2000-10-10T20:55:36.000Z","downstream_remote_address":"192.0.2.1:4711","cost":3}"#,
        r#"{"time_local":"10/Oct/2000:13:55:36 -0700","remote_addr":"192.0.2.1","cost":3}"#,
        r#"{"@timestamp":"2000-10-10T20:55:36Z","client.ip":"192.0.2.1","cost":3}"#,
        r#"{"msec":"971211336.000","remote_addr":"192.0.2.1","cost":3}"#,
    ] {
        assert_eq!(read(line), Some(told(AT, "192.0.2.1", "3")), "{line}");
    }
    assert_eq!(read(r#"{"ts":971211336,"user":42}"#), Some(told(AT, "42", "1")));
    let fields = Fields { time: Some("a.when".into()), key: Some("who".into()), cost: Some("tokens".into()) };
    let line = r#"{"a":{"when":971211336},"who":"u","tokens":7,"time":1,"key":"other","cost":9}"#;
    assert_eq!(read_with(fields, line), Some(told(AT, "u", "7")));
}

#[test]
fn what_is_not_all_there_is_no_line() {
    for line in [
        "",
        "rubbish",
        "971211336",
        "971211336 k x",
        "971211336 k -1",
        "971211336 k 1 more",
        "971211336 k 1e13",
        "yesterday k",
        "-1 k",
        "99999999999999999999 k",
        "1.2.3 k",
        r#"192.0.2.1 - - [] "GET /""#,
        "192.0.2.1 - - [10/Oct/2000:20:55:36 +0000",
        r#"192.0.2.1 - - [40/Oct/2000:20:55:36 +0000] "GET /""#,
        r#"192.0.2.1 - - [10/Oct/1960:20:55:36 +0000] "GET /""#,
        "{",
        "{}",
        r#"{"time":1}"#,
        r#"{"key":"k"}"#,
        r#"{"time":1,"key":""}"#,
        r#"{"time":1,"key":["k"]}"#,
        r#"{"time":1,"key":"k","cost":"much"}"#,
        r#"{"time":1,"key":"k","cost":-1}"#,
    ] {
        assert_eq!(read(line), None, "{line}");
    }
}
