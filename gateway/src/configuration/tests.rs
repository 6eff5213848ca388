use super::{Config, MatchedRule, RuleLimit};
use crate::call::Rule;
use crate::client_address::Ipv6Prefix;

fn parse(text: &str) -> Result<Config, String> {
    let mut config = Config::default();
    config.add("f.yaml", text).map(|()| config)
}

fn find(config: &Config, entries: &[(&str, &str)]) -> Option<MatchedRule> {
    config.domains.get("api").expect("the domain").find(entries, Ipv6Prefix::default())
}

/// Returns the limit that the configuration has for a descriptor, as text.
fn limit(config: &Config, entries: &[(&str, &str)]) -> Option<String> {
    find(config, entries).map(|rule| match rule.limit {
        RuleLimit::Unlimited => "unlimited".to_owned(),
        RuleLimit::Limited(Rule::Limits(words)) => words.join(" "),
        RuleLimit::Limited(Rule::Policies(names)) => names.join(" OR "),
    })
}

const FILE: &str = "
domain: api
descriptors:
  - key: plan
    value: gold
    rate_limit: {unit: minute, requests_per_unit: 10}
    descriptors:
      - key: user
        rate_limit: {unit: HOUR, requests_per_unit: 3}
  - key: plan
    value: g*
    share_threshold: true
    rate_limit: {unit: month, requests_per_unit: 7}
  - key: plan
    value: go*
    rate_limit: {unit: year, requests_per_unit: 8}
  - key: plan
    rate_limit: {unlimited: true}
  - key: tenant
    value: 42
    rate_limit: {limit: TOKENBUCKET 10 10 1s FIXED 1000 1d}
  - key: tenant
    rate_limit: {policy: ['tenant:{tenant}', tenants]}
  - key: closed
    rate_limit: {unit: day, requests_per_unit: 0}
";

#[test]
fn rule_is_matched_level_by_level_without_backtracking() {
    let config = parse(FILE).expect("a valid file");
    let limit = |entries: &[(&str, &str)]| limit(&config, entries);
    assert_eq!(limit(&[("plan", "gold")]).as_deref(), Some("FIXED 10 1m ALIGNED"));
    assert_eq!(limit(&[("plan", "gold"), ("user", "1")]).as_deref(), Some("FIXED 3 1h ALIGNED"));
    assert_eq!(limit(&[("plan", "golden")]).as_deref(), Some("FIXED 7 1mo ALIGNED"), "the first wildcard of the file");
    assert_eq!(limit(&[("plan", "free")]).as_deref(), Some("unlimited"));
    assert_eq!(limit(&[("plan", "free"), ("user", "1")]), None, "a shorter rule does not match");
    assert_eq!(limit(&[("user", "1")]), None);
    assert_eq!(limit(&[("tenant", "42")]).as_deref(), Some("TOKENBUCKET 10 10 1s FIXED 1000 1d"));
    assert_eq!(limit(&[("tenant", "a|b")]).as_deref(), Some("tenant:a%7Cb OR tenants"));
    assert_eq!(limit(&[("tenant", "a:b")]).as_deref(), Some("tenant:a%3Ab OR tenants"));
    assert_eq!(limit(&[("closed", "")]).as_deref(), Some("FIXED 0 1d ALIGNED"));
}

#[test]
fn policy_name_that_becomes_too_long_is_left_out() {
    let config = parse(FILE).expect("a valid file");
    let long = "v".repeat(249);
    assert_eq!(limit(&config, &[("tenant", &long)]), Some(format!("tenant:{long} OR tenants")));
    assert_eq!(limit(&config, &[("tenant", &format!("{long}v"))]).as_deref(), Some("tenants"));
}

#[test]
fn key_of_a_shared_wildcard_has_the_pattern() {
    let config = parse(FILE).expect("a valid file");
    let entries = |value| find(&config, &[("plan", value)]).expect("a rule").key_entries;
    assert_eq!(entries("glass"), [("plan".to_owned(), "g*".to_owned())]);
    assert_eq!(entries("gold"), [("plan".to_owned(), "gold".to_owned())]);
}

