//! Several limits in one call, all or nothing: `RL.MTAKE` and `RL.MPEEK`.
//!
//! Every key is looked at before any is charged, in one instant, and what changes travels as one effect. Keys are
//! opened one after another: others may run when a later one is opened, and change an earlier one. So a key is looked
//! at again if they may have.

use super::{Seen, move_back, step_back};
use crate::redis::key::Found;
use crate::redis::{self, Redis, guard};
use crate::reply::{Reply, Row};
use ratelimit_core::args::Args;
use ratelimit_core::error::Error;
use ratelimit_core::expiry::Expiry;
use ratelimit_core::spec::{Part, several};
use ratelimit_core::with_limit;
use ratelimit_core::{Change, Decision, Limit, Look, Timestamp, Usage, Verdict};

/// `RL.MTAKE numkeys key [key ...] spec [spec ...]`
pub fn take(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let parts = several(&mut args)?;
    let now = redis::now();
    let looked = look(redis, parts, now)?;
    let allowed = !looked.iter().any(|key| key.seen.look.denies());
    if allowed {
        looked.iter().try_for_each(|key| key.seen.check_entries())?;
        looked.iter().try_for_each(|key| key.seen.check_memory(redis))?;
    }
    redis.stats.decided(allowed);
    let rows = looked.iter().map(|key| key.charge(redis, now, allowed)).collect();
    Ok(Reply::decisions(allowed, wait(looked.iter().map(|key| &key.seen), allowed), rows))
}

/// `RL.MPEEK numkeys key [key ...] spec [spec ...]`
pub fn peek(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let parts = several(&mut args)?;
    let now = redis::now();
    let (mut seen, mut rows) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
    for (name, spec) in &parts {
        with_limit!(spec, limit => {
            let key = redis.peek(*name)?;
            let now_seen = Seen::at(limit, key.usage(), key.is_missing(), now, spec.ask);
            rows.push(Row::decision(&now_seen.look.decision(limit, key.usage(), now, false)));
            seen.push(now_seen);
        });
    }
    let allowed = !seen.iter().any(|seen| seen.look.denies());
    if allowed {
        seen.iter().try_for_each(Seen::check_entries)?;
    }
    Ok(Reply::decisions(allowed, wait(seen.iter(), allowed), rows))
}

/// If all passed, the longest hold (a FORCE that did not fit has passed, and its wait is no hold); else the longest
/// wait of those that stood in the way.
fn wait<'a>(seen: impl Iterator<Item = &'a Seen>, allowed: bool) -> Option<Verdict> {
    let looks = seen.map(|seen| &seen.look);
    looks.filter(|look| if allowed { look.verdict().allowed() } else { look.denies() }).map(Look::verdict).max()
}

/// A key of a call that was looked at, and closed, and the limit that it was looked at under.
struct Looked<'a> {
    part: Part<'a>,
    found: Found,
    seen: Seen,
}

/// Looks at every key.
fn look<'a>(redis: &mut Redis, parts: Vec<Part<'a>>, now: Timestamp) -> Result<Vec<Looked<'a>>, Error> {
    let mut looked = Vec::with_capacity(parts.len());
    for part in parts {
        looked.push(Looked::at(redis, part, now)?);
    }
    if looked.iter().all(|key| redis.still_holds(&key.found)) {
        return Ok(looked);
    }
    // Whatever expired has been deleted by now. First those that are missing, whose opening says that others may run;
    // those that are there then stay as they are found.
    for missing in [true, false] {
        for key in &mut looked {
            if key.found.is_missing() == missing {
                *key = Looked::at(redis, key.part, now)?;
            }
        }
    }
    Ok(looked)
}

impl<'a> Looked<'a> {
    fn at(redis: &mut Redis, part: Part<'a>, now: Timestamp) -> Result<Looked<'a>, Error> {
        let (name, spec) = part;
        with_limit!(spec, limit => {
            let key = redis.open(name)?;
            let seen = Seen::at(limit, key.usage(), key.is_missing(), now, spec.ask);
            let changes = seen.look.change() != Change::Nothing || key.usage().is_after(now);
            let found = if changes { key.close_to_change(now) } else { key.close() };
            Ok(Looked { part, found, seen })
        })
    }

    /// Makes the change that the look announced if the call as a whole is `allowed`, and sees to a clock gone back in
    /// any case. Nothing can fail any more.
    fn charge(&self, redis: &mut Redis, now: Timestamp, allowed: bool) -> Row {
        let (name, spec) = self.part;
        if self.seen.count(allowed) {
            redis.denied(name);
        }
        Row::decision(&with_limit!(spec, limit => self.charge_under(redis, limit, now, allowed)))
    }

    fn charge_under<L: Limit>(&self, redis: &mut Redis, limit: &L, now: Timestamp, allowed: bool) -> Decision {
        let look = &self.seen.look;
        let change = if allowed { look.change() } else { Change::Nothing };
        let unused = L::Usage::default();
        let nothing = |usage: &L::Usage| look.decision(limit, usage, now, false);
        // Another kind is what others have put there meanwhile.
        let Ok(found) = redis.find_again::<L::Usage>(&self.found, now) else { return nothing(&unused) };
        let Some(mut usage) = redis.change::<L::Usage>(&found) else {
            if !matches!(change, Change::Charge(_)) {
                return nothing(&unused);
            }
            let mut usage = unused;
            change.apply(limit, &mut usage, now);
            let decision = look.decision(limit, &usage, now, true);
            redis.record_new(&found, usage, Expiry::of(now, decision.reset).after_charge(None, false), now);
            return decision;
        };
        if change == Change::Nothing {
            let decision = nothing(&usage);
            if let Some(step) = step_back(&mut *usage, now, |usage, now| limit.reset(usage, now)) {
                usage.record(step.expiry(found.expires_at()), now);
            }
            return decision;
        }
        let moved = move_back(&mut *usage, now);
        change.apply(limit, &mut usage, now);
        guard::point();
        let decision = look.decision(limit, &usage, now, true);
        usage.record(Expiry::of(now, decision.reset).after_charge(found.expires_at(), moved), now);
        decision
    }
}
