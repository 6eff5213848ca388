//! Token buckets for any number of items in one key of a fixed size: `RL.SKETCH`.

use super::rl_take;
use crate::redis::Redis;
use crate::reply::Reply;
use ratelimit_core::syntax::Spec;
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::Error;

/// `RL.SKETCH key item capacity refill period [COST amount] [UPTO | FORCE] [KEEP amount] [SIZE size]`
pub fn sketch<'a>(redis: &mut Redis<'a>, args: Args<'a>) -> Result<Reply, Error> {
    rl_take::charge(redis, args, Spec::sketch_of_item)
}