#[test]
fn wildcard_may_be_anywhere_in_key_or_value() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let config = parse(&format!(
        "domain: api\ndescriptors:\n  - {{key: path, value: /api*v1, share_threshold: true, {limit}}}\n\
         \x20 - {{key: path, value: a*b*c, {limit}}}\n  - {{key: x*, {limit}}}\n"
    ));
    let config = config.expect("a valid file");
    let value_in_key = |key, value: &str| find(&config, &[(key, value)]).map(|rule| rule.key_entries[0].1.clone());
    assert_eq!(value_in_key("path", "/api/users/v1").as_deref(), Some("/api*v1"));
    assert_eq!(value_in_key("path", "a1b2c").as_deref(), Some("a1b2c"));
    assert_eq!(value_in_key("xy", "1").as_deref(), Some("1"));
    assert_eq!((value_in_key("path", "/api/v2"), value_in_key("y", "x")), (None, None));
}

#[test]
fn address_is_matched_before_its_network() {
    let text = "
domain: api
descriptors:
  - {key: remote_address, value: '2001:db8:1:2::6', rate_limit: {limit: FIXED 6 1d}}
  - {key: remote_address, value: '2001:db8:1:2::/64', rate_limit: {limit: FIXED 64 1d}}
  - {key: remote_address, value: '203.0.113.*', rate_limit: {limit: FIXED 24 1d}}
  - {key: remote_address, rate_limit: {policy: ['of:{remote_address}', all]}}
";
    let config = parse(text).expect("a valid file");
    let limit = |address| limit(&config, &[("remote_address", address)]).expect("a rule");
    assert_eq!(limit("2001:db8:1:2::6"), "FIXED 6 1d");
    assert_eq!(limit("2001:db8:1:2::7"), "FIXED 64 1d");
    assert_eq!(limit("::ffff:203.0.113.7"), "FIXED 24 1d");
    assert_eq!(limit("198.51.100.1"), "of:198.51.100.1 OR all");
    let [by_address, by_network] = ["of:2001%3Adb8%3A3%3A4%3A%3A1", "of:2001%3Adb8%3A3%3A4%3A%3A/64"];
    assert_eq!(limit("2001:db8:3:4::1"), format!("{by_address} OR {by_network} OR all"));
}

#[test]
fn metric_has_values_only_if_the_rule_reports_them() {
    let text = "
domain: api
descriptors:
  - {key: a, value_to_metric: true, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]}
  - {key: c, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: d, rate_limit: {unit: day, requests_per_unit: 1}}
";
    let config = parse(text).expect("a valid file");
    let metric = |entries: &[(&str, &str)]| {
        let metric = find(&config, entries).expect("a rule").metric;
        (metric.rule, metric.values)
    };
    assert_eq!(metric(&[("a", "1"), ("b", "2")]), ("a.b".to_owned(), Some("a_1.b".to_owned())));
    assert_eq!(metric(&[("c", "1")]), ("c".to_owned(), Some("c_1".to_owned())));
    assert_eq!(metric(&[("d", "1")]), ("d".to_owned(), None));
}

