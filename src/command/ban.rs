//! A ban by hand: `RL.BAN`.

use super::several;
use crate::redis::{self, Redis};
use crate::reply::Reply;
use ratelimit_core::args::Args;
use ratelimit_core::error::Error;
use ratelimit_core::spec::block;

/// `RL.BAN key duration`
pub fn ban(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    let duration = block(&mut args)?;
    let now = redis::now();
    several::ban(redis, key, duration, now).map(Reply::millis)
}
