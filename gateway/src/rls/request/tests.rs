use super::{RequestError, RequestSettings, asked};
use crate::charge::Charge;
use crate::client_address::Ipv6Prefix;
use crate::configuration::Config;
use crate::judge::RequestPart;
use crate::proto::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, UInt64Value};

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "api".to_owned(), descriptors, hits_addend: 0 }
}

fn settings() -> RequestSettings {
    RequestSettings { once: "5m".into(), ipv6_prefix: Ipv6Prefix::default(), charge: None }
}

/// As it goes to the server.
fn words(one: &RequestPart) -> String {
    let RequestPart::Server(question) = one else { return format!("{one:?}") };
    let text = String::from_utf8(question.call.command().get_packed_command()).expect("text");
    text.split("\r\n").skip(2).step_by(2).collect::<Vec<_>>().join(" ")
}

fn sent(descriptor: RateLimitDescriptor) -> String {
    words(&asked(&request(vec![descriptor]), &Config::default(), &settings()).expect("a right request")[0])
}

fn hits(mut descriptor: RateLimitDescriptor, hits: u64) -> RateLimitDescriptor {
    descriptor.hits_addend = Some(UInt64Value { value: hits });
    descriptor
}

const NAMES: &str = "rl:api|user=1 api|user=1 OR api|user OR api";

#[test]
fn an_id_is_part_of_neither_name_nor_key() {
    assert_eq!(sent(descriptor(&[("user", "1")])), format!("RL.LIMIT {NAMES} EACH"));
    assert_eq!(sent(descriptor(&[("rl.id", "i"), ("user", "1")])), format!("RL.LIMIT {NAMES} EACH ONCE i 5m"));
    assert_eq!(sent(descriptor(&[("rl.id", ""), ("user", "1")])), format!("RL.LIMIT {NAMES} EACH"));
}

#[test]
fn hits_are_the_cost() {
    let user = || descriptor(&[("user", "1")]);
    assert_eq!(sent(hits(user(), 0)), format!("RL.LIMIT {NAMES} EACH COST 0"));
    assert_eq!(sent(hits(user(), 7)), format!("RL.LIMIT {NAMES} EACH COST 7"));
    assert_eq!(sent(hits(user(), 1_000_000_000_000)), format!("RL.LIMIT {NAMES} EACH COST 1000000000000"));
    assert_eq!(sent(hits(user(), 1_000_000_000_001)), "TooMuch");
    assert_eq!(sent(hits(user(), u64::MAX)), "TooMuch");
    let of_request = RateLimitRequest { hits_addend: 4, ..request(vec![user(), hits(user(), 2)]) };
    let both = asked(&of_request, &Config::default(), &settings()).expect("right");
    assert!(words(&both[0]).ends_with("COST 4") && words(&both[1]).ends_with("COST 2"));
}

#[test]
fn negative_hits_release_with_an_id_and_give_back_without() {
    let negative =
        |entries: &[(&str, &str)]| RateLimitDescriptor { is_negative_hits: true, ..hits(descriptor(entries), 3) };
    assert_eq!(sent(negative(&[("user", "1"), ("rl.id", "i")])), "RL.RELEASE rl:api|user=1 i");
    assert_eq!(sent(negative(&[("user", "1")])), format!("RL.LIMIT {NAMES} EACH COST -3"));
}

#[test]
fn a_settlement_says_what_a_call_cost() {
    let settling = descriptor(&[("user", "1"), ("rl.id", "i"), ("rl.settle", "")]);
    assert_eq!(sent(hits(settling.clone(), 1200)), format!("RL.LIMIT {NAMES} EACH SETTLE i 1200"));
    assert_eq!(sent(settling), "RL.RELEASE rl:api|user=1 i");
}

#[test]
fn settlement_without_id_charges_past_the_limit_and_nothing_without_hits() {
    let settling = || descriptor(&[("user", "1"), ("rl.settle", "")]);
    assert_eq!(sent(hits(settling(), 1200)), format!("RL.LIMIT {NAMES} EACH COST 1200 FORCE"));
    assert_eq!(sent(settling()), format!("RL.LIMIT {NAMES} EACH COST 0"));
    assert_eq!(sent(hits(settling(), u64::MAX)), format!("RL.LIMIT {NAMES} EACH COST 1000000000000 FORCE"));
}

#[test]
fn charge_is_that_of_the_rule_or_the_command_line_or_the_format() {
    let mut config = Config::default();
    let file = "
domain: api
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: b, rate_limit: {limit: FIXED 1 1m}}
  - {key: c, rate_limit: {policy: c, charge: always}}
  - {key: d, rate_limit: {unit: minute, requests_per_unit: 1, charge: all-or-none}}
";
    config.add("f", file).expect("a right file");
    let charges = |config: &Config, charge| {
        let settings = RequestSettings { charge, ..settings() };
        let limit = Some(RateLimitOverride { requests_per_unit: 5, unit: 2 });
        let mut descriptors: Vec<_> = ["a", "b", "c", "d", "a"].map(|key| descriptor(&[(key, "1")])).into();
        descriptors[4].limit = limit;
        let asked = asked(&request(descriptors), config, &settings).expect("right");
        let charge = |one: &RequestPart| {
            let RequestPart::Server(question) = one else { panic!("{one:?}") };
            question.call.charge
        };
        asked.iter().map(charge).collect::<Vec<_>>()
    };
    let (none, each, always) = (Charge::AllOrNone, Charge::Independent, Charge::Always);
    assert_eq!(charges(&config, None), [always, none, always, none, always]);
    assert_eq!(charges(&config, Some(each)), [each, each, always, none, each]);
    assert_eq!(charges(&Config::default(), None), [none; 5]);
    assert_eq!(charges(&Config::default(), Some(always)), [always; 5]);
}

