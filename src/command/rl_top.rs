//! List of the keys that are denied most: `RL.TOP`.

use crate::redis::{self, Redis};
use crate::reply::Reply;
use ratelimit_core::syntax::top_query::Query;
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::Error;

/// `RL.TOP [COUNT count] [SINCE duration] [RESET]`
pub fn top(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let query = Query::read(&mut args)?;
    Ok(redis.global.heavy_hitters.with(|top| {
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
