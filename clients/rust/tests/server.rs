//! Decisions of the server, and fallbacks.

mod support;

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use redis_ratelimit_client::{Batch, Error, Limit, OnOutage, Options, SetupErrors, Source, Take};
use support::{Server, long_timeout, until};

#[tokio::test]
async fn limit_allows_exactly_its_units() {
    let server = Server::start();
    let limiter = server.limiter(Options { prefix: "app:".to_owned(), ..long_timeout() }).await;
    limiter.check().await.unwrap();
    let api = limiter.limit("api", [Limit::fixed(3, "1h").named("calls")]).unwrap();
    for remaining in [2, 1, 0] {
        let decision = api.take("user:42").await.unwrap();
        assert!(decision.allowed && !decision.is_degraded());
        assert_eq!((decision.limit, decision.remaining), (Some(3), Some(remaining)));
    }
    let denied = api.take("user:42").await.unwrap();
    assert!(!denied.allowed);
    assert!(denied.wait.unwrap() > Duration::from_secs(3590));
    assert_eq!(api.peek("user:42").await.unwrap().remaining, Some(0));
    assert_eq!(api.give_back("user:42", 1).await.unwrap().remaining, Some(1));
    assert!(api.reset("user:42").await.unwrap());
    assert!(!api.reset("user:42").await.unwrap());
    // The key consists of the prefix, the name and the user.
    api.take("user:42").await.unwrap();
    let mut connection = server.connection().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    assert_eq!(keys, ["app:api:user:42"]);
}

#[tokio::test]
async fn idempotency_keys_match_the_table() {
    let server = Server::start();
    let cases: serde_json::Value = serde_json::from_str(include_str!("../../events.json")).unwrap();
    let cases = cases["ids"].as_array().unwrap();
    assert!(cases.len() > 10);
    let mut connection = server.connection().await;
    let set = redis::cmd("RL.POLICYSET").arg(&["plan", "FIXED", "10", "1h"]).to_owned();
    let _: i64 = set.query_async(&mut connection).await.unwrap();
    for (number, case) in cases.iter().enumerate() {
        let once = case.get("limiter_once").is_none_or(|once| once.as_bool().unwrap());
        let limiter = server.limiter(Options { once, ..long_timeout() }).await;
        let limit = case.get("limit").map_or_else(
            || Limit::policy([case["policy"].as_str().unwrap()]),
            |limit| Limit::fixed(limit.as_f64().unwrap(), "1h"),
        );
        let mut take = Take::units(case.get("cost").map_or(1.0, |cost| cost.as_f64().unwrap()));
        take = match case.get("once") {
            Some(serde_json::Value::String(id)) => take.once(id),
            Some(serde_json::Value::Bool(true)) => take.refundable(),
            Some(_) => take.unnamed(),
            None => take,
        };
        if let Some(ttl) = case.get("ttl") {
            take = take.remembered(ttl.as_str().unwrap());
        }
        let decision = limiter.take(&format!("key:{number}"), &[limit], &take).await.unwrap();
        assert_eq!(decision.id.is_some(), case["id"].as_bool().unwrap(), "{case}");
    }
}

#[tokio::test]
async fn charge_is_settled() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    let tokens = limiter.limit("llm", [Limit::fixed(10_000, "1h")]).unwrap();
    let decision = tokens.take_with("alice", &Take::units(4000)).await.unwrap();
    let settled = tokens.settle("alice", decision.id.as_deref().unwrap(), 1200).await.unwrap();
    assert_eq!(settled.remaining, Some(8800));
    assert!(!tokens.settle("alice", "unknown", 1).await.unwrap().allowed);
}

