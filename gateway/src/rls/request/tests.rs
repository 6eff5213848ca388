use super::{RequestError, RequestSettings, resolve};
use crate::charge::ChargingMode;
use crate::client_address::Ipv6Prefix;
use crate::configuration::Config;
use crate::evaluation::RequestPart;
use crate::proto::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, UInt64Value};

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "api".to_owned(), descriptors, hits_addend: 0 }
}

fn settings() -> RequestSettings {
    RequestSettings { id_lifetime: "5m".into(), ipv6_prefix: Ipv6Prefix::default(), charge: None }
}

/// Returns the command of a part, or the name of a part without one.
fn command_words(part: &RequestPart) -> String {
    let RequestPart::Call(rule_call) = part else { return format!("{part:?}") };
    let text = String::from_utf8(rule_call.call.command().get_packed_command()).expect("text");
    text.split("\r\n").skip(2).step_by(2).collect::<Vec<_>>().join(" ")
}

fn command(descriptor: RateLimitDescriptor) -> String {
    command_words(&resolve(&request(vec![descriptor]), &Config::default(), &settings()).expect("a valid request")[0])
}

fn with_hits(mut descriptor: RateLimitDescriptor, hits: u64) -> RateLimitDescriptor {
    descriptor.hits_addend = Some(UInt64Value { value: hits });
    descriptor
}

/// Key and policy names of the descriptor `(user, 1)`.
const KEY_AND_NAMES: &str = "rl:api|user=1 api|user=1 OR api|user OR api";

#[test]
fn id_entry_is_part_of_neither_policy_name_nor_key() {
    assert_eq!(command(descriptor(&[("user", "1")])), format!("RL.LIMIT {KEY_AND_NAMES} EACH"));
    assert_eq!(
        command(descriptor(&[("rl.id", "i"), ("user", "1")])),
        format!("RL.LIMIT {KEY_AND_NAMES} EACH ONCE i 5m")
    );
    assert_eq!(command(descriptor(&[("rl.id", ""), ("user", "1")])), format!("RL.LIMIT {KEY_AND_NAMES} EACH"));
}

#[test]
fn hits_are_the_cost() {
    let user = || descriptor(&[("user", "1")]);
    assert_eq!(command(with_hits(user(), 0)), format!("RL.LIMIT {KEY_AND_NAMES} EACH COST 0"));
    assert_eq!(command(with_hits(user(), 7)), format!("RL.LIMIT {KEY_AND_NAMES} EACH COST 7"));
    assert_eq!(
        command(with_hits(user(), 1_000_000_000_000)),
        format!("RL.LIMIT {KEY_AND_NAMES} EACH COST 1000000000000")
    );
    assert_eq!(command(with_hits(user(), 1_000_000_000_001)), "CostTooHigh");
    assert_eq!(command(with_hits(user(), u64::MAX)), "CostTooHigh");
    let request = RateLimitRequest { hits_addend: 4, ..request(vec![user(), with_hits(user(), 2)]) };
    let parts = resolve(&request, &Config::default(), &settings()).expect("a valid request");
    assert!(command_words(&parts[0]).ends_with("COST 4") && command_words(&parts[1]).ends_with("COST 2"));
}

#[test]
fn negative_hits_release_with_an_id_and_return_units_without() {
    let negative =
        |entries: &[(&str, &str)]| RateLimitDescriptor { is_negative_hits: true, ..with_hits(descriptor(entries), 3) };
    assert_eq!(command(negative(&[("user", "1"), ("rl.id", "i")])), "RL.RELEASE rl:api|user=1 i");
    assert_eq!(command(negative(&[("user", "1")])), format!("RL.LIMIT {KEY_AND_NAMES} EACH COST -3"));
}

#[test]
fn settlement_with_an_id_corrects_the_cost() {
    let settlement = descriptor(&[("user", "1"), ("rl.id", "i"), ("rl.settle", "")]);
    assert_eq!(command(with_hits(settlement.clone(), 1200)), format!("RL.LIMIT {KEY_AND_NAMES} EACH SETTLE i 1200"));
    assert_eq!(command(settlement), "RL.RELEASE rl:api|user=1 i");
}

