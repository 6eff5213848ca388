//! `RL.INFO`: what a key remembers, for people.

use super::kinds::KINDS;
use crate::redis::{self, Redis};
use crate::reply::Reply;
use ratelimit_core::Timestamp;
use ratelimit_core::args::{Args, KeyName};
use ratelimit_core::error::Error;

/// `RL.INFO key`
pub fn info(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    args.end()?;
    let (mut wrong_type, now) = (Ok(Reply::Null), redis::now());
    for row in &KINDS {
        match (row.describe)(redis, key, now) {
            Ok(None) => return Ok(Reply::Null),
            Ok(Some(facts)) => return Ok(with_queue(redis, key, Reply::facts(row.kind, facts), now)),
            Err(Error::WrongType { holds, .. }) => wrong_type = Err(Error::WrongType { holds, needs: "a limiter" }),
            Err(other) => return Err(other),
        }
    }
    wrong_type
}

/// The same with those who wait for a lease of the key, if anybody does.
fn with_queue(redis: &Redis, name: KeyName, reply: Reply, now: Timestamp) -> Reply {
    const SHOWN: usize = 100;
    let (queues, db, key) = (&redis.global.queues, redis.db(), redis.key_bytes(name));
    match (queues.waiting(db, key), reply) {
        (waiting @ 1.., Reply::Map(mut pairs)) => {
            let queue = queues.list(db, key, SHOWN, now).iter().map(Reply::waiter).collect();
            pairs.extend([("waiting", Reply::count(waiting)), ("queue", Reply::Array(queue))]);
            Reply::Map(pairs)
        }
        (_, reply) => reply,
    }
}