#[tokio::test]
async fn several_keys_are_charged_together_or_not_at_all() {
    let server = Server::start();
    let limiter = server.limiter(Options { prefix: "app:".to_owned(), ..long_timeout() }).await;
    let limits_by_key = [("{acme}:ann", Limit::fixed(2, "1h")), ("{acme}:all", Limit::fixed(100, "1h").costing(10))];
    let first = limiter.take_all(&limits_by_key, &Take::default()).await.unwrap();
    assert!(first.allowed && first.id.is_some());
    // The limit that would run out first governs.
    assert_eq!((first.limit, first.remaining), (Some(2), Some(1)));
    assert_eq!(first.each.iter().map(|one| one.remaining).collect::<Vec<_>>(), [Some(1), Some(90)]);
    limiter.take_all(&limits_by_key, &Take::default()).await.unwrap();
    let denied = limiter.take_all(&limits_by_key, &Take::default()).await.unwrap();
    assert!(!denied.allowed && denied.wait > Some(Duration::from_secs(3000)));
    assert_eq!(
        denied.each.iter().map(|one| (one.allowed, one.remaining)).collect::<Vec<_>>(),
        [(false, Some(0)), (true, Some(80))]
    );
    assert_eq!(limiter.peek_all(&limits_by_key, 1).await.unwrap().remaining, Some(0));
    let settled = limiter
        .settle(limits_by_key[0].0, &[limits_by_key[0].1.clone()], first.id.as_deref().unwrap(), 0)
        .await
        .unwrap();
    assert_eq!(settled.remaining, Some(1));
}

#[tokio::test]
async fn call_waits_unless_it_would_pass_too_late() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    let bucket = [Limit::token_bucket(1, 1, "50ms")];
    for _ in 0..4 {
        let decision = limiter.take("key", &bucket, &Take::default().waiting(Duration::from_secs(60))).await.unwrap();
        assert!(decision.allowed);
    }
    let slow = [Limit::fixed(1, "1h")];
    let waiting_call = Take::default().waiting(Duration::from_secs(60));
    assert!(limiter.take("slow", &slow, &waiting_call).await.unwrap().allowed);
    // A wait of an hour is denied at once.
    assert!(!limiter.take("slow", &slow, &waiting_call).await.unwrap().allowed);
}

#[tokio::test]
async fn waiters_of_a_bucket_reserve_in_one_call() {
    let server = Server::start();
    let limiter = Arc::new(server.limiter(long_timeout()).await);
    let callers = 50;
    let waits: Vec<_> = (0..callers)
        .map(|_| {
            let limiter = limiter.clone();
            let bucket = [Limit::token_bucket(1, 100, "1s")];
            let take = Take::default().waiting(Duration::from_secs(60));
            tokio::spawn(async move { limiter.take("line", &bucket, &take).await.unwrap() })
        })
        .collect();
    for wait in waits {
        let decision = wait.await.unwrap();
        assert!(decision.allowed && decision.wait == Some(Duration::ZERO));
    }
    assert_eq!(server.calls("rl.take").await, callers);
}

#[tokio::test]
async fn dropped_wait_refunds_its_reservation() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    let bucket = [Limit::token_bucket(10, 1, "1h")];
    limiter.take("line", &bucket, &Take::units(10)).await.unwrap();
    let take = Take::default().waiting(Duration::from_secs(7200));
    let waiting = tokio::spawn({
        let (limiter, bucket) = (limiter.clone(), bucket.clone());
        async move { limiter.take("line", &bucket, &take).await }
    });
    let wait = async || limiter.peek("line", &bucket, 1).await.unwrap().wait.unwrap();
    until(async || wait().await > Duration::from_secs(3600)).await;
    waiting.abort();
    until(async || wait().await <= Duration::from_secs(3600)).await;
}

#[tokio::test]
async fn units_above_the_limit_are_denied_without_a_call() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    let limit = [Limit::fixed(150, "1h")];
    let units = Arc::new(limiter.units("hot", &limit, Batch::default()));
    let takes: Vec<_> = (0..400)
        .map(|_| {
            let units = units.clone();
            tokio::spawn(async move { units.take(1).await.unwrap().allowed })
        })
        .collect();
    let mut passed = 0;
    for take in takes {
        passed += usize::from(take.await.unwrap());
    }
    assert_eq!((passed, server.calls("rl.take").await), (150, 1));
}

