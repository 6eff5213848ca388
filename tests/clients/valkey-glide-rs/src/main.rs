//! valkey-glide for Rust, as docs/clients.md shows it; `tests/support/libraries.py` describes the questions.

use glide::{PipelineExt, ValkeyResult, ValkeyValue, pipe};
use std::io::stdin;

// [one server]
use glide::{CustomCommand, GlideClient, GlideClientConfiguration};
// [end]

// [cluster]
use glide::{GlideClusterClient, GlideClusterClientConfiguration, Route, SlotType};
// [end]

#[tokio::main]
async fn main() -> ValkeyResult<()> {
    let mut args = std::env::args().skip(1);
    let mode = args.next().unwrap_or_default();
    let port: u16 = args.next().unwrap_or_default().parse().unwrap_or_default();
    if mode == "server" {
        return one_server(port).await;
    }
    let cluster = match mode.as_str() {
        "replicas" => with_replicas(port).await?,
        _ => with_defaults(port).await?,
    };
    for line in stdin().lines() {
        let line = line.unwrap_or_default();
        let words: Vec<&str> = line.split(' ').collect();
        let Some((verb, words)) = words.split_first() else {
            continue;
        };
        answer(match *verb {
            "plain" => cluster.custom_command(words).await,
            "one" => one(&cluster, words[0]).await,
            "several" => several(&cluster, words[0]).await,
            "pipeline" => pipeline(&cluster, words).await,
            _ => peek(&cluster, words[0]).await,
        });
    }
    Ok(())
}

async fn one_server(port: u16) -> ValkeyResult<()> {
    // [one server]

    let config = GlideClientConfiguration::with_address("127.0.0.1", port);
    let client = GlideClient::connect(config).await?;
    let decision = client.custom_command(&["RL.FIXED", "user:42", "100", "1m"]).await?;
    // [end]
    for line in stdin().lines() {
        let line = line.unwrap_or_default();
        let words: Vec<&str> = line.split(' ').collect();
        answer(match words.as_slice() {
            ["call", words @ ..] => client.custom_command(words).await,
            _ => Ok(decision.clone()),
        });
    }
    Ok(())
}

async fn with_defaults(port: u16) -> ValkeyResult<GlideClusterClient> {
    // [cluster]
    let config = GlideClusterClientConfiguration::with_address("127.0.0.1", port);
    let cluster = GlideClusterClient::connect(config).await?;
    // [end]
    Ok(cluster)
}

async fn with_replicas(port: u16) -> ValkeyResult<GlideClusterClient> {
    // [replicas]
    let config =
        GlideClusterClientConfiguration::with_address("127.0.0.1", port).read_from(glide::ReadFrom::PreferReplica);
    let cluster = GlideClusterClient::connect(config).await?;
    // [end]
    Ok(cluster)
}

async fn one(cluster: &GlideClusterClient, key: &str) -> ValkeyResult<ValkeyValue> {
    let reply = cluster.custom_command(&["RL.FIXED", key, "100", "1m"]).await?;
    Ok(reply)
}

async fn several(cluster: &GlideClusterClient, tag: &str) -> ValkeyResult<ValkeyValue> {
    // [cluster]
    let [minute, day] = [format!("{{{tag}}}:minute"), format!("{{{tag}}}:day")];
    let words = ["RL.MTAKE", "2", &minute, &day, "FIXED", "100", "1m", "FIXED", "5000", "1d"];
    let route = Route::slot_key(minute.as_str(), SlotType::Primary);
    let reply = cluster.custom_command_with_route(&words, route).await?;
    // [end]
    Ok(reply)
}

async fn pipeline(cluster: &GlideClusterClient, keys: &[&str]) -> ValkeyResult<ValkeyValue> {
    let mut pipeline = pipe();
    for key in keys {
        pipeline.cmd("RL.FIXED").arg(key).arg(100).arg("1m");
    }
    let replies: Vec<ValkeyValue> = pipeline.query_async(cluster).await?;
    Ok(ValkeyValue::Array(replies))
}

async fn peek(cluster: &GlideClusterClient, key: &str) -> ValkeyResult<ValkeyValue> {
    // [replicas]
    let words = ["RL.PEEK", key, "FIXED", "100", "1m"];
    let route = Route::slot_key(key, SlotType::Replica);
    let reply = cluster.custom_command_with_route(&words, route).await?;
    // [end]
    Ok(reply)
}

fn answer(reply: ValkeyResult<ValkeyValue>) {
    match reply {
        Ok(value) => {
            let mut integers = Vec::new();
            flatten(value, &mut integers);
            println!("= {}", integers.join(" "));
        }
        Err(error) => println!("! {}", error.to_string().replace('\n', " ")),
    }
}

fn flatten(value: ValkeyValue, integers: &mut Vec<String>) {
    match value {
        ValkeyValue::Array(items) => items.into_iter().for_each(|item| flatten(item, integers)),
        ValkeyValue::Int(integer) => integers.push(integer.to_string()),
        other => integers.push(format!("{other:?}")),
    }
}
