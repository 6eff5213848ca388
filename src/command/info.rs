//! `RL.INFO`: what a key remembers, for people.

use super::kinds::KINDS;
use crate::redis::Redis;
use crate::reply::Reply;
use ratelimit_core::args::Args;
use ratelimit_core::error::Error;

/// `RL.INFO key`
pub fn info(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    args.end()?;
    let mut wrong_type = Ok(Reply::Null);
    for row in &KINDS {
        match (row.describe)(redis, key) {
            Ok(None) => return Ok(Reply::Null),
            Ok(Some(facts)) => return Ok(Reply::facts(row.kind, facts)),
            Err(Error::WrongType { holds, .. }) => wrong_type = Err(Error::WrongType { holds, needs: "a limiter" }),
            Err(other) => return Err(other),
        }
    }
    wrong_type
}