#[test]
fn override_does_not_limit_a_domain_without_rules_beside_files() {
    let mut config = Config::default();
    config.add("f", "{domain: other}").expect("a right file");
    let limit = Some(RateLimitOverride { requests_per_unit: 5, unit: 2 });
    let with = RateLimitDescriptor { limit, ..descriptor(&[("user", "1")]) };
    let of = |domain: &str| {
        let request = RateLimitRequest { domain: domain.to_owned(), ..request(vec![with.clone()]) };
        words(&asked(&request, &config, &settings()).expect("right")[0])
    };
    assert_eq!(of("api"), format!("RL.LIMIT {NAMES} EACH"));
    assert_eq!(of("other"), "RL.TAKE rl:other|user=1 EACH FORCE FIXED 5 1m ALIGNED");
}

#[test]
fn a_limit_that_a_descriptor_brings_wins() {
    let limit = |unit| Some(RateLimitOverride { requests_per_unit: 5, unit });
    let with = |unit| RateLimitDescriptor { limit: limit(unit), ..descriptor(&[("user", "1")]) };
    assert_eq!(sent(with(2)), "RL.TAKE rl:api|user=1 EACH FIXED 5 1m ALIGNED");
    assert_eq!(sent(with(0)), "Nothing");
    assert_eq!(sent(with(99)), "Nothing");
}

#[test]
fn a_file_rules_its_domain_alone() {
    let mut config = Config::default();
    let file = "
domain: api
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: a}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 2, replaces: [{name: a}]}}
  - {key: c, rate_limit: {unlimited: true}}
  - {key: d, value: 'x*', share_threshold: true, rate_limit: {policy: 'of:{d}'}}
";
    config.add("f", file).expect("a right file");
    let of = |descriptors: &[&[(&str, &str)]]| {
        let request = request(descriptors.iter().map(|entries| descriptor(entries)).collect());
        asked(&request, &config, &settings()).expect("right").iter().map(words).collect::<Vec<_>>()
    };
    assert_eq!(of(&[&[("a", "1")]]), ["RL.TAKE rl:api|a=1 EACH FORCE FIXED 1 1m ALIGNED"]);
    let replaced = of(&[&[("a", "1")], &[("b", "1")]]);
    assert_eq!(replaced, ["Nothing", "RL.TAKE rl:api|b=1 EACH FORCE FIXED 2 1m ALIGNED"]);
    assert_eq!(of(&[&[("c", "1")], &[("e", "1")]]), ["Unlimited", "Nothing"]);
    assert_eq!(of(&[&[("d", "xy")]]), ["RL.LIMIT rl:api|d=x%2A of:xy EACH"]);
    assert_eq!(of(&[&[("d", &format!("x{}", "y".repeat(256)))]]), ["Nothing"], "no policy can have so long a name");
    let other = RateLimitRequest { domain: "other".to_owned(), ..request(vec![descriptor(&[("a", "1")])]) };
    assert!(
        words(&asked(&other, &config, &settings()).expect("right")[0])
            .starts_with("RL.LIMIT rl:other|a=1 other|a=1 OR")
    );
}

#[test]
fn a_file_counts_addresses_by_network() {
    let mut config = Config::default();
    let file = "{domain: api, descriptors: [{key: remote_address, rate_limit: {limit: FIXED 1 1m}}]}";
    config.add("f", file).expect("a right file");
    let of = |address, bits| {
        let request = request(vec![descriptor(&[("remote_address", address)])]);
        words(
            &asked(
                &request,
                &config,
                &RequestSettings { ipv6_prefix: Ipv6Prefix::new(bits).expect("a prefix"), ..settings() },
            )
            .expect("right")[0],
        )
    };
    assert_eq!(of("2001:db8:1:2::6", 48), "RL.TAKE rl:api|remote_address=2001:db8:1::/48 EACH FIXED 1 1m");
    assert_eq!(of("2001:db8:1:2::6", 128), "RL.TAKE rl:api|remote_address=2001:db8:1:2::6 EACH FIXED 1 1m");
    assert_eq!(of("64:ff9b::203.0.113.1", 128), "RL.TAKE rl:api|remote_address=203.0.113.1 EACH FIXED 1 1m");
}

#[test]
fn wrong_requests_are_refused() {
    let many = |count: usize| vec![descriptor(&[("a", "b")]); count];
    let long = vec![descriptor(&vec![("a", "b"); 17])];
    let is_empty = |descriptors, domain: &str| {
        let request = RateLimitRequest { domain: domain.to_owned(), ..request(descriptors) };
        let error = asked(&request, &Config::default(), &settings()).expect_err("a wrong request");
        matches!(error, RequestError::Empty(_))
    };
    assert!(is_empty(many(0), "api") && is_empty(many(1), ""));
    assert!(!is_empty(many(33), "api") && !is_empty(long, "api"));
}
