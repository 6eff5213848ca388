//! What a policy is told of the calls whose limits it has brought.

use crate::redis::Redis;
use crate::server::policy_table::Ruling;
use ratelimit_core::policy::CountedOutcome;

/// Counts the outcome of a key's call for the policy that asked for its limits, if one did.
#[inline(always)]
pub fn rule(redis: &mut Redis, ruling: Option<&Ruling>, outcome: impl FnOnce() -> CountedOutcome) {
    redis.ruled(ruling.map(|ruling| &ruling.name));
    if let Some(ruling) = ruling {
        ruling.counts.count(&outcome());
    }
}
