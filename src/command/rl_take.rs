//! Calls on one key: `RL.TOKENBUCKET` and the other commands of one algorithm, `RL.TAKE` with any limits, and
//! `RL.PEEK`, which charges nothing.

use super::{reply, rl_limit};
use crate::charge::{self, charge_one, charge_several, peek_one};
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::waiting::queue_order;
use ratelimit_core::syntax::{KeyRequest, ParsedLimit, Spec, SpecOptions};
use ratelimit_core::wire::args::{Args, KeyIndex};
use ratelimit_core::wire::error::Error;

/// Calls the given macro with a line for each algorithm word of the core's list, in its order. A line contains:
///
/// * the function of [`Spec`] that parses it, and its name and word in COMMAND DOCS;
/// * its arguments, which are constants of `docs.rs`: its numbers and its own flag;
/// * the kind of options that follow: `rate`, `waits` for a rate with MAXWAIT, `lease`, or `item` for a sketch;
/// * its command, if it has one that only takes from this algorithm: name, arity, and summary and complexity for
///   COMMAND DOCS.
macro_rules! command_lines {
    ($callback:ident, {$($arguments:tt)*}) => {
        $callback! {
            {$($arguments)*}
            token_bucket = c"token-bucket" c"TOKENBUCKET", [CAPACITY, REFILL, PERIOD] waits, {
                /// `RL.TOKENBUCKET key capacity refill period [options]`
                c"rl.tokenbucket", arity -5,
                c"Takes from a token bucket: a burst of capacity, refilled continuously by refill per period.",
                c"O(1)"
            };
            leaky_bucket = c"leaky-bucket" c"LEAKYBUCKET", [CAPACITY, LEAK, PERIOD] rate, {
                /// `RL.LEAKYBUCKET key capacity leak period [options]`
                c"rl.leakybucket", arity -5,
                c"Queues a request in a leaky bucket of capacity, which requests leave at leak per period; tells when its turn comes.",
                c"O(1)"
            };
            fixed_window = c"fixed" c"FIXED", [LIMIT, WINDOW, ALIGNED] rate, {
                /// `RL.FIXED key limit window [ALIGNED [OFFSET offset] [ANCHOR day]] [options]`
                c"rl.fixed", arity -4,
                c"Takes from a fixed window: limit per window, opened by the first admitted call or aligned to the clock.",
                c"O(1)"
            };
            sliding_window = c"sliding" c"SLIDING", [LIMIT, WINDOW, STRICT] rate, {
                /// `RL.SLIDING key limit window [STRICT] [options]`
                c"rl.sliding", arity -4,
                c"Takes from a sliding window, estimated from the counts of the current and the previous window.",
                c"O(1)"
            };
            sliding_log = c"sliding-log" c"SLIDINGLOG", [LIMIT, WINDOW] rate, {
                /// `RL.SLIDINGLOG key limit window [options]`
                c"rl.slidinglog", arity -4,
                c"Takes from a sliding window, exact: every admitted call's time is kept.",
                c"O(log N) with N the number of entries, amortized"
            };
            // RL.ACQUIRE can also wait, and is in `rl_leases_and_bans.rs`.
            concurrency = c"concurrency" c"CONCURRENCY", [LIMIT, TTL] lease, {};
            // RL.SKETCH has its item before the numbers, and is below.
            sketch = c"sketch" c"SKETCH", [CAPACITY, REFILL, PERIOD] item, {};
        }
    };
}
pub(crate) use command_lines;

macro_rules! commands {
    ({} $($parser:ident = $name:literal $word:literal, $arguments:tt $options:ident, {
        $($(#[doc = $syntax:literal])+ $command:literal, arity $arity:literal, $summary:literal, $complexity:literal)?
    };)+) => {
        const _: () = assert!([$($word),+].len() == Spec::ALGORITHMS.len());

        $($(
            $(#[doc = $syntax])+
            #[inline(always)]
            pub fn $parser<'a>(redis: &mut Redis<'a>, args: Args<'a>) -> Result<Reply, Error> {
                parse_and_charge(redis, args, Spec::$parser)
            }
        )?)+
    };
}
command_lines!(commands, {});

/// `RL.SKETCH key item capacity refill period [COST amount] [UPTO | FORCE] [KEEP amount] [SIZE size]`
pub fn sketch<'a>(redis: &mut Redis<'a>, args: Args<'a>) -> Result<Reply, Error> {
    parse_and_charge(redis, args, Spec::sketch_of_item)
}

/// `RL.TAKE key [options] spec [spec ...]`
pub fn take<'a>(redis: &mut Redis<'a>, mut args: Args<'a>) -> Result<Reply, Error> {
    let key = args.key()?;
    let mut request = KeyRequest::take(&mut args, Some(&redis.state.bucket_cache))?;
    queue_order::put_behind_waiters(redis, key, &mut request);
    charge_with_options(redis, key, &request)
}

/// `RL.PEEK key [options] spec [spec ...]`
pub fn peek<'a>(redis: &mut Redis<'a>, mut args: Args<'a>) -> Result<Reply, Error> {
    let key = args.key()?;
    let mut request = KeyRequest::peek(&mut args, Some(&redis.state.bucket_cache))?;
    queue_order::put_peek_behind_waiters(redis, key, &mut request);
    let now = redis::now();
    match &request {
        KeyRequest::One(spec) => peek_one(redis, key, spec, now).map(|decision| Reply::decision(&decision)),
        KeyRequest::Composite(_) => {
            charge::peek(redis, key, &request, now).map(|answer| reply(&request, &answer, None))
        }
        KeyRequest::Policy(policy_request) => rl_limit::peek_by_policy(redis, key, policy_request, now),
    }
}

/// Parses and charges a spec of one algorithm.
#[inline(always)]
fn parse_and_charge<'a>(
    redis: &mut Redis<'a>,
    mut args: Args<'a>,
    parser: impl FnOnce(&mut Args<'a>, &mut SpecOptions<'a>) -> Result<ParsedLimit<'a>, Error>,
) -> Result<Reply, Error> {
    let (key, mut options) = (args.key()?, SpecOptions::with_cache(Some(&redis.state.bucket_cache)));
    let parsed = parser(&mut args, &mut options)?;
    // Here the algorithm is known at compile time.
    if options.is_plain(&args) {
        return charge_spec(redis, key, &Spec::plain(parsed));
    }
    charge_with_options(redis, key, &KeyRequest::build_single_with_options(&mut args, &parsed, &options)?)
}

#[inline(never)]
fn charge_with_options(redis: &mut Redis, key: KeyIndex, request: &KeyRequest) -> Result<Reply, Error> {
    match request {
        KeyRequest::One(spec) => charge_spec(redis, key, spec),
        KeyRequest::Composite(call) => {
            charge_several(redis, key, call, None, redis::now()).map(|answer| reply(request, &answer, None))
        }
        KeyRequest::Policy(policy_request) => rl_limit::charge_by_policy(redis, key, policy_request, redis::now()),
    }
}

/// Charges a call of one spec if its limit grants it, and returns the reply.
#[inline(always)]
pub(super) fn charge_spec(redis: &mut Redis, key: KeyIndex, spec: &Spec) -> Result<Reply, Error> {
    charge_one(redis, key, spec, None, redis::now()).map(|decision| Reply::decision(&decision))
}
