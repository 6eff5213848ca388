use super::messages::{DiscoveryResponse, RateLimitConfig, RateLimitDescriptor};
use super::{LONGEST_DELAY, REPEATED_REFUSAL_PAUSE, SHORTEST_DELAY, XdsClient, XdsOptions, delay, resources};
use crate::configuration::Config;
use crate::grpc_client::CONNECT_TIMEOUT;
use arc_swap::ArcSwap;
use prost::Message as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

fn client(config: &Arc<ArcSwap<Config>>) -> XdsClient {
    let options = XdsOptions { address: Some("localhost:18000".to_owned()), ..XdsOptions::default() };
    XdsClient::new(&options, false, Arc::clone(config)).expect("valid options").expect("a control plane")
}

fn response(version: &str, domains: &[&str]) -> DiscoveryResponse {
    let resource = |domain: &&str| {
        let descriptor = RateLimitDescriptor { key: "user".to_owned(), ..RateLimitDescriptor::default() };
        let domain = (*domain).to_owned();
        let config = RateLimitConfig { name: domain.clone(), domain, descriptors: vec![descriptor] };
        prost_types::Any { type_url: resources::TYPE_URL.to_owned(), value: config.encode_to_vec() }
    };
    DiscoveryResponse {
        version_info: version.to_owned(),
        resources: domains.iter().map(resource).collect(),
        type_url: resources::TYPE_URL.to_owned(),
        nonce: format!("nonce of {version}"),
    }
}

#[tokio::test]
async fn response_is_applied_as_a_whole_or_refused() {
    let config = Arc::default();
    let mut client = client(&config);
    let domains = || {
        let mut domains: Vec<String> = config.load().domains.keys().cloned().collect();
        domains.sort();
        domains
    };
    let accepted = client.apply(response("1", &["a", "b"])).await;
    assert_eq!((accepted.version_info.as_str(), accepted.response_nonce.as_str()), ("1", "nonce of 1"));
    assert_eq!((accepted.error_detail, domains()), (None, vec!["a".to_owned(), "b".to_owned()]));
    let refused = client.apply(response("2", &["c", ""])).await;
    assert_eq!((refused.version_info.as_str(), refused.response_nonce.as_str()), ("1", "nonce of 2"));
    let error = refused.error_detail.expect("an error");
    assert_eq!((error.code, error.message.as_str()), (3, "resource 1: the domain must have a name"));
    assert_eq!(domains(), ["a", "b"]);
    let accepted_empty = client.apply(response("3", &[])).await;
    assert_eq!((accepted_empty.version_info.as_str(), accepted_empty.error_detail), ("3", None));
    assert!(domains().is_empty() && config.load().covers_domains);
}

#[tokio::test(start_paused = true)]
async fn response_that_is_sent_again_is_refused_after_a_pause() {
    let mut client = client(&Arc::default());
    let mut pause = async |version: &str, domains: &[&str]| {
        let started = Instant::now();
        client.apply(response(version, domains)).await;
        started.elapsed()
    };
    let malformed: &[&str] = &[""];
    assert_eq!([pause("1", malformed).await, pause("1", malformed).await], [Duration::ZERO, REPEATED_REFUSAL_PAUSE]);
    assert_eq!([pause("2", malformed).await, pause("2", malformed).await], [Duration::ZERO, REPEATED_REFUSAL_PAUSE]);
    assert_eq!([pause("3", &["a"]).await, pause("2", malformed).await], [Duration::ZERO; 2]);
}

#[test]
fn delay_doubles_up_to_the_longest_and_half_of_it_is_random() {
    assert_eq!([delay(0, 0), delay(0, 255)], [SHORTEST_DELAY / 2, SHORTEST_DELAY]);
    assert_eq!([delay(1, 0), delay(1, 255)], [SHORTEST_DELAY, 2 * SHORTEST_DELAY]);
    for attempts in [6, 100, u32::MAX] {
        assert_eq!([delay(attempts, 0), delay(attempts, 255)], [LONGEST_DELAY / 2, LONGEST_DELAY]);
    }
    // At worst, an attempt that began during an outage fails, and the next one takes as long.
    assert!(LONGEST_DELAY + 2 * CONNECT_TIMEOUT <= Duration::from_secs(20));
}