#[tokio::test]
async fn units_are_taken_in_batches_and_refunded() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    let limit = [Limit::fixed(1000, "1h")];
    let batch = Batch { peers: Some(1), keep: Duration::from_secs(3600), ..Batch::default() };
    let units = limiter.units("hot", &limit, batch);
    assert!(units.take(100).await.unwrap().allowed);
    for _ in 0..150 {
        assert!(units.take(1).await.unwrap().allowed);
    }
    let calls = server.calls("rl.take").await;
    assert!(calls < 15, "{calls}");
    units.close().await.unwrap();
    assert_eq!(limiter.peek("hot", &limit, 1).await.unwrap().remaining, Some(750));
    let shared_units = Arc::new(limiter.units("hot", &limit, batch));
    let takes: Vec<_> = (0..1000)
        .map(|_| {
            let units = shared_units.clone();
            tokio::spawn(async move { units.take(1).await.unwrap().allowed })
        })
        .collect();
    let mut passed = 0;
    for take in takes {
        passed += usize::from(take.await.unwrap());
    }
    assert_eq!(passed, 750);
    let calls = server.calls("rl.take").await;
    assert!(!shared_units.take(1).await.unwrap().allowed);
    assert_eq!(server.calls("rl.take").await, calls, "a known denial needs no call");
    // A cost above the limit never passes.
    assert_eq!(shared_units.take(2000).await.unwrap().wait, None);
    // Dropping the units gives them back.
    limiter.reset("hot").await.unwrap();
    let dropped = limiter.units("hot", &limit, batch);
    assert!(dropped.take(100).await.unwrap().allowed);
    assert!(dropped.take(1).await.unwrap().allowed);
    assert!(limiter.peek("hot", &limit, 1).await.unwrap().remaining < Some(899));
    drop(dropped);
    until(async || limiter.peek("hot", &limit, 1).await.unwrap().remaining == Some(899)).await;
}

#[tokio::test]
async fn expired_units_of_an_idle_process_are_refunded() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    let limit = [Limit::fixed(1000, "1h")];
    let batch = Batch { peers: Some(1), keep: Duration::from_millis(50), ..Batch::default() };
    let units = limiter.units("hot", &limit, batch);
    assert!(units.take(100).await.unwrap().allowed);
    assert!(units.take(1).await.unwrap().allowed);
    until(async || limiter.peek("hot", &limit, 1).await.unwrap().remaining == Some(899)).await;
    for batch in [Batch { largest: Some(0), ..batch }, Batch { peers: Some(0), ..batch }] {
        let result = limiter.units("hot", &limit, batch).take(1).await;
        assert!(matches!(result, Err(Error::Call(why)) if why.contains("from 1")));
    }
}

#[tokio::test]
async fn policy_with_force_is_refused_for_units_and_waits() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let limiter = server.limiter(long_timeout()).await;
    let words = ["plan", "FIXED", "5", "1h", "FORCE"];
    let _: i64 = redis::cmd("RL.POLICYSET").arg(&words).query_async(&mut connection).await.unwrap();
    let plan = [Limit::policy(["plan"])];
    let waiting = Take::default().waiting(Duration::from_secs(1));
    for result in [
        limiter.units("hot", &plan, Batch::default()).take(1).await,
        limiter.take("hot", &plan, &waiting).await,
        limiter.take_all(&[("{hot}:a", Limit::fixed(5, "1h")), ("{hot}:b", plan[0].clone())], &waiting).await,
    ] {
        assert!(matches!(&result, Err(Error::Call(why)) if why.contains("FORCE")), "{result:?}");
    }
    assert_eq!(limiter.peek("hot", &[Limit::fixed(5, "1h")], 1).await.unwrap().remaining, Some(5));
}