#[test]
fn unit_multiplier_lengthens_the_window() {
    let parse_limit = |text: &str| {
        let config = parse(&format!("{{domain: api, descriptors: [{{key: a, rate_limit: {{{text}}}}}]}}"))?;
        Ok(limit(&config, &[("a", "1")]).expect("a rule"))
    };
    let limit_of_units = |unit: &str, multiplier: u32| {
        parse_limit(&format!("unit: {unit}, unit_multiplier: {multiplier}, requests_per_unit: 5"))
    };
    assert_eq!(limit_of_units("second", 30).as_deref(), Ok("FIXED 5 30s ALIGNED"));
    assert_eq!(limit_of_units("week", 2).as_deref(), Ok("FIXED 5 14d ALIGNED"));
    assert_eq!(limit_of_units("month", 1).as_deref(), Ok("FIXED 5 1mo ALIGNED"));
    assert_eq!(limit_of_units("month", 3).as_deref(), Ok("FIXED 5 90d ALIGNED"));
    for (unit, multiplier) in [("minute", 0), ("year", 11), ("year", u32::MAX)] {
        assert!(limit_of_units(unit, multiplier).is_err_and(|error: String| error.contains("unit_multiplier must be")));
    }
    assert_eq!(parse_limit("unlimited: true, unit: fortnight").as_deref(), Ok("unlimited"));
    assert!(parse_limit("unlimited: true, unit: day").is_err());
}

#[test]
fn files_of_a_domain_are_merged_with_merge_domains() {
    let rate_limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let file = |key: &str| format!("{{domain: api, descriptors: [{{key: {key}, {rate_limit}}}]}}");
    let mut config = Config::new(true);
    for name in ["a", "b"] {
        config.add(name, &file(name)).expect("a valid file");
        assert!(limit(&config, &[(name, "1")]).is_some());
    }
    let duplicate = config.add("c", &file("a"));
    assert_eq!(duplicate, Err("c: line 1: api.a is there twice".to_owned()));
}

const REPLACES_ERROR: &str = "line 3: api.a: replaces must be a list of names";

const CONFIG_MAP: &str = "---
apiVersion: v1
kind: ConfigMap
metadata: {name: limits}
data:
  limits.yaml: |
    domain: api
    descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]
";

#[test]
fn file_that_envoy_gateway_prints_is_accepted() {
    let config = parse(
        "name: default/eg/http
domain: default/eg/http
descriptors:
- key: backend-traffic-policy/default/policy
  value: backend-traffic-policy/default/policy
  descriptors:
  - key: rule-0-match--1
    value: rule-0-match--1
    rate_limit: {requests_per_unit: 5, unit: SECOND, unlimited: false, name: '', replaces: []}
    shadow_mode: false
    detailed_metric: false
",
    );
    assert!(config.expect("a valid file").domains.contains_key("default/eg/http"));
}

