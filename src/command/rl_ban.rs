//! Manual bans of keys: `RL.BAN`.

use crate::charge;
use crate::redis::{self, Redis};
use crate::reply::Reply;
use ratelimit_core::syntax::ban_duration;
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::Error;

/// `RL.BAN key duration`
pub fn ban(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    let duration = ban_duration(&mut args)?;
    let now = redis::now();
    charge::ban(redis, key, duration, now).map(Reply::millis)
}