#[tokio::test]
async fn units_of_a_policy_that_gets_force_are_at_most_its_limit() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let limiter = server.limiter(long_timeout()).await;
    let words = ["plan", "FIXED", "5", "1h"];
    let _: i64 = redis::cmd("RL.POLICYSET").arg(&words).query_async(&mut connection).await.unwrap();
    let units = limiter.units("hot", &[Limit::policy(["plan"])], Batch::default());
    let mut passed = 0;
    for _ in 0..3 {
        passed += usize::from(units.take(1).await.unwrap().allowed);
    }
    let _: i64 = redis::cmd("RL.POLICYSET").arg(&words).arg("FORCE").query_async(&mut connection).await.unwrap();
    for _ in 0..20 {
        // After a second the limiter asks again for FORCE, and units are an error.
        passed += usize::from(units.take(1).await.is_ok_and(|decision| decision.allowed));
    }
    assert_eq!(passed, 5);
}

#[tokio::test]
async fn waiting_takes_share_a_failed_request() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    let units = Arc::new(limiter.units("hot", &[Limit::policy(["missing"])], Batch::default()));
    let takes: Vec<_> = (0..16)
        .map(|_| {
            let units = units.clone();
            tokio::spawn(async move { matches!(units.take(1).await, Err(Error::NoPolicy(_))) })
        })
        .collect();
    for take in takes {
        assert!(take.await.unwrap());
    }
    assert_eq!((server.calls("rl.take").await, server.calls("rl.limit").await), (0, 1));
}

#[tokio::test]
async fn denial_is_remembered_until_the_key_changes() {
    let server = Server::start();
    let limit = [Limit::fixed(2, "1h")];
    let limiter = server.limiter(long_timeout()).await.beside(server.client());
    let exhaust = async || {
        while limiter.take("key", &limit, &Take::default()).await.unwrap().allowed {}
    };
    exhaust().await;
    // Without tracking the denial would be remembered for a second.
    until(async || {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        limiter.take("key", &limit, &Take::default()).await.unwrap().is_remembered
    })
    .await;
    let before = server.calls("rl.take").await;
    for _ in 0..1000 {
        let denied = limiter.take("key", &limit, &Take::default()).await.unwrap();
        assert!(!denied.allowed && denied.is_remembered && !denied.is_degraded());
    }
    assert_eq!(server.calls("rl.take").await, before);
    // Another call for the key goes to the server.
    assert!(!limiter.take("key", &limit, &Take::units(2)).await.unwrap().is_remembered);
    let other = server.limiter(long_timeout()).await;
    assert!(other.reset("key").await.unwrap());
    until(async || limiter.take("key", &limit, &Take::default()).await.unwrap().allowed).await;
    // A change by this limiter invalidates the denial at once.
    exhaust().await;
    limiter.give_back("key", &limit, 1).await.unwrap();
    assert!(limiter.take("key", &limit, &Take::default()).await.unwrap().allowed);
    // Disabled by an option.
    let retrying = server.limiter(Options { remember_denials: false, ..long_timeout() }).await;
    for _ in 0..2 {
        assert!(!retrying.take("key", &limit, &Take::default()).await.unwrap().is_remembered);
    }
}

#[tokio::test]
async fn every_call_by_a_policy_with_force_reaches_the_server() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let words = ["tokens", "FIXED", "10", "1h", "FORCE"];
    let _: i64 = redis::cmd("RL.POLICYSET").arg(&words).query_async(&mut connection).await.unwrap();
    let limiter = server.limiter(long_timeout()).await;
    let limit = [Limit::policy(["tokens"])];
    let mut allowed = Vec::new();
    for cost in [8, 5, 1] {
        allowed.push(limiter.take("user:42", &limit, &Take::units(cost)).await.unwrap().allowed);
    }
    assert_eq!(allowed, [true, false, false]);
    // All three calls are charged: 14 units under a limit of 10.
    let remaining = limiter.take("user:42", &[Limit::fixed(20, "1h")], &Take::units(0)).await.unwrap().remaining;
    assert_eq!(remaining, Some(6));
}

