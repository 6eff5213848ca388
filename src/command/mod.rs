//! Commands, with a file per family. Each handler parses the arguments, calls the charge path, and returns the reply.

pub mod docs;
pub mod rl_effect;
pub mod rl_info;
pub mod rl_leases_and_bans;
pub mod rl_limit;
pub mod rl_mtake;
pub mod rl_policies;
pub mod rl_take;
pub mod rl_throttle;
pub mod usage_kinds;

use crate::reply::{Reply, Row};
use ratelimit_core::composite::Answer;
use ratelimit_core::policy::EffectivePolicy;
use ratelimit_core::syntax::KeyRequest;

/// Returns the reply to a call on one key, whose limits may be those of a policy.
fn reply(request: &KeyRequest, answer: &Answer, policy: Option<&EffectivePolicy>) -> Reply {
    match request {
        KeyRequest::Composite(call) if call.each => {
            let rows = call.specs.iter().zip(&answer.each);
            let rows = rows.map(|(spec, decision)| Reply::named(Row::decision(decision), spec.name)).collect();
            Reply::each(answer.decision.verdict, rows, policy)
        }
        _ => Reply::decision(&answer.decision),
    }
}
