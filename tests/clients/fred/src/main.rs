//! fred, as docs/clients.md shows it; `tests/support/libraries.py` describes the questions.

use std::io::stdin;

// [one server]
use fred::cmd;
use fred::prelude::*;
// [end]

// [cluster]
use fred::types::ClusterHash;
use fred::util::redis_keyslot;
// [end]

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let mode = args.next().unwrap_or_default();
    let port = args.next().unwrap_or_default();
    match mode.as_str() {
        "server" => return one_server(&port).await,
        "server-no-resends" => return call_all(&never_twice(&format!("redis://127.0.0.1:{port}")).await?).await,
        _ => {}
    }
    let cluster = match mode.as_str() {
        "cluster-no-resends" => never_twice(&format!("redis-cluster://127.0.0.1:{port}")).await?,
        _ => with_defaults(&port).await?,
    };
    for line in stdin().lines() {
        let words: Vec<String> = line?.split(' ').map(String::from).collect();
        let Some((verb, words)) = words.split_first() else {
            continue;
        };
        answer(match verb.as_str() {
            "plain" => cluster.custom(command(&words[0]), words[1..].to_vec()).await,
            "one" => one(&cluster, &words[0]).await,
            "several" => several(&cluster, &words[0]).await,
            "pipeline" => pipeline(&cluster, words).await,
            _ => peek(&cluster, &words[0]).await,
        });
    }
    Ok(())
}

async fn one_server(port: &str) -> Result<(), Error> {
    // [one server]

    let config = Config::from_url(&format!("redis://127.0.0.1:{port}"))?;
    // Without a policy it never connects again.
    let redis = Builder::from_config(config).set_policy(ReconnectPolicy::new_constant(0, 100)).build()?;
    redis.init().await?;
    let (allowed, limit, remaining, wait_ms, reset_ms): (i64, i64, i64, i64, i64) =
        redis.custom(cmd!("RL.FIXED"), vec!["user:42", "100", "1m"]).await?;
    // [end]
    for line in stdin().lines() {
        let words: Vec<String> = line?.split(' ').map(String::from).collect();
        answer(match words.as_slice() {
            [verb, name, words @ ..] if verb == "call" => redis.custom(command(name), words.to_vec()).await,
            _ => Ok(Value::Array([allowed, limit, remaining, wait_ms, reset_ms].map(Value::Integer).to_vec())),
        });
    }
    Ok(())
}

async fn call_all(redis: &Client) -> Result<(), Error> {
    for line in stdin().lines() {
        let words: Vec<String> = line?.split(' ').map(String::from).collect();
        answer(redis.custom(command(&words[1]), words[2..].to_vec()).await);
    }
    Ok(())
}

async fn with_defaults(port: &str) -> Result<Client, Error> {
    // [cluster]
    let config = Config::from_url(&format!("redis-cluster://127.0.0.1:{port}"))?;
    let cluster = Builder::from_config(config).set_policy(ReconnectPolicy::new_constant(0, 100)).build()?;
    cluster.init().await?;
    // [end]
    Ok(cluster)
}

async fn never_twice(url: &str) -> Result<Client, Error> {
    // [never twice]
    let client = Builder::from_config(Config::from_url(url)?)
        .with_connection_config(|connection| connection.max_command_attempts = 1)
        .set_policy(ReconnectPolicy::new_constant(0, 100))
        .build()?;
    // [end]
    client.init().await?;
    Ok(client)
}

async fn one(cluster: &Client, key: &str) -> Result<Value, Error> {
    let reply = cluster.custom(cmd!("RL.FIXED"), vec![key, "100", "1m"]).await?;
    Ok(reply)
}

async fn several(cluster: &Client, tag: &str) -> Result<Value, Error> {
    // [cluster]
    let [minute, day] = [format!("{{{tag}}}:minute"), format!("{{{tag}}}:day")];
    let take = cmd!("RL.MTAKE", hash: ClusterHash::Custom(redis_keyslot(minute.as_bytes())));
    let words = vec!["2", &minute, &day, "FIXED", "100", "1m", "FIXED", "5000", "1d"];
    let reply = cluster.custom(take, words).await?;
    // [end]
    Ok(reply)
}

async fn pipeline(cluster: &Client, keys: &[String]) -> Result<Value, Error> {
    let pipeline = cluster.pipeline();
    for key in keys {
        let _: () = pipeline.custom(cmd!("RL.FIXED"), vec![key.as_str(), "100", "1m"]).await?;
    }
    let replies = pipeline.all().await?;
    Ok(replies)
}

async fn peek(cluster: &Client, key: &str) -> Result<Value, Error> {
    // [replicas]
    let words = vec![key, "FIXED", "100", "1m"];
    let reply = cluster.replicas().custom(cmd!("RL.PEEK"), words).await?;
    // [end]
    Ok(reply)
}

fn command(name: &str) -> fred::types::CustomCommand {
    fred::types::CustomCommand::new(name, None::<u16>, false)
}

fn answer(reply: Result<Value, Error>) {
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
        Value::Integer(integer) => integers.push(integer.to_string()),
        other => integers.push(format!("{other:?}")),
    }
}
