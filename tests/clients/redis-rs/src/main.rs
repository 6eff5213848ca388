//! redis-rs, as docs/clients.md shows it; `tests/support/libraries.py` describes the questions.

use redis::cluster_async::ClusterConnection;
use redis::{RedisResult, Value};
use std::io::stdin;

// [one server]
use redis::aio::ConnectionManager;
// [end]

// [cluster]
use redis::cluster::ClusterClient;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, Slot, SlotAddr};

/// The node that has the key.
fn node_of(key: &str, role: SlotAddr) -> RoutingInfo {
    let route = Route::with_slot(Slot::for_key(key), role);
    RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route))
}
// [end]

// [replicas]
use redis::cluster_read_routing::RandomReplicaStrategy;
// [end]

#[tokio::main(flavor = "current_thread")]
async fn main() -> RedisResult<()> {
    let mut args = std::env::args().skip(1);
    let mode = args.next().unwrap_or_default();
    let url = format!("redis://127.0.0.1:{}", args.next().unwrap_or_default());
    if mode == "server" {
        return one_server(&url).await;
    }
    let mut cluster = match mode.as_str() {
        "replicas" => with_replicas(&url).await?,
        "cluster-no-resends" => never_twice(&url).await?,
        _ => with_defaults(&url).await?,
    };
    for line in stdin().lines() {
        let words: Vec<String> = line?.split(' ').map(String::from).collect();
        let Some((verb, words)) = words.split_first() else {
            continue;
        };
        answer(match verb.as_str() {
            "plain" => command(words).query_async(&mut cluster).await,
            "one" => one(cluster.clone(), &words[0]).await,
            "several" => several(cluster.clone(), &words[0]).await,
            "pipeline" => pipeline(cluster.clone(), words).await,
            _ => peek(cluster.clone(), &words[0]).await,
        });
    }
    Ok(())
}

async fn one_server(url: &str) -> RedisResult<()> {
    // [one server]
    let mut redis = ConnectionManager::new(redis::Client::open(url)?).await?;
    let (allowed, limit, remaining, wait_ms, reset_ms): (i64, i64, i64, i64, i64) =
        redis::cmd("RL.FIXED").arg("user:42").arg(100).arg("1m").query_async(&mut redis).await?;
    // [end]
    for line in stdin().lines() {
        let words: Vec<String> = line?.split(' ').map(String::from).collect();
        answer(match words.split_first() {
            Some((verb, words)) if verb == "call" => command(words).query_async(&mut redis).await,
            _ => Ok(Value::Array([allowed, limit, remaining, wait_ms, reset_ms].map(Value::Int).to_vec())),
        });
    }
    Ok(())
}

#[expect(unused_mut, reason = "the reader of the document goes on with the connection")]
async fn with_defaults(url: &str) -> RedisResult<ClusterConnection> {
    // [cluster]
    let mut cluster = ClusterClient::new([url])?.get_async_connection().await?;
    // [end]
    Ok(cluster)
}

#[expect(unused_mut, reason = "the reader of the document goes on with the connection")]
async fn never_twice(url: &str) -> RedisResult<ClusterConnection> {
    // [never twice]
    let client = ClusterClient::builder([url]).retries(0).build()?;
    let mut cluster = client.get_async_connection().await?;
    // [end]
    Ok(cluster)
}

#[expect(unused_mut, reason = "the reader of the document goes on with the connection")]
async fn with_replicas(url: &str) -> RedisResult<ClusterConnection> {
    // [replicas]
    let client = ClusterClient::builder([url]).read_routing_strategy(RandomReplicaStrategy).build()?;
    let mut cluster = client.get_async_connection().await?;
    // [end]
    Ok(cluster)
}

async fn one(mut cluster: ClusterConnection, key: &str) -> RedisResult<Value> {
    let reply = redis::cmd("RL.FIXED").arg(key).arg(100).arg("1m").query_async(&mut cluster).await?;
    Ok(reply)
}

async fn several(mut cluster: ClusterConnection, tag: &str) -> RedisResult<Value> {
    // [cluster]
    let keys = [format!("{{{tag}}}:minute"), format!("{{{tag}}}:day")];
    let mut take = redis::cmd("RL.MTAKE");
    take.arg(2).arg(&keys).arg(&["FIXED", "100", "1m", "FIXED", "5000", "1d"]);
    let reply = cluster.route_command(take, node_of(&keys[0], SlotAddr::Master)).await?;
    // [end]
    Ok(reply)
}

async fn pipeline(mut cluster: ClusterConnection, keys: &[String]) -> RedisResult<Value> {
    let mut pipeline = redis::pipe();
    for key in keys {
        pipeline.cmd("RL.FIXED").arg(key).arg(100).arg("1m");
    }
    let replies = pipeline.query_async(&mut cluster).await?;
    Ok(replies)
}

async fn peek(mut cluster: ClusterConnection, key: &str) -> RedisResult<Value> {
    // [replicas]
    let mut peek = redis::cmd("RL.PEEK");
    peek.arg(key).arg("FIXED").arg(100).arg("1m");
    let reply = cluster.route_command(peek, node_of(key, SlotAddr::ReplicaRequired)).await?;
    // [end]
    Ok(reply)
}

fn command(words: &[String]) -> redis::Cmd {
    let mut command = redis::Cmd::new();
    command.arg(words);
    command
}

fn answer(reply: RedisResult<Value>) {
    match reply {
        Ok(value) => {
            let mut integers = Vec::new();
            flatten(value, &mut integers);
            println!("= {}", integers.join(" "));
        }
        Err(error) => println!("! {}", error.to_string().replace('\n', " ")),
    }
}

fn flatten(value: Value, integers: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.into_iter().for_each(|item| flatten(item, integers)),
        Value::Int(integer) => integers.push(integer.to_string()),
        other => integers.push(format!("{other:?}")),
    }
}
