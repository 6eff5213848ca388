//! Descriptions for humans: the state of a key, `RL.INFO`, and the most denied keys, `RL.TOP`.

use super::usage_kinds::KINDS;
use crate::redis::key::Stored;
use crate::redis::{self, Redis};
use crate::reply::Reply;
use ratelimit_core::Timestamp;
use ratelimit_core::syntax::top_query::Query;
use ratelimit_core::wire::args::{Args, KeyIndex};
use ratelimit_core::wire::error::Error;

/// `RL.INFO key`
pub fn info(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let index = args.key()?;
    args.end()?;
    let (key, now) = (redis.peek(index)?, redis::now());
    let stored = key.contents().stored();
    if stored == Stored::Missing {
        return Ok(Reply::Null);
    }
    let row = KINDS.iter().find(|row| stored.kind() == Some(row.kind));
    let row = row.ok_or_else(|| stored.wrong_type("a limiter"))?;
    let facts = (row.describe)(&key, now)?;
    drop(key);
    Ok(with_queue(redis, index, Reply::facts(row.kind, facts), now))
}

/// Adds to a reply the calls that wait for a lease of the key.
fn with_queue(redis: &Redis, index: KeyIndex, reply: Reply, now: Timestamp) -> Reply {
    const MAX_SHOWN: usize = 100;
    let (queues, db, key) = (&redis.state.queues, redis.db(), redis.key_bytes(index));
    match (queues.waiter_count(db, key), reply) {
        (waiting @ 1.., Reply::Map(mut pairs)) => {
            let waiters = queues.first_waiters(db, key, MAX_SHOWN, now).into_iter();
            let queue =
                waiters.map(|waiter| Reply::waiter(waiter.holder, waiter.cost, waiter.time_waited, waiter.time_left));
            let queue = queue.collect();
            pairs.extend([("waiting", Reply::count(waiting)), ("queue", Reply::Array(queue))]);
            Reply::Map(pairs)
        }
        (_, reply) => reply,
    }
}

/// `RL.TOP [COUNT count] [SINCE duration] [RESET]`
pub fn top(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let query = Query::parse(&mut args)?;
    Ok(redis.state.heavy_hitters.with(|top| {
        let reply = Reply::heaviest(&match query.minutes {
            Some(minutes) => top.heaviest_since(query.count, minutes, redis::now()),
            None => top.heaviest(query.count),
        });
        if query.reset {
            top.clear();
        }
        reply
    }))
}
