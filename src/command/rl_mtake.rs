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