#[test]
fn settlement_without_an_id_charges_its_hits_beyond_the_limit() {
    let settlement = || descriptor(&[("user", "1"), ("rl.settle", "")]);
    assert_eq!(command(with_hits(settlement(), 1200)), format!("RL.LIMIT {KEY_AND_NAMES} EACH COST 1200 FORCE"));
    assert_eq!(command(settlement()), format!("RL.LIMIT {KEY_AND_NAMES} EACH COST 0"));
    assert_eq!(
        command(with_hits(settlement(), u64::MAX)),
        format!("RL.LIMIT {KEY_AND_NAMES} EACH COST 1000000000000 FORCE")
    );
}

#[test]
fn charging_mode_comes_from_rule_then_command_line_then_format() {
    let mut config = Config::default();
    let file = "
domain: api
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: b, rate_limit: {limit: FIXED 1 1m}}
  - {key: c, rate_limit: {policy: c, charge: always}}
  - {key: d, rate_limit: {unit: minute, requests_per_unit: 1, charge: all-or-none}}
";
    config.add("f", file).expect("a valid file");
    let charges = |config: &Config, charge| {
        let settings = RequestSettings { charge, ..settings() };
        let limit = Some(RateLimitOverride { requests_per_unit: 5, unit: 2 });
        let mut descriptors: Vec<_> = ["a", "b", "c", "d", "a"].map(|key| descriptor(&[(key, "1")])).into();
        descriptors[4].limit = limit;
        let parts = resolve(&request(descriptors), config, &settings).expect("a valid request");
        let charge = |part: &RequestPart| {
            let RequestPart::Call(rule_call) = part else { panic!("{part:?}") };
            rule_call.call.charge
        };
        parts.iter().map(charge).collect::<Vec<_>>()
    };
    let (all_or_none, independent, always) = (ChargingMode::AllOrNone, ChargingMode::Independent, ChargingMode::Always);
    assert_eq!(charges(&config, None), [always, all_or_none, always, all_or_none, always]);
    assert_eq!(charges(&config, Some(independent)), [independent, independent, always, all_or_none, independent]);
    assert_eq!(charges(&Config::default(), None), [all_or_none; 5]);
    assert_eq!(charges(&Config::default(), Some(always)), [always; 5]);
}

#[test]
fn override_is_ignored_in_a_domain_that_no_file_has() {
    let mut config = Config::default();
    config.add("f", "{domain: other}").expect("a valid file");
    let limit = Some(RateLimitOverride { requests_per_unit: 5, unit: 2 });
    let descriptor = RateLimitDescriptor { limit, ..descriptor(&[("user", "1")]) };
    let command_in = |domain: &str| {
        let request = RateLimitRequest { domain: domain.to_owned(), ..request(vec![descriptor.clone()]) };
        command_words(&resolve(&request, &config, &settings()).expect("a valid request")[0])
    };
    assert_eq!(command_in("api"), format!("RL.LIMIT {KEY_AND_NAMES} EACH"));
    assert_eq!(command_in("other"), "RL.TAKE rl:other|user=1 EACH FORCE FIXED 5 1m ALIGNED");
}

#[test]
fn limit_of_the_descriptor_takes_precedence() {
    let limit = |unit| Some(RateLimitOverride { requests_per_unit: 5, unit });
    let with_limit = |unit| RateLimitDescriptor { limit: limit(unit), ..descriptor(&[("user", "1")]) };
    assert_eq!(command(with_limit(2)), "RL.TAKE rl:api|user=1 EACH FIXED 5 1m ALIGNED");
    assert_eq!(command(with_limit(0)), "NoLimit");
    assert_eq!(command(with_limit(99)), "NoLimit");
}

#[test]
fn file_applies_only_to_its_domain() {
    let mut config = Config::default();
    let file = "
domain: api
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: a}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 2, replaces: [{name: a}]}}
  - {key: c, rate_limit: {unlimited: true}}
  - {key: d, value: 'x*', share_threshold: true, rate_limit: {policy: 'of:{d}'}}