#[tokio::test]
async fn account_without_client_tracking_is_not_retried_each_second() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let no_tracking = ["SETUSER", "no_tracking", "on", ">secret", "~*", "&*", "+@all", "-client|tracking"];
    redis::cmd("ACL").arg(&no_tracking).exec_async(&mut connection).await.unwrap();
    let client = redis::Client::open(format!("redis://no_tracking:secret@127.0.0.1:{}", server.port)).unwrap();
    let limiter = server.limiter(long_timeout()).await.beside(client);
    let exhaust = async |key: &str| {
        while limiter.take(key, &[Limit::fixed(1, "1h")], &Take::default()).await.unwrap().allowed {}
    };
    // The second denial of a key is worth tracking.
    until(async || {
        exhaust("key").await;
        server.rejected_calls("client|tracking").await == 1
    })
    .await;
    for _ in 0..2 {
        exhaust("another").await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    exhaust("another").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.rejected_calls("client|tracking").await, 1);
}

/// Returns a sketch with half a unit more, as the first charge of an item may briefly count a millionth too much.
fn addresses() -> Limit {
    Limit::sketch(3.5, 3, "1h", "addresses")
}

#[tokio::test]
async fn key_of_a_call_is_the_item_of_a_sketch() {
    let server = Server::start();
    let limiter = server.limiter(Options { prefix: "app:".to_owned(), ..long_timeout() }).await.beside(server.client());
    let mut connection = server.connection().await;
    let words = ["per-address", "SKETCH", "3.5", "3", "1h"];
    let _: i64 = redis::cmd("RL.POLICYSET").arg(&words).query_async(&mut connection).await.unwrap();
    for limit in [addresses(), Limit::policy(["per-address"]).of_items("by-policy")] {
        let limit = [limit];
        for address in ["203.0.113.7", "203.0.113.8"] {
            for remaining in [2, 1, 0] {
                let decision = limiter.take(address, &limit, &Take::default()).await.unwrap();
                assert_eq!((decision.allowed, decision.remaining, decision.id), (true, Some(remaining), None));
            }
            for is_remembered in [false, true] {
                let denied = limiter.take(address, &limit, &Take::default()).await.unwrap();
                assert_eq!((denied.allowed, denied.is_remembered), (false, is_remembered));
            }
            assert_eq!(limiter.peek(address, &limit, 1).await.unwrap().remaining, Some(0));
        }
        assert_eq!(limiter.take("203.0.113.9", &limit, &Take::units(9).up_to()).await.unwrap().granted, Some(3));
        let api = limiter.limit("api", limit.clone()).unwrap();
        assert_eq!(api.take("you").await.unwrap().remaining, Some(2));
        assert_eq!(limiter.peek("api:you", &limit, 1).await.unwrap().remaining, Some(2));
        let limits_by_key = [("new", limit[0].clone()), ("user:42", Limit::fixed(5, "1h"))];
        let all = limiter.take_all(&limits_by_key, &Take::units(2)).await.unwrap();
        assert_eq!((all.each[0].remaining, all.id), (Some(1), None));
    }
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    keys.sort();
    assert_eq!(keys, ["app:addresses", "app:by-policy", "app:user:42"]);
    // The key changes with each call for any item, so it is not tracked.
    assert_eq!(server.calls("client|tracking").await, 0);
}

#[tokio::test]
async fn unsupported_options_of_a_sketch_are_rejected_before_sending() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    for limit in [addresses(), Limit::policy(["missing"]).of_items("by-policy")] {
        let (one, bound) = ([limit.clone()], limiter.limit("api", [limit.clone()]).unwrap());
        let outcomes = [
            limiter.take("item", &one, &Take::default().once("id")).await,
            limiter.take("item", &one, &Take::default().refundable()).await,
            limiter.take("item", &one, &Take::default().remembered("1m")).await,
            limiter.take_all(&[("item", limit.clone())], &Take::default().refundable()).await,
            limiter.settle("item", &one, "id", 1).await,
            limiter.give_back("item", &one, 1).await,
            limiter.units("item", &one, Batch::default()).take(1).await,
            bound.settle("item", "id", 1).await,
        ];
        for outcome in outcomes {
            assert!(matches!(outcome, Err(Error::Call(why)) if why.contains("a sketch cannot tell apart")));
        }
        assert!(matches!(bound.reset("item").await, Err(Error::Call(_))));
        let result = limiter.take("item", &[limit.clone(), Limit::fixed(5, "1h")], &Take::default()).await;
        assert!(matches!(result, Err(Error::Call(why)) if why.contains("alone in its key")));
    }
    for limit in [addresses().named("calls"), Limit::fixed(5, "1h").of_items("addresses")] {
        assert!(matches!(limiter.take("item", &[limit], &Take::default()).await, Err(Error::Call(_))));
    }
    assert_eq!(server.calls("rl.take").await + server.calls("rl.limit").await, 0);
}

