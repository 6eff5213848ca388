//! Several limits in one call, all or nothing: `RL.MTAKE` and `RL.MPEEK`.

use crate::charge::{KeysAnswer, charge_keys, peek_keys};
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::server::policy_table::Ruling;
use crate::waiting::queue_order;
use ratelimit_core::syntax::{CompositeRequest, KeyRequest, ManyKeysRequest};
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::Error;
use std::rc::Rc;

/// `RL.MTAKE numkeys key [key ...] [options] spec [spec ...]`
pub fn take(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let request = ManyKeysRequest::take(&mut args)?;
    let now = redis::now();
    let rulings = redis.global.policies.of_keys(&request, now)?;
    let mut request = ruled(request, &rulings)?;
    request.keys.iter_mut().for_each(|(name, of_key)| queue_order::place_take(redis, *name, of_key));
    charge_keys(redis, &request, &rulings, now).map(reply)
}

/// `RL.MPEEK numkeys key [key ...] [options] spec [spec ...]`
pub fn peek(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let request = ManyKeysRequest::peek(&mut args)?;
    let now = redis::now();
    let rulings = redis.global.policies.of_keys(&request, now)?;
    let mut request = ruled(request, &rulings)?;
    request.keys.iter_mut().for_each(|(name, of_key)| queue_order::place_look(redis, *name, of_key));
    peek_keys(redis, &request, now).map(reply)
}

fn reply(KeysAnswer { allowed, wait, rows }: KeysAnswer) -> Reply {
    Reply::decisions(allowed, wait, rows)
}

/// The request, with the limits of the policies in place of their names.
fn ruled<'p, 'a: 'p>(
    request: ManyKeysRequest<'a>,
    rulings: &'p [Option<Rc<Ruling>>],
) -> Result<ManyKeysRequest<'p>, Error> {
    let ManyKeysRequest { mut keys, idempotency, purpose } = request;
    for ((_, of_key), ruling) in keys.iter_mut().zip(rulings) {
        if let (KeyRequest::Policy(by), Some(ruling)) = (&*of_key, ruling) {
            *of_key = match by.request(&ruling.policy)? {
                KeyRequest::Composite(call) => {
                    KeyRequest::Composite(Box::new(CompositeRequest { idempotency, ..*call }))
                }
                one => one,
            };
        }
    }
    Ok(ManyKeysRequest { keys, idempotency, purpose })
}

/// The everyday call of `RL.MTAKE`, which says nothing but a token bucket for each key. `false`: it takes the slow path.
pub mod fast_path {
    use crate::charge::take_buckets_fast;
    use crate::redis::key::FastCall;
    use crate::redis::now;
    use ratelimit_core::algorithm::bucket::{Bucket, Discipline};
    use ratelimit_core::syntax::{Spec, SpecOptions};
    use ratelimit_core::wire::args::{Args, KeyName};

    /// `RL.MTAKE numkeys key [key ...] TOKENBUCKET capacity refill period [TOKENBUCKET ...]`
    #[inline(always)]
    pub fn take(call: &FastCall) -> bool {
        let Some(&[digit @ b'1'..=b'8']) = call.word(1) else { return false };
        let keys = usize::from(digit.wrapping_sub(b'0'));
        if call.length() != BEFORE_KEYS.saturating_add(keys.saturating_mul(1 + WORDS)) {
            return false;
        }
        let names = (0..keys).map(|number| KeyName(BEFORE_KEYS.wrapping_add(number)));
        let spec = |number: usize| BEFORE_KEYS.wrapping_add(keys).wrapping_add(number.wrapping_mul(WORDS));
        take_buckets_fast(call, names, (0..keys).map(|number| bucket(call, spec(number))), now())
    }

    /// The command's name and numkeys.
    const BEFORE_KEYS: usize = 2;
    /// In a spec.
    const WORDS: usize = 4;

    /// The bucket whose spec begins at a word.
    #[inline(always)]
    fn bucket(call: &FastCall, at: usize) -> Option<Bucket> {
        if !call.word(at)?.eq_ignore_ascii_case(b"TOKENBUCKET") {
            return None;
        }
        let word = |number: usize| call.word(at.wrapping_add(number));
        let (words, memo) = ([word(1), word(2), word(3)], &call.global.bucket_memo);
        memo.known(words, Discipline::Burst).or_else(|| {
            remember(call, words);
            memo.known(words, Discipline::Burst)
        })
    }

    /// Has the memo read a bucket, if the words are those of one.
    #[cold]
    #[inline(never)]
    fn remember(call: &FastCall, words: [Option<&[u8]>; 3]) {
        if let [Some(capacity), Some(refill), Some(period)] = words {
            let words: [&[u8]; WORDS] = [b"TOKENBUCKET", capacity, refill, period];
            let mut options = SpecOptions::remembering(&call.global.bucket_memo);
            // The slow path tells what is wrong with them.
            drop(Spec::token_bucket(&mut Args::new(&words), &mut options));
        }
    }
}
