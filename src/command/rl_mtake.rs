//! Calls on several keys, all charged or none: `RL.MTAKE` and `RL.MPEEK`.

use crate::charge::{KeysAnswer, charge_keys, peek_keys};
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::server::policy_table::EffectivePolicy;
use crate::waiting::queue_order;
use ratelimit_core::syntax::{CompositeRequest, KeyRequest, ManyKeysRequest};
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::Error;
use std::rc::Rc;

/// `RL.MTAKE numkeys key [key ...] [options] spec [spec ...]`
pub fn take<'a>(redis: &mut Redis<'a>, args: Args<'a>) -> Result<Reply, Error> {
    let (policies, now) = (&mut Vec::new(), redis::now());
    // Shortens the lifetime of the words to that of the policies.
    let mut args = args;
    let mut request = ManyKeysRequest::default();
    request.take(&mut args, Some(&redis.state.bucket_cache))?;
    redis.state.policies.collect(&request, policies, now)?;
    resolve_policies(&mut request, policies)?;
    request
        .keys
        .iter_mut()
        .for_each(|(index, key_request)| queue_order::put_behind_waiters(redis, *index, key_request));
    charge_keys(redis, &request, policies, now).map(reply)
}

/// `RL.MPEEK numkeys key [key ...] [options] spec [spec ...]`
pub fn peek<'a>(redis: &mut Redis<'a>, args: Args<'a>) -> Result<Reply, Error> {
    let (policies, now) = (&mut Vec::new(), redis::now());
    let mut args = args;
    let mut request = ManyKeysRequest::default();
    request.peek(&mut args, Some(&redis.state.bucket_cache))?;
    redis.state.policies.collect(&request, policies, now)?;
    resolve_policies(&mut request, policies)?;
    for (index, key_request) in &mut request.keys {
        queue_order::put_peek_behind_waiters(redis, *index, key_request);
    }
    peek_keys(redis, &request, now).map(reply)
}

fn reply(KeysAnswer { allowed, longest_wait, rows }: KeysAnswer) -> Reply {
    Reply::decisions(allowed, longest_wait, rows)
}

/// Replaces the names of policies in the request by their limits.
fn resolve_policies<'p>(
    request: &mut ManyKeysRequest<'p>,
    policies: &'p [Option<Rc<EffectivePolicy>>],
) -> Result<(), Error> {
    let idempotency = request.idempotency;
    for ((_, key_request), policy) in request.keys.iter_mut().zip(policies) {
        if let (KeyRequest::Policy(policy_request), Some(policy)) = (&*key_request, policy) {
            *key_request = match policy_request.request(&policy.limits)? {
                KeyRequest::Composite(call) => {
                    KeyRequest::Composite(Box::new(CompositeRequest { idempotency, ..*call }))
                }
                one => one,
            };
        }
    }
    Ok(())
}