";
    config.add("f", file).expect("a valid file");
    let commands = |descriptors: &[&[(&str, &str)]]| {
        let request = request(descriptors.iter().map(|entries| descriptor(entries)).collect());
        resolve(&request, &config, &settings()).expect("a valid request").iter().map(command_words).collect::<Vec<_>>()
    };
    assert_eq!(commands(&[&[("a", "1")]]), ["RL.TAKE rl:api|a=1 EACH FORCE FIXED 1 1m ALIGNED"]);
    let a_and_b = commands(&[&[("a", "1")], &[("b", "1")]]);
    assert_eq!(a_and_b, ["NoLimit", "RL.TAKE rl:api|b=1 EACH FORCE FIXED 2 1m ALIGNED"], "b replaces a");
    assert_eq!(commands(&[&[("c", "1")], &[("e", "1")]]), ["Unlimited", "NoLimit"]);
    assert_eq!(commands(&[&[("d", "xy")]]), ["RL.LIMIT rl:api|d=x%2A of:xy EACH"]);
    assert_eq!(
        commands(&[&[("d", &format!("x{}", "y".repeat(256)))]]),
        ["NoLimit"],
        "the name is too long for a policy"
    );
    let request = RateLimitRequest { domain: "other".to_owned(), ..request(vec![descriptor(&[("a", "1")])]) };
    assert!(
        command_words(&resolve(&request, &config, &settings()).expect("a valid request")[0])
            .starts_with("RL.LIMIT rl:other|a=1 other|a=1 OR")
    );
}

#[test]
fn keys_of_a_file_group_addresses_by_network() {
    let mut config = Config::default();
    let file = "{domain: api, descriptors: [{key: remote_address, rate_limit: {limit: FIXED 1 1m}},
        {key: remote_address, value: '2001:db8:1:2::7', rate_limit: {limit: FIXED 2 1m}},
        {key: remote_address, value: '2001:db8:5::/48', rate_limit: {limit: FIXED 3 1m}}]}";
    config.add("f", file).expect("a valid file");
    let command = |address, bits| {
        let request = request(vec![descriptor(&[("remote_address", address)])]);
        let prefix = Ipv6Prefix::new(bits).expect("a prefix");
        let parts = resolve(&request, &config, &RequestSettings { ipv6_prefix: prefix, ..settings() });
        command_words(&parts.expect("a valid request")[0])
    };
    assert_eq!(command("2001:db8:1:2::6", 48), "RL.TAKE rl:api|remote_address=2001:db8:1::/48 EACH FIXED 1 1m");
    assert_eq!(command("2001:db8:1:2::6", 128), "RL.TAKE rl:api|remote_address=2001:db8:1:2::6 EACH FIXED 1 1m");
    assert_eq!(command("2001:db8:1:2::7", 64), "RL.TAKE rl:api|remote_address=2001:db8:1:2::7 EACH FIXED 2 1m");
    assert_eq!(command("2001:db8:5:6::7", 48), "RL.TAKE rl:api|remote_address=2001:db8:5::/48 EACH FIXED 3 1m");
    assert_eq!(command("64:ff9b::203.0.113.1", 128), "RL.TAKE rl:api|remote_address=203.0.113.1 EACH FIXED 1 1m");
}

#[test]
fn malformed_requests_are_rejected() {
    let descriptors = |count: usize| vec![descriptor(&[("a", "b")]); count];
    let long_descriptor = vec![descriptor(&vec![("a", "b"); 65])];
    let is_empty = |descriptors, domain: &str| {
        let request = RateLimitRequest { domain: domain.to_owned(), ..request(descriptors) };
        let error = resolve(&request, &Config::default(), &settings()).expect_err("a malformed request");
        matches!(error, RequestError::Empty(_))
    };
    assert!(is_empty(descriptors(0), "api") && is_empty(descriptors(1), ""));
    assert!(!is_empty(descriptors(257), "api") && !is_empty(long_descriptor, "api"));
}
