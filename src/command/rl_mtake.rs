//! Several limits in one call, all or nothing: `RL.MTAKE` and `RL.MPEEK`.

use crate::charge::{KeysAnswer, charge_keys, peek_keys};
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::server::policy_table::Ruling;
use crate::waiting::queue_order;
use ratelimit_core::syntax::{Call, CallOnKeys, KeyRequest, OnKey};
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::Error;
use std::rc::Rc;

/// `RL.MTAKE numkeys key [key ...] [options] spec [spec ...]`
pub fn take(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let call = CallOnKeys::take(&mut args)?;
    let now = redis::now();
    let rulings = redis.global.policies.of_keys(&call, now)?;
    let mut call = ruled(call, &rulings)?;
    come_behind(redis, &mut call, true);
    charge_keys(redis, &call, &rulings, now).map(reply)
}

/// `RL.MPEEK numkeys key [key ...] [options] spec [spec ...]`
pub fn peek(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let call = CallOnKeys::peek(&mut args)?;
    let now = redis::now();
    let rulings = redis.global.policies.of_keys(&call, now)?;
    let mut call = ruled(call, &rulings)?;
    come_behind(redis, &mut call, false);
    peek_keys(redis, &call, now).map(reply)
}

fn reply(KeysAnswer { allowed, wait, rows }: KeysAnswer) -> Reply {
    Reply::decisions(allowed, wait, rows)
}

/// What the call asks of the policies that its keys are ruled by.
fn ruled<'p, 'a: 'p>(call: CallOnKeys<'a>, rulings: &'p [Option<Rc<Ruling>>]) -> Result<CallOnKeys<'p>, Error> {
    let CallOnKeys { mut specs, counts, purpose } = call;
    for ((_, on_key), ruling) in specs.iter_mut().zip(rulings) {
        if let (OnKey::Policy(by), Some(ruling)) = (&*on_key, ruling) {
            *on_key = match by.asked(&ruling.policy)? {
                KeyRequest::One(spec) => OnKey::Spec(spec),
                KeyRequest::Several(call) => OnKey::Call(Box::new(Call { counts, ..*call })),
                KeyRequest::Policy(_) => return Err(Error::Internal),
            };
        }
    }
    Ok(CallOnKeys { specs, counts, purpose })
}

/// Has leases that the call takes come behind those who wait for them.
#[inline(always)]
fn come_behind(redis: &Redis, call: &mut CallOnKeys, takes: bool) {
    if redis.global.queues.any() {
        for (name, on_key) in &mut call.specs {
            match on_key {
                OnKey::Spec(spec) => queue_order::place_behind(redis, *name, spec, takes),
                OnKey::Call(call) => {
                    call.specs.iter_mut().for_each(|spec| queue_order::place_behind(redis, *name, spec, takes));
                }
                OnKey::Policy(_) => {}
            }
        }
    }
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
        let word = |behind: usize| call.word(at.wrapping_add(behind));
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
