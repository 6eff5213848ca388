use super::*;
use ratelimit_link::client_address::Ipv6Prefix;

/// Returns the time in microseconds, the key and the cost of a line.
fn parse(line: &str) -> Option<(u64, String, String)> {
    parse_with(Fields::default(), line)
}

fn parse_with(fields: Fields, line: &str) -> Option<(u64, String, String)> {
    match LineParser::new(fields, ClientRules::default()).parse(line) {
        ParsedLine::Call(line) => Some((line.at.micros(), line.key.into_owned(), line.cost.to_string())),
        ParsedLine::Directive | ParsedLine::Malformed => None,
    }
}

fn call(micros: u64, key: &str, cost: &str) -> (u64, String, String) {
    (micros, key.to_owned(), cost.to_owned())
}

/// 2000-10-10T20:55:36Z in microseconds since the Unix epoch.
const AT: u64 = 971_211_336_000_000;

#[test]
fn access_log_lines_give_client_and_time_in_any_zone() {
    let request = r#""GET /a b HTTP/1.1" 200 2326"#;
    for (time, client) in [
        ("10/Oct/2000:13:55:36 -0700", "192.0.2.1 - frank"),
        ("10/Oct/2000:20:55:36 +0000", "192.0.2.1 - -"),
        ("11/Oct/2000:02:25:36 +0530", "192.0.2.1 - a user"),
        ("10/Oct/2000:20:55:36 +0000", "shop.example:443 192.0.2.1 - -"),
        ("10/Oct/2000:20:55:36 +0000", "192.0.2.1:5060 - -"),
    ] {
        assert_eq!(parse(&format!("{client} [{time}] {request}")), Some(call(AT, "192.0.2.1", "1")), "{time} {client}");
        let combined = format!(r#"{client} [{time}] {request} "http://referer" "Agent [x] 1""#);
        assert_eq!(parse(&combined), Some(call(AT, "192.0.2.1", "1")));
    }
    assert_eq!(
        parse(&format!("2001:db8::1 - - [10/Oct/2000:20:55:36 +0000] {request}")),
        Some(call(AT, "2001:db8::/64", "1"))
    );
    assert_eq!(
        parse(&format!("a.host.example - - [10/Oct/2000:20:55:36 +0000] {request}")),
        Some(call(AT, "a.host.example", "1"))
    );
}

#[test]
fn plain_lines_give_time_key_and_cost() {
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
        assert_eq!(parse(&format!("{time} user:7")), Some(call(AT, "user:7", "1")), "{time}");
        assert_eq!(parse(&format!(" {time}\tuser:7  2.5\r\n")), Some(call(AT, "user:7", "2.5")), "{time}");
    }
    assert_eq!(parse("971211336.123456789 k"), Some(call(AT + 123_456, "k", "1")));
    assert_eq!(parse("971211336.05 k"), Some(call(AT + 50_000, "k", "1")));
    assert_eq!(parse("971211336123.5 k"), Some(call(AT + 123_500, "k", "1")));
    assert_eq!(parse("2000-10-10T20:55:36.000007Z k"), Some(call(AT + 7, "k", "1")));
    assert_eq!(parse("971211336 k 0"), Some(call(AT, "k", "0")));
    // Rounded up, like the costs of commands.
    assert_eq!(parse("971211336 k 0.0000001"), Some(call(AT, "k", "0.000001")));
}

