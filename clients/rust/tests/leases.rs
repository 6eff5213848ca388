//! Leases: acquiring, losing, and waiting for them.

mod support;

use std::time::Duration;

use redis_ratelimit_client::{Error, Limit};
use support::{Server, long_timeout, until};

#[tokio::test]
async fn policy_with_a_concurrency_limit_gets_an_id() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let words = ["jobs", "CONCURRENCY", "2", "1h", "FIXED", "1000", "1h"];
    let _: i64 = redis::cmd("RL.POLICYSET").arg(&words).query_async(&mut connection).await.unwrap();
    let limiter = server.limiter(long_timeout()).await;
    let jobs = limiter.limit("jobs", [Limit::policy(["missing", "jobs"])]).unwrap();
    for allowed in [true, true, false] {
        let decision = jobs.take("acme").await.unwrap();
        assert_eq!((decision.allowed, decision.id.is_some()), (allowed, true));
    }
    let missing = limiter.limit("jobs", [Limit::policy(["missing"])]).unwrap().take("acme").await;
    assert!(matches!(missing, Err(Error::NoPolicy(why)) if why.contains("RL.POLICYSET")));
}

#[tokio::test]
async fn leases_are_released_explicitly_or_on_drop() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    let pool = limiter.limit("pool", [Limit::concurrency(1, "1h")]).unwrap();
    let lease = pool.lease("exports").await.unwrap();
    assert!(!lease.is_lost());
    assert!(matches!(pool.lease("exports").await, Err(Error::Denied(_))));
    lease.release().await.unwrap();
    drop(pool.lease("exports").await.unwrap());
    let mut tries = 0;
    while pool.lease("exports").await.is_err() {
        tries += 1;
        assert!(tries < 1000, "a dropped lease is released");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn lease_of_another_holder_is_lost() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    let pool = limiter.limit("pool", [Limit::concurrency(1, "300ms")]).unwrap();
    let lease = pool.lease("exports").await.unwrap();
    // In one transaction, so that no renewal comes between.
    let key = pool.key_of("exports");
    let mut transaction = redis::pipe();
    transaction.atomic().cmd("DEL").arg(&key).cmd("RL.ACQUIRE").arg(&[&key, "1", "1h", "another"]);
    transaction.exec_async(&mut server.connection().await).await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), lease.lost()).await.unwrap();
    assert!(lease.is_lost());
}

#[tokio::test]
async fn waiters_get_the_lease_in_order() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await.beside(server.client());
    let pool = limiter.limit("pool", [Limit::concurrency(1, "1h")]).unwrap();
    let lease = pool.lease("exports").await.unwrap();
    let hour = Duration::from_secs(3600);
    let spawn_waiter = || {
        let pool = pool.clone();
        tokio::spawn(async move { pool.lease_within("exports", hour).await.unwrap() })
    };
    let first_waiter = spawn_waiter();
    until(async || server.blocked_clients().await == 1).await;
    let second_waiter = spawn_waiter();
    until(async || server.blocked_clients().await == 2).await;
    // A caller that no longer waits has no place in the queue.
    first_waiter.abort();
    until(async || server.blocked_clients().await == 1).await;
    lease.release().await.unwrap();
    let next_lease = second_waiter.await.unwrap();
    let short = pool.lease_within("exports", Duration::from_millis(50)).await;
    assert!(matches!(short, Err(Error::Denied(_))));
    // Without a client of its own the limiter retries.
    let retrying = server.limiter(long_timeout()).await.limit("pool", [Limit::concurrency(1, "1h")]).unwrap();
    let third_waiter = tokio::spawn(async move { retrying.lease_within("exports", hour).await.unwrap() });
    until(async || server.calls("rl.acquire").await > 6).await;
    next_lease.release().await.unwrap();
    assert!(!third_waiter.await.unwrap().is_lost());
}

/// The server may have granted the lease long before the caller has its reply.
#[tokio::test]
async fn lease_is_renewed_after_a_wait_of_half_its_ttl() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await.beside(server.client());
    let holder = limiter.limit("pool", [Limit::concurrency(1, "1h")]).unwrap().lease("exports").await.unwrap();
    let short = limiter.limit("pool", [Limit::concurrency(1, "2s")]).unwrap();
    let waiter = tokio::spawn(async move { short.lease_within("exports", Duration::from_secs(3600)).await.unwrap() });
    until(async || server.blocked_clients().await == 1).await;
    let calls_before = server.calls("rl.acquire").await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    holder.release().await.unwrap();
    assert!(!waiter.await.unwrap().is_lost());
    assert_eq!(server.calls("rl.acquire").await, calls_before + 1);
}
