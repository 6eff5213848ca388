//! In a cluster every call goes directly to the node of its key.

#![cfg(feature = "cluster")]

mod support;

use redis_ratelimit_client::{Batch, Limit, Limiter, Source, Take};
use support::{Cluster, long_timeout};

#[tokio::test]
async fn calls_go_to_the_right_node() {
    let cluster = Cluster::start().await;
    let limiter = Limiter::with_options(cluster.connection().await, long_timeout());
    limiter.check().await.unwrap();
    for key in 0..60 {
        let user = format!("user:{key}");
        let api = limiter.limit("api", [Limit::fixed(100, "1h")]).unwrap();
        let decision = api.take_with(&user, &Take::units(5)).await.unwrap();
        assert_eq!((decision.source, decision.remaining), (Source::Server, Some(95)));
        assert_eq!(api.peek(&user).await.unwrap().remaining, Some(95));
        assert_eq!(api.settle(&user, &decision.id.unwrap(), 1).await.unwrap().remaining, Some(99));
        let (own, all) = (format!("{{{user}}}:own"), format!("{{{user}}}:all"));
        let limits_by_key = [(own.as_str(), Limit::fixed(1, "1h")), (all.as_str(), Limit::fixed(9, "1h"))];
        assert!(limiter.take_all(&limits_by_key, &Take::default()).await.unwrap().allowed);
        assert!(!limiter.peek_all(&limits_by_key, 1).await.unwrap().allowed);
        let pool = limiter.limit("pool", [Limit::concurrency(1, "1h")]).unwrap();
        pool.lease(&user).await.unwrap().release().await.unwrap();
        let units = limiter.units(&user, &[Limit::fixed(100, "1h")], Batch::default());
        assert!(units.take(1).await.unwrap().allowed);
        units.close().await.unwrap();
        assert!(api.reset(&user).await.unwrap());
    }
    // All three nodes have keys, and no call was redirected.
    for server in &cluster.servers {
        assert!(server.calls("rl.take").await > 10 && server.calls("rl.mtake").await > 5);
        assert_eq!(server.moved_errors().await, 0, "{}", server.port);
    }
}
