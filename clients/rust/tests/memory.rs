//! `Limiter::local`: a limiter without a server. The unit tests of `memory` compare its decisions.

use std::time::{Duration, UNIX_EPOCH};

use redis_ratelimit_client::{Batch, Error, Limit, Limiter, ManualClock, Memory, Take};

fn local() -> (Limiter<Memory>, ManualClock) {
    let clock = ManualClock::at(UNIX_EPOCH + Duration::from_secs(1_709_208_000));
    (Limiter::local_at(&clock), clock)
}

#[tokio::test]
async fn denied_call_passes_after_its_wait() {
    let limits = [
        Limit::token_bucket(2, 1, "1m"),
        Limit::fixed(2, "1m"),
        Limit::sliding(2, "1m"),
        Limit::sliding_strict(2, "1m"),
        Limit::sliding_log(2, "1m"),
    ];
    for limit in limits {
        let (limiter, clock) = local();
        let api = limiter.limit("api", [limit]).unwrap();
        for allowed in [true, true, false] {
            assert_eq!(api.take("alice").await.unwrap().allowed, allowed);
        }
        let wait = api.take("alice").await.unwrap().wait.unwrap();
        clock.advance(wait.saturating_sub(Duration::from_millis(1)));
        assert!(!api.take("alice").await.unwrap().allowed);
        clock.advance(Duration::from_millis(1));
        assert!(api.take("alice").await.unwrap().allowed);
        assert!(api.take("bob").await.unwrap().allowed);
    }
}

#[tokio::test]
async fn clock_stops_at_its_latest_time() {
    let (limiter, clock) = local();
    let api = limiter.limit("api", [Limit::fixed(1, "1m")]).unwrap();
    assert!(api.take("alice").await.unwrap().allowed);
    assert!(!api.take("alice").await.unwrap().allowed);
    clock.advance(Duration::MAX);
    clock.advance(Duration::MAX);
    assert!(api.take("alice").await.unwrap().allowed);
}

#[tokio::test]
async fn all_limits_are_charged_or_none() {
    let (limiter, _) = local();
    let limits = [Limit::token_bucket(2, 2, "1s"), Limit::fixed(3, "1d")];
    assert!(limiter.take("k", &limits, &Take::units(2)).await.unwrap().allowed);
    assert!(!limiter.take("k", &limits, &Take::units(1)).await.unwrap().allowed);
    assert_eq!(limiter.peek("k", &limits[1..], 0).await.unwrap().remaining, Some(1));
    let limits_by_key = [("a", Limit::fixed(5, "1m")), ("b", Limit::fixed(1, "1m"))];
    assert!(limiter.take_all(&limits_by_key, &Take::default()).await.unwrap().allowed);
    assert!(!limiter.take_all(&limits_by_key, &Take::default()).await.unwrap().allowed);
    assert_eq!(limiter.peek("a", &[Limit::fixed(5, "1m")], 1).await.unwrap().remaining, Some(4));
}

#[tokio::test]
async fn charge_counts_once_and_is_settled() {
    let (limiter, _) = local();
    let limits = [Limit::fixed(100, "1m")];
    for _ in 0..2 {
        let decision = limiter.take("k", &limits, &Take::units(40).once("a")).await.unwrap();
        assert_eq!(decision.remaining, Some(60));
    }
    assert_eq!(limiter.settle("k", &limits, "a", 10).await.unwrap().remaining, Some(90));
    assert!(!limiter.settle("k", &limits, "nobody", 10).await.unwrap().allowed);
    assert_eq!(limiter.give_back("k", &limits, 4).await.unwrap().remaining, Some(94));
    assert_eq!(limiter.take("k", &limits, &Take::units(200).up_to()).await.unwrap().granted, Some(94));
    assert!(!limiter.take("k", &limits, &Take::units(5).force()).await.unwrap().allowed);
    assert!(limiter.reset("k").await.unwrap());
    assert_eq!(limiter.peek("k", &limits, 1).await.unwrap().remaining, Some(100));
}

#[tokio::test]
async fn wait_advances_the_clock() {
    let (limiter, clock) = local();
    let limits = [Limit::token_bucket(1, 1, "1h")];
    let (hour, other) = (Duration::from_secs(3600), clock.clone());
    assert!(limiter.take("k", &limits, &Take::default()).await.unwrap().allowed);
    assert!(limiter.take("k", &limits, &Take::default().waiting(2 * hour)).await.unwrap().allowed);
    // A clone shows the same time: an hour later, the bucket has recovered.
    other.advance(hour.saturating_sub(Duration::from_millis(1)));
    assert!(!limiter.peek("k", &limits, 1).await.unwrap().allowed);
    assert!(!limiter.take("k", &limits, &Take::default().waiting(Duration::ZERO)).await.unwrap().allowed);
    other.advance(Duration::from_millis(1));
    assert!(limiter.peek("k", &limits, 1).await.unwrap().allowed);
}

#[tokio::test]
async fn lease_is_held_until_it_is_released_or_expires() {
    let (limiter, clock) = local();
    let limit = Limit::concurrency(1, "1h");
    let lease = limiter.lease("pool", &limit).await.unwrap();
    assert!(matches!(limiter.lease("pool", &limit).await, Err(Error::Denied(_))));
    clock.advance(Duration::from_secs(3600));
    let next = limiter.lease("pool", &limit).await.unwrap();
    drop(lease);
    next.release().await.unwrap();
    assert!(limiter.lease("pool", &limit).await.is_ok());
}

#[tokio::test]
async fn server_only_features_are_rejected() {
    let (limiter, _) = local();
    for limit in [Limit::policy(["plan"]), Limit::sketch(5, 5, "1m", "addresses")] {
        let result = limiter.take("k", &[limit], &Take::default()).await;
        assert!(matches!(&result, Err(Error::Call(why)) if why.contains("need a server")), "{result:?}");
    }
}

#[tokio::test]
async fn malformed_calls_return_the_servers_errors() {
    let (limiter, _) = local();
    let duplicates = [Limit::fixed(5, "1m"), Limit::fixed(6, "60s")];
    assert!(matches!(limiter.take("k", &duplicates, &Take::default()).await, Err(Error::Call(_))));
    assert!(limiter.take("k", &[Limit::fixed(1000, "1m")], &Take::default()).await.unwrap().allowed);
    let other = limiter.take("k", &[Limit::sliding_log(1000, "1m")], &Take::default()).await;
    assert!(matches!(other, Err(Error::Setup(why)) if why.contains("WRONGTYPE")));
}

#[tokio::test]
async fn units_are_spent_in_batches() {
    let (limiter, _) = local();
    let units = limiter.units("hot", &[Limit::fixed(10, "1m")], Batch { largest: Some(4), ..Batch::default() });
    let mut allowed = 0;
    for _ in 0..11 {
        allowed += u32::from(units.take(1).await.unwrap().allowed);
    }
    assert_eq!(allowed, 10);
}

#[tokio::test]
async fn real_time_is_the_default() {
    let limiter = Limiter::local();
    let limits = [Limit::fixed(1, "1us")];
    assert!(limiter.take("k", &limits, &Take::default()).await.unwrap().allowed);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(limiter.take("k", &limits, &Take::default()).await.unwrap().allowed);
}
