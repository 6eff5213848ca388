//! Who is limited: `RL.TOP`.

use crate::redis::Redis;
use crate::reply::Reply;
use crate::top;
use ratelimit_core::args::Args;
use ratelimit_core::error::Error;
use ratelimit_core::top::Query;

/// `RL.TOP [COUNT count] [RESET]`
pub fn top(_redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let query = Query::read(&mut args)?;
    Ok(top::with(|top| {
        let reply = Reply::heaviest(&top.heaviest(query.count));
        if query.reset {
            top.clear();
        }
        reply
    }))
}