#[test]
fn malformed_files_are_rejected_with_file_and_reason() {
    let with_rule = |rule: &str| format!("domain: api\ndescriptors:\n  - key: a\n    {rule}\n");
    for (text, expected) in [
        (with_rule("rate_limit: {unit: fortnight, requests_per_unit: 1}"), "unit must be"),
        (with_rule("rate_limit: {requests_per_unit: 1}"), "unit must be"),
        (with_rule("rate_limit: {unit: day, requests_per_unit: -1}"), "line 4"),
        (with_rule("rate_limits: {unit: day, requests_per_unit: 1}"), "rate_limits"),
        (with_rule("rate_limit: {unlimited: true, unit: day}"), "unlimited goes with no unit"),
        (with_rule("rate_limit: {limit: FIXED 1 1min}"), "line 3: api.a: "),
        (with_rule("rate_limit: {limit: CONCURRENCY 1 1m}"), "CONCURRENCY is for policies"),
        (with_rule("share_threshold: true"), "line 3: api.a: share_threshold takes"),
        (with_rule("rate_limit: {unit: day, policy: a}"), "rate_limit must have one of"),
        (with_rule("rate_limit: {policy: []}"), "policy must be"),
        (with_rule("rate_limit: {unit: day, requests_per_unit: 1, name: n, replaces: [{name: n}]}"), "replace itself"),
        (with_rule("rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: ''}]}"), REPLACES_ERROR),
        (with_rule("rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: }]}"), REPLACES_ERROR),
        (with_rule("rate_limit: {unit: day, requests_per_unit: 1, replaces: [{}]}"), REPLACES_ERROR),
        (with_rule("rate_limit: {unit: day, requests_per_unit: 1, replaces: [null]}"), REPLACES_ERROR),
        (with_rule("rate_limit: {unit: day, requests_per_unit: 1, replaces: }"), REPLACES_ERROR),
        ("domain: api\ndescriptors: [{key: a}, {key: a}]\n".to_owned(), "line 2: api.a is there twice"),
        ("domain: api\ndescriptors: [{key: ''}]\n".to_owned(), "no key"),
        ("domain: api\n---\ndomain: api\n".to_owned(), "line 3: the domain is there twice: api is in f.yaml"),
        (
            format!("{CONFIG_MAP}{CONFIG_MAP}"),
            "a Kubernetes manifest (ConfigMap): the configuration is a text under its data",
        ),
        (CONFIG_MAP.to_owned(), "a Kubernetes manifest (ConfigMap)"),
        ("apiVersion: v1\ndomain: api\n".to_owned(), "apiVersion"),
        ("domain: ''\n".to_owned(), "line 1: the domain must have a name"),
        ("domain: api\ndomain: b\n".to_owned(), "line 2"),
        ("descriptors: []\n".to_owned(), "a document must have"),
        ("nonsense: 1\n".to_owned(), "nonsense"),
        (with_rule("rate_limit: {policy: 'of:{a}{b}'}"), "between each two fields"),
        ("http: {rules: [{key: '{client}{path}', policy: p}]}".to_owned(), "line 1: '{client}{path}' must have"),
        ("http: {rules: [{key: a}]}".to_owned(), "either policy or limit"),
        ("http: {rules: [{key: '{x}', policy: p}]}".to_owned(), "must be {client}"),
        ("http: {trusted: [nobody]}".to_owned(), "trusted must be"),
        ("http: {ipv6_prefix: 47}".to_owned(), "line 1: ipv6_prefix must be a number from 48 to 128"),
        ("http: {ipv6_prefix: 320}".to_owned(), "line 1: ipv6_prefix must be"),
        ("http: {ipv6_prefix: /64}".to_owned(), "line 1"),
        ("domain: [".to_owned(), "f.yaml"),
        (String::new(), "has no document"),
        ("# domain: api\n\n---\n".to_owned(), "has no document"),
    ] {
        let error = parse(&text).err().unwrap_or_else(|| panic!("accepted: {text}"));
        assert!(error.starts_with("f.yaml: ") && error.contains(expected), "{text}\n{error}");
    }
}

#[test]
fn file_may_have_several_documents() {
    let config = parse("domain: a\n---\ndomain: b\n---\nhttp: {trusted: ['::1', 10.0.0.0/8]}\n").expect("a valid file");
    assert_eq!((config.domains.len(), config.http.trusted.len()), (2, 2));
    assert!(config.http.rules.is_none());
}

#[test]
fn to_text_has_a_line_for_each_limit() {
    let config = parse(FILE).expect("a valid file");
    let tail = "shadow_mode: false, quota_mode: false\n";
    let lines = [
        "api.closed: unit=DAY requests_per_unit=0",
        "api.plan: unit=UNKNOWN requests_per_unit=0",
        "api.plan_g*: unit=MONTH requests_per_unit=7",
        "api.plan_go*: unit=YEAR requests_per_unit=8",
        "api.plan_gold.user: unit=HOUR requests_per_unit=3",
        "api.plan_gold: unit=MINUTE requests_per_unit=10",
        "api.tenant: policy=tenant:{tenant},tenants",
        "api.tenant_42: limit=TOKENBUCKET 10 10 1s FIXED 1000 1d",
    ];
    assert_eq!(config.to_text(), lines.map(|line| format!("{line}, {tail}")).concat());
    let quota =
        "{domain: d, descriptors: [{key: k, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}]}";
    let quota = parse(quota).expect("a valid file").to_text();
    assert_eq!(quota, "d.k: unit=HOUR requests_per_unit=1, shadow_mode: false, quota_mode: true\n");
}
