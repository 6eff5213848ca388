//! A limiter for more clients than memory: `RL.SKETCH`.

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

/// The everyday call, which says nothing but an item and the numbers. `false`: it takes the slow path.
pub mod fast_path {
    use crate::charge::take_item_fast;
    use crate::redis::key::FastCall;
    use crate::redis::{Replies, now};
    use ratelimit_core::algorithm::bucket::Discipline;
    use ratelimit_core::algorithm::count_min::Sketch;
    use ratelimit_core::wire::args::KeyName;

    /// `RL.SKETCH key item capacity refill period`
    #[inline(always)]
    pub fn sketch(call: &FastCall) -> bool {
        let (6, Some(item)) = (call.length(), call.word(2)) else { return false };
        let words = [call.word(3), call.word(4), call.word(5)];
        let Some(bucket) = call.global.bucket_memo.known(words, Discipline::Burst) else { return false };
        take_item_fast(call, KeyName(1), &Sketch::new(bucket, None), item, now(), Replies::reply_decision)
    }
}
