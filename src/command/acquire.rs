//! Taking a lease of a concurrency limit, and waiting for one: `RL.ACQUIRE`.
//!
//! A call that would be denied for now joins the queue of its key instead. The queue is served when something has
//! happened to the key, or a lease has expired (`redis/blocked.rs`): the head is asked as its call would ask, until one
//! is denied. Until then, whatever else takes leases of the key comes behind (`behind.rs`).

use super::{algorithm, behind, leases};
use crate::config;
use crate::redis::blocked::{self, Service};
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::waiting::{self, Grant, Key, Next};
use ratelimit_core::args::{Args, KeyName};
use ratelimit_core::error::Error;
use ratelimit_core::queue::Claim;
use ratelimit_core::spec::{Asked, Behind, Block, Spec};
use ratelimit_core::{Decision, Timestamp, Verdict};

/// What the server's side does for those who wait.
pub const SERVICE: Service = Service { serve, denial, give_back: leases::give_back };

/// How many of a key are served before others run.
const AT_ONCE: usize = 1000;

/// `RL.ACQUIRE key limit ttl holder [COST cost] [KEEP amount] [AS name] [NX] [BLOCK duration]`
pub fn acquire(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let (key, mut behind) = (args.key()?, Behind::default());
    let (numbers, block) = Spec::acquire(&mut args, &mut behind)?;
    if behind.is_nothing(&args) && block == Block::No && !waiting::any() {
        return algorithm::charge_one(redis, key, &Spec::plain(numbers));
    }
    acquire_in_turn(redis, key, Asked::alone(&mut args, &numbers, &behind)?, block)
}

#[inline(never)]
fn acquire_in_turn(redis: &mut Redis, name: KeyName, mut asked: Asked, block: Block) -> Result<Reply, Error> {
    behind::take(redis, name, &mut asked);
    let now = redis::now();
    if block != Block::No && redis.may_block() {
        let limit = |spec: &Spec| spec.limit.raised_by(spec.kept).limit();
        let waits = matches!(algorithm::peek_asked(redis, name, &asked, now)?.verdict, Verdict::After(_));
        if let (true, [spec]) = (waits, behind::specs(&mut asked))
            && let Some(claim) = Claim::of(spec)
        {
            leases::follow_clock(redis, name, now);
            let (db, key) = (redis.db(), redis.key_bytes(name));
            if !waiting::waits(db, key, claim.holder()) {
                config::check_blocked(waiting::waiting(db, key))?;
            }
            return redis.block(name, limit(spec), claim, block, now).map(|()| Reply::Later);
        }
    }
    algorithm::charge_asked(redis, name, &asked, now).map(|decision| Reply::decision(&decision))
}

/// Answers those who wait for a lease of a key and can be answered.
fn serve(redis: &mut Redis, name: KeyName, key: &Key, now: Timestamp) {
    if blocked::may_grant() && waiting::take_moved_back(key) {
        leases::follow_clock(redis, name, now);
    }
    // First: once the later call of the same holder has its lease, this would be a renewal.
    while let Some(next) = waiting::replaced(key) {
        decide(redis, name, key, &next, Turn::Over, now);
    }
    for _ in 0..AT_ONCE {
        if let Some(head) = waiting::head(key)
            && !has_to_wait(redis, name, key, &head, now)
        {
            decide(redis, name, key, &head, Turn::Come, now);
        } else if let Some(next) = waiting::overdue(key, now) {
            // Once the head is denied, another is the head, and may pass.
            waiting::TIMED_OUT.count();
            decide(redis, name, key, &next, Turn::Over, now);
        } else {
            return;
        }
    }
    // Others run first.
    waiting::head_due(key, now);
}

/// Whether the head of a key's queue has to wait on.
fn has_to_wait(redis: &mut Redis, name: KeyName, key: &Key, head: &Next, now: Timestamp) -> bool {
    let due = if blocked::may_grant() {
        match algorithm::peek_asked(redis, name, &head.claim.asked(head.limit, false), now) {
            Ok(Decision { verdict: Verdict::After(wait), .. }) => now.plus(wait).min(Timestamp::MAX),
            _ => return false,
        }
    } else {
        now
    };
    waiting::head_due(key, due);
    true
}

/// Why one who waits is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// There is room for it.
    Come,
    /// It waits no longer.
    Over,
}

/// Answers one who waits as a call would be answered that came now.
fn decide(redis: &mut Redis, name: KeyName, key: &Key, next: &Next, turn: Turn, now: Timestamp) {
    redis.stats = next.client.stats;
    if !blocked::may_grant() {
        redis.stats.decided(false);
        let denied = denied(redis, name, next, now);
        return conclude(key, next, denied, true, now);
    }
    let renews = leases::expires_at(redis, name, next.claim.holder(), now).is_some();
    let decided = algorithm::charge_asked(redis, name, &next.claim.asked(next.limit, next.others_wait), now);
    redis.finish();
    // Others may have taken what was free, as they heard that a key had expired: then its turn comes once more.
    let has_to_wait = matches!(decided, Ok(Decision { verdict: Verdict::After(_), .. }));
    if turn == Turn::Over || !has_to_wait {
        conclude(key, next, decided, renews, now);
    }
}

/// Answers one who waits no longer.
fn conclude(key: &Key, next: &Next, decided: Result<Decision, Error>, renews: bool, now: Timestamp) {
    let allowed = decided.as_ref().is_ok_and(|decision| decision.verdict.allowed());
    if allowed {
        waiting::SERVED.count();
    }
    // What a renewal takes its holder had, or others hold by its name.
    let grant = (allowed && !renews).then(|| Grant {
        key: key.clone(),
        holder: next.claim.holder().into(),
        expires_at: next.claim.expires_at(now),
    });
    let reply = decided.map(|decision| Reply::decision(&decision));
    match (waiting::leave(key, next.place), grant) {
        (Some(_), grant) => blocked::answer(next.client, reply, grant),
        // It has gone while others ran.
        (None, Some(grant)) => waiting::untold(grant),
        (None, None) => {}
    }
}

/// What one is answered who is not to wait any longer, without a change.
fn denial(redis: &mut Redis, name: KeyName, next: &Next, now: Timestamp) -> Result<Reply, Error> {
    denied(redis, name, next, now).map(|decision| Reply::decision(&decision))
}

/// The decision on one who is granted nothing, though there may be room: nothing can be written now, or it is told not
/// to wait.
fn denied(redis: &mut Redis, name: KeyName, next: &Next, now: Timestamp) -> Result<Decision, Error> {
    let mut asked = next.claim.asked(next.limit, true);
    let decision = algorithm::peek_asked(redis, name, &asked, now)?;
    if !decision.verdict.allowed() {
        return Ok(decision);
    }
    // It has a lease already, perhaps one that it is being granted just now and that will be given back.
    for spec in behind::specs(&mut asked) {
        spec.nx = true;
    }
    algorithm::peek_asked(redis, name, &asked, now)
}