#[tokio::test]
async fn denial_without_tracking_is_remembered_for_a_second() {
    let server = Server::start();
    let limit = [Limit::fixed(1, "1h")];
    let limiter = server.limiter(long_timeout()).await;
    while limiter.take("key", &limit, &Take::default()).await.unwrap().allowed {}
    let mut connection = server.connection().await;
    redis::cmd("DEL").arg("key").exec_async(&mut connection).await.unwrap();
    until(async || limiter.take("key", &limit, &Take::default()).await.unwrap().allowed).await;
}

#[tokio::test]
async fn malformed_calls_are_errors_not_outages() {
    let server = Server::start();
    let limiter = server.limiter(Options { failures: 1, pause: Duration::from_secs(3600), ..long_timeout() }).await;
    for cost in [-1.0, f64::NAN, 1e13] {
        let result = limiter.take("key", &[Limit::fixed(3, "1h")], &Take::units(cost)).await;
        assert!(matches!(result, Err(Error::Call(why)) if why.contains("cost")));
    }
    assert!(matches!(limiter.take("key", &[], &Take::default()).await, Err(Error::Call(_))));
    let nonsense = limiter.take("key", &[Limit::fixed(3, "soon")], &Take::default()).await;
    assert!(matches!(nonsense, Err(Error::Call(why)) if why.contains("soon")));
    let mut connection = server.connection().await;
    let _: () = redis::cmd("SET").arg(&["taken", "text"]).query_async(&mut connection).await.unwrap();
    let wrong = limiter.take("taken", &[Limit::fixed(3, "1h")], &Take::default()).await;
    assert!(matches!(wrong, Err(Error::Setup(why)) if why.contains("another key")));
    let tolerant = server.limiter(Options { setup_errors: SetupErrors::Outage, ..long_timeout() }).await;
    let decision = tolerant.take("taken", &[Limit::fixed(3, "1h")], &Take::default()).await.unwrap();
    assert!(decision.allowed && decision.is_degraded());
    // The error does not affect other calls.
    let decision = limiter.take("key", &[Limit::fixed(3, "1h")], &Take::default()).await.unwrap();
    assert_eq!(decision.source, Source::Server);
}

#[test]
fn port_of_a_stopped_server_is_not_reused() {
    let mut server = Server::start();
    server.stop();
    let other = UdpSocket::bind(("127.0.0.1", server.port));
    assert_eq!(other.unwrap_err().kind(), ErrorKind::AddrInUse);
}

#[tokio::test]
async fn on_outage_decides_in_an_outage() {
    let mut server = Server::start();
    let mut limiters = Vec::new();
    for on_outage in [OnOutage::Open, OnOutage::Closed, OnOutage::Raise] {
        let options = Options { on_outage, timeout: Duration::from_millis(100), ..Options::default() };
        limiters.push(server.limiter(options).await);
    }
    server.stop();
    let limit = [Limit::fixed(3, "1h")];
    for _ in 0..10 {
        let open = limiters[0].take("key", &limit, &Take::default()).await.unwrap();
        assert!(open.allowed && open.is_degraded() && open.limit.is_none());
        assert!(matches!(open.error.as_deref(), Some(Error::Unavailable(_))));
        let closed = limiters[1].take("key", &limit, &Take::default()).await.unwrap();
        assert!(!closed.allowed && closed.wait == Some(Duration::from_secs(1)));
        let raised = limiters[2].take("key", &limit, &Take::default()).await;
        assert!(matches!(raised, Err(Error::Unavailable(_))));
    }
}