#[test]
fn json_lines_are_parsed_by_the_usual_names() {
    for line in [
        r#"{"time":"2000-10-10T20:55:36Z","key":"192.0.2.1","cost":3}"#,
        r#"{"ts":971211336.0,"request":{"remote_ip":"192.0.2.1","uri":"/"},"cost":"3"}"#,
        r#"{"StartUTC":"2000-10-10T20:55:36.000000000Z","ClientHost":"192.0.2.1","cost":3.0}"#,
        r#"{"start_time":"2000-10-10T20:55:36.000Z","downstream_remote_address":"192.0.2.1:4711","cost":3}"#,
        r#"{"time_local":"10/Oct/2000:13:55:36 -0700","remote_addr":"192.0.2.1","cost":3}"#,
        r#"{"@timestamp":"2000-10-10T20:55:36Z","client.ip":"192.0.2.1","cost":3}"#,
        r#"{"msec":"971211336.000","remote_addr":"192.0.2.1","cost":3}"#,
    ] {
        assert_eq!(parse(line), Some(call(AT, "192.0.2.1", "3")), "{line}");
    }
    assert_eq!(parse(r#"{"ts":971211336,"user":42}"#), Some(call(AT, "42", "1")));
    let fields = Fields { time: Some("a.when".into()), key: Some("who".into()), cost: Some("tokens".into()) };
    let line = r#"{"a":{"when":971211336},"who":"u","tokens":7,"time":1,"key":"other","cost":9}"#;
    assert_eq!(parse_with(fields, line), Some(call(AT, "u", "7")));
}

#[test]
fn unusable_value_of_a_usual_field_is_skipped() {
    for time in ["null", "{}", r#""""#, r#""yesterday""#] {
        let line = format!(r#"{{"time":{time},"ts":971211336,"key":"k"}}"#);
        assert_eq!(parse(&line), Some(call(AT, "k", "1")), "{line}");
    }
    for key in ["null", "{}", r#""""#] {
        let line = format!(r#"{{"ts":971211336,"key":{key},"client":{key},"user":"u"}}"#);
        assert_eq!(parse(&line), Some(call(AT, "u", "1")), "{line}");
    }
    let fields = Fields { time: Some("time".into()), ..Fields::default() };
    assert_eq!(parse_with(fields, r#"{"time":null,"ts":971211336,"key":"k"}"#), None);
}

#[test]
fn incomplete_lines_are_malformed() {
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
        assert_eq!(parse(line), None, "{line}");
    }
}

const COMBINED: &str =
    r#"192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326 "-" "Mozilla/5.0 (X11; [x])""#;

#[test]
fn prefixes_of_logging_systems_are_skipped() {
    for before in [
        // Files of a Kubernetes node, kubectl logs with --timestamps and --prefix, docker logs --timestamps.
        "2000-10-10T20:55:37.123456789Z stdout F ",
        "2000-10-10T20:55:37.123456789Z stderr F ",
        "2000-10-10T20:55:37.123456789Z ",
        "[pod/web-7d4b9c-xk2/nginx] ",
        "[pod/web-7d4b9c-xk2/nginx] 2000-10-10T20:55:37.123456789Z ",
        // docker compose logs
        "web-1  | ",
        "my_web.1 | 2000-10-10T20:55:37.123456789Z ",
        // syslog: RFC 3164, with a time of RFC 3339, RFC 5424, journalctl
        "Oct 10 13:55:37 10.9.9.9 nginx: ",
        "Oct  1 13:55:37 lb nginx[812]: ",
        "<190>Oct 10 13:55:37 lb.example nginx: ",
        "<190>Oct 10 13:55:37 nginx: ",
        "2000-10-10T20:55:37.123456+02:00 10.9.9.9 nginx[812]: ",
        "<190>2000-10-10T20:55:37Z 10.9.9.9 nginx[812]: ",
        "<165>1 2000-10-10T20:55:37.003Z 10.9.9.9 nginx 812 - - ",
        r#"<165>1 2000-10-10T20:55:37.003Z 10.9.9.9 nginx 812 ID47 [origin ip="10.8.8.8"] "#,
        // Nested prefixes.
        "2000-10-10T20:55:37Z stdout F <190>Oct 10 13:55:37 10.9.9.9 nginx: ",
    ] {
        assert_eq!(parse(&format!("{before}{COMBINED}")), Some(call(AT, "192.0.2.1", "1")), "{before}");
        let json = format!(r#"{before}{{"ts":971211336,"request":{{"client_ip":"192.0.2.1"}}}}"#);
        assert_eq!(parse(&json), Some(call(AT, "192.0.2.1", "1")), "{json}");
    }
    let quoted = serde_json::to_string(&format!("{COMBINED}\n")).unwrap();
    for file in [
        format!(r#"{{"log":{quoted},"stream":"stdout","time":"2000-10-10T20:55:37.1Z"}}"#),
        format!(r#"{{"log":{quoted},"stream":"stderr","attrs":{{"tag":"web"}},"time":"2000-10-10T20:55:37.1Z"}}"#),
    ] {
        assert_eq!(parse(&file), Some(call(AT, "192.0.2.1", "1")), "{file}");
    }
    let fields = || Fields { key: Some("who".into()), ..Fields::default() };
    let inner = r#"{"log":"{\"ts\":971211336,\"who\":\"u\"}\n","stream":"stdout","time":"2000-10-10T20:55:37.1Z"}"#;
    assert_eq!(parse_with(fields(), inner), Some(call(AT, "u", "1")));
    let outer = r#"{"log":"a line","stream":"stdout","time":"2000-10-10T20:55:36Z","who":"u"}"#;
    assert_eq!(parse_with(fields(), outer), Some(call(AT, "u", "1")));
    assert_eq!(parse(&format!("2000-10-10T20:55:37.1Z stdout P {COMBINED}")), None, "a part of a line");
}

#[test]
fn each_format_gives_client_and_time() {
    const ENVOY: &str = concat!(
        r#"[2000-10-10T20:55:36.000Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "CHAIN" "nsq2http" "#,
        r#""cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80""#
    );
    const ISTIO: &str = concat!(
        r#"[2000-10-10T20:55:36.000Z] "GET /status/418 HTTP/1.1" 418 - via_upstream - "-" 0 135 3 1 "CHAIN" "#,
        r#""curl/7.73.0" "84961386-6d84" "httpbin:8000" "10.44.1.23:80" outbound|8000||httpbin.foo 10.44.1.23:37652 "#,
        r#"10.0.45.184:8000 10.44.1.23:46520 - default"#
    );
    let envoy = |text: &str, chain: &str| text.replace("CHAIN", chain);
    for (format, line, key) in [
        ("combined", COMBINED.to_owned(), "192.0.2.1"),
        ("nginx's main", COMBINED.replace("192.0.2.1", "127.0.0.1") + r#" "192.0.2.1""#, "192.0.2.1"),
        ("nginx's main, direct", format!(r#"{COMBINED} "203.0.113.9""#), "192.0.2.1"),
        ("nginx's main, no chain", format!(r#"{COMBINED} "-""#), "192.0.2.1"),
        ("a chain first", COMBINED.replace("192.0.2.1", "203.0.113.9, 192.0.2.1, 127.0.0.1"), "192.0.2.1"),
        (
            "HAProxy",
            concat!(
                "haproxy[14389]: 192.0.2.1:33317 [10/Oct/2000:20:55:36.000] http-in static/srv1 10/0/30/69/109 200 ",
                r#"2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html HTTP/1.1""#
            )
            .to_owned(),
            "192.0.2.1",
        ),
        ("HAProxy over TCP", "192.0.2.1:33313 [10/Oct/2000:20:55:36.000] fnt bck/srv1 0/0/5007 212 -- 0/0/0/0/3 0/0".into(), "192.0.2.1"),
        ("HAProxy, IPv6", "2001:db8:1:2::5:8080 [10/Oct/2000:20:55:36.000] http-in bck/srv1 10/0/30".into(), "2001:db8:1:2::/64"),
        (
            "ALB",
            concat!(
                "https 2000-10-10T20:55:36.000000Z app/my-loadbalancer/50dc6c495c0c9188 192.0.2.1:2817 10.0.0.1:80 0.086 ",
                r#"0.048 0.037 200 200 0 57 "GET https://www.example.com:443/ HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128"#
            )
            .to_owned(),
            "192.0.2.1",
        ),
        ("Envoy", envoy(ENVOY, "192.0.2.1"), "192.0.2.1"),
        ("Envoy, a chain", envoy(ENVOY, "203.0.113.9,192.0.2.1, 127.0.0.1"), "192.0.2.1"),
        ("Istio", envoy(ISTIO, "192.0.2.1"), "192.0.2.1"),
        ("LTSV", "host:192.0.2.1\tuser:-\ttime:[10/Oct/2000:13:55:36 -0700]\treq:GET / HTTP/1.1\tstatus:200".into(), "192.0.2.1"),
        ("LTSV, a chain", "time:2000-10-10T20:55:36Z\thost:127.0.0.1\tforwardedfor:203.0.113.9, 192.0.2.1".into(), "192.0.2.1"),
    ] {
        assert_eq!(parse(&line), Some(call(AT, key, "1")), "{format}: {line}");
    }
    for (format, line) in [
        ("Envoy without a chain", envoy(ENVOY, "-")),
        ("Istio without a chain", envoy(ISTIO, "-")),
        ("a socket", COMBINED.replace("192.0.2.1", "unix:")),
        ("no address", COMBINED.replace("192.0.2.1", "-")),
        ("the time of syslog", "Sep 10 10:00:00 lb nginx: started".to_owned()),
        ("a service's own words", "web-1  | listening on port 80".to_owned()),
        ("an error log", "2000/10/10 20:55:36 [error] 12#12: *1 open() failed, client: 192.0.2.1".to_owned()),
        (
            "a classic load balancer",
            "2000-10-10T20:55:36.000000Z my-lb 192.0.2.1:2817 10.0.0.1:80 0.0 0.1 0.0 200".to_owned(),
        ),
        ("a host that is no address", r#"{"time":971211336,"host":"www.example.com"}"#.to_owned()),
    ] {
        assert_eq!(parse(&line), None, "{format}: {line}");
    }
}

#[test]
fn directives_name_columns_of_cloudfront_and_iis() {
    let cloudfront = [
        "#Version: 1.0",
        "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status x-forwarded-for",
        "2000-10-10\t20:55:36\tLAX1\t2390282\t192.0.2.1\tGET\td111.cloudfront.net\t/index.html\t200\t-",
        "2000-10-10\t20:55:36\tLAX1\t2390282\t127.0.0.1\tGET\td111.cloudfront.net\t/index.html\t200\t203.0.113.9,%20192.0.2.1",
    ];
    let iis = [
        "#Software: Microsoft Internet Information Services 10.0",
        "#Version: 1.0",
        "#Date: 2000-10-10 00:00:00",
        "#Fields: date time s-ip cs-method cs-uri-stem s-port cs-username c-ip cs(User-Agent) sc-status X-Forwarded-For",
        "2000-10-10 20:55:36 10.9.9.9 GET /default.htm 80 - 192.0.2.1 Mozilla/5.0+(x) 200 -",
        "2000-10-10 20:55:36 10.9.9.9 GET /default.htm 80 - 127.0.0.1 Mozilla/5.0+(x) 200 203.0.113.9,+192.0.2.1",
    ];
    for log in [cloudfront.as_slice(), &iis] {
        let mut parser = LineParser::default();
        for line in log {
            match parser.parse(line) {
                ParsedLine::Directive => assert!(line.starts_with('#'), "{line}"),
                ParsedLine::Call(call) => {
                    assert_eq!((call.at.micros(), call.key.as_ref()), (AT, "192.0.2.1"), "{line}");
                }
                ParsedLine::Malformed => panic!("{line}"),
            }
        }
        // Without a directive, the columns are unknown.
        assert_eq!(parse(log.last().unwrap()), None);
    }
    assert_eq!(LineParser::default().parse("# rubbish"), ParsedLine::Malformed);
}

#[test]
fn addresses_become_the_same_keys_as_in_the_gateway() {
    for (text, key) in [
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::6]:443", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("64:ff9b::c000:201", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("192.0.2.1:4711", "192.0.2.1"),
        ("203.0.113.9,192.0.2.1,127.0.0.1", "192.0.2.1"),
        ("user:7", "user:7"),
        ("tenant,192.0.2.1", "tenant,192.0.2.1"),
    ] {
        assert_eq!(parse(&format!("971211336 {text}")), Some(call(AT, key, "1")));
        assert_eq!(parse(&format!(r#"{{"time":971211336,"key":"{text}"}}"#)), Some(call(AT, key, "1")));
        let named = Fields { key: Some("who".into()), ..Fields::default() };
        assert_eq!(parse_with(named, &format!(r#"{{"time":971211336,"who":"{text}"}}"#)), Some(call(AT, key, "1")));
        if key != text && !text.contains(',') {
            let json = format!(r#"{{"time":971211336,"remote_addr":"{text}"}}"#);
            assert_eq!(parse(&json), Some(call(AT, key, "1")));
            assert_eq!(parse(&COMBINED.replace("192.0.2.1", text)), Some(call(AT, key, "1")));
        }
    }
}

#[test]
fn forwarded_addresses_are_resolved_through_trusted_proxies() {
    let trusted = ["10.0.0.0/8", "2001:db8:ffff::/48"].map(|text| text.parse().unwrap()).to_vec();
    let clients = ClientRules { trusted, ipv6_prefix: Ipv6Prefix::new(48).unwrap() };
    let mut parser = LineParser::new(Fields::default(), clients);
    for (line, key) in [
        (r#"{"time":1,"remote_addr":"10.0.0.1","x_forwarded_for":"203.0.113.9, 192.0.2.1"}"#, "192.0.2.1"),
        (r#"{"time":1,"remote_addr":"10.0.0.1","http_x_forwarded_for":"192.0.2.1, 10.0.0.2"}"#, "192.0.2.1"),
        (r#"{"time":1,"remote_addr":"203.0.113.7","x_forwarded_for":"192.0.2.1"}"#, "203.0.113.7"),
        (r#"{"time":1,"ClientHost":"10.0.0.1","request_X-Forwarded-For":"192.0.2.1"}"#, "192.0.2.1"),
        (
            r#"{"time":1,"request":{"remote_ip":"10.0.0.1","headers":{"X-Forwarded-For":["203.0.113.9","192.0.2.1"]}}}"#,
            "192.0.2.1",
        ),
        (r#"{"time":1,"remote_addr":"2001:db8:ffff::1","x_forwarded_for":"2001:db8:1:2::1"}"#, "2001:db8:1::/48"),
        ("1 203.0.113.9,192.0.2.1,10.0.0.1", "192.0.2.1"),
        (r#"192.0.2.1, 10.0.0.1 - - [10/Oct/2000:20:55:36 +0000] "GET /""#, "192.0.2.1"),
        (
            r#"10.0.0.1 - - [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" 200 1 "-" "x" "203.0.113.9, 192.0.2.1""#,
            "192.0.2.1",
        ),
    ] {
        let ParsedLine::Call(call) = parser.parse(line) else { panic!("{line}") };
        assert_eq!(call.key, key, "{line}");
    }
}
