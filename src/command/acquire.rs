//! Taking a lease of a concurrency limit, and waiting for one: `RL.ACQUIRE`.
//!
//! A call that would be denied for now joins the queue of its key instead. The queue is served when something has
//! happened to the key, or a lease has expired (`redis/turns.rs`): the head is asked as its call would ask, until one
//! is denied. Until then, whatever else takes leases of the key comes behind (`behind.rs`).

use super::{algorithm, behind, leases};
use crate::charge;
use crate::redis::turns::{self, Service, Turn};
use crate::redis::{self, Redis, handback};
use crate::reply::Reply;
use crate::server::Global;
use crate::server::queues::{Grant, Key, WaitingCall};
use crate::server::settings;
use ratelimit_core::queue::Claim;
use ratelimit_core::syntax::{Asked, Behind, Block, Spec};
use ratelimit_core::wire::args::{Args, KeyName};
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Timestamp, Verdict};

/// What the server's side does for those who wait.
pub const SERVICE: Service = Service { serve, denial, give_back: leases::give_back };

/// `RL.ACQUIRE key limit ttl holder [COST cost] [KEEP amount] [AS name] [NX] [BLOCK duration]`
pub fn acquire(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let (key, mut behind) = (args.key()?, Behind::default());
    let (numbers, block) = Spec::acquire(&mut args, &mut behind)?;
    if behind.is_nothing(&args) && block == Block::No && !redis.global.queues.any() {
        return algorithm::charge_spec(redis, key, &Spec::plain(numbers));
    }
    acquire_in_turn(redis, key, Asked::alone(&mut args, &numbers, &behind)?, block)
}

#[inline(never)]
fn acquire_in_turn(redis: &mut Redis, name: KeyName, mut asked: Asked, block: Block) -> Result<Reply, Error> {
    behind::take(redis, name, &mut asked);
    let now = redis::now();
    if block != Block::No && redis.may_block() {
        let limit = |spec: &Spec| spec.limit.raised_by(spec.kept).limit();
        let waits = matches!(peek(redis, name, &asked, now)?.verdict, Verdict::After(_));
        if let (true, [spec]) = (waits, behind::specs(&mut asked))
            && let Some(claim) = Claim::of(spec)
        {
            charge::follow_clock(redis, name, now);
            let (queues, db, key) = (&redis.global.queues, redis.db(), redis.key_bytes(name));
            if !queues.waits(db, key, claim.holder()) {
                settings::check_blocked(queues.waiting(db, key))?;
            }
            return redis.block(name, limit(spec), claim, block, now).map(|()| Reply::Later);
        }
    }
    charge(redis, name, &asked, now).map(|decision| Reply::decision(&decision))
}

/// The decision on a call that changes nothing.
fn peek(redis: &mut Redis, name: KeyName, asked: &Asked, now: Timestamp) -> Result<Decision, Error> {
    charge::peek(redis, name, asked, now).map(|answer| answer.decision)
}

/// The decision on a call that is charged if its limit allows it.
fn charge(redis: &mut Redis, name: KeyName, asked: &Asked, now: Timestamp) -> Result<Decision, Error> {
    charge::charge(redis, name, asked, None, now).map(|answer| answer.decision)
}

/// Answers those who wait for a lease of a key and can be answered.
fn serve(redis: &mut Redis, name: KeyName, key: &Key, turn: &mut Turn) {
    let (queues, now) = (&redis.global.queues, turn.now);
    if queues.is_behind_clock(key) && turn.may_grant() {
        charge::follow_clock(redis, name, now);
        // Others hear of it now, and not once the queue has been looked at.
        redis.finish();
        queues.followed_clock(key);
    }
    while turn.goes_on() {
        // First: once the later call of the same holder has its lease, this would be a renewal.
        if let Some(next) = queues.replaced(key) {
            decide(redis, name, key, &next, Moment::Over, turn);
        } else if let Some(head) = queues.head(key)
            && let Some(moment) = its_turn(redis, name, key, &head, turn)
        {
            decide(redis, name, key, &head, moment, turn);
        } else if let Some(next) = queues.overdue(key, now) {
            // Once the head is denied, another is the head, and may pass.
            queues.timed_out.count();
            decide(redis, name, key, &next, Moment::Over, turn);
        } else {
            return queues.looked_at(key);
        }
        turn.spend(1);
    }
    // The others run first.
    queues.touch(key.db, &key.name);
}

/// Why one who waits is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// There is room for it.
    Room,
    /// It can never pass: it costs more than the limit, or the key holds something else.
    Never,
    /// It waits no longer.
    Over,
}

/// Why the head of a key's queue is to be answered; `None` if it has to wait on.
fn its_turn(redis: &mut Redis, name: KeyName, key: &Key, head: &WaitingCall, turn: &mut Turn) -> Option<Moment> {
    let now = turn.now;
    let after = match peek(redis, name, &head.claim.asked(head.limit, false), now) {
        Ok(Decision { verdict: Verdict::After(wait), .. }) => Some(wait),
        Ok(Decision { verdict: Verdict::Allowed(_), .. }) if turn.may_grant() => return Some(Moment::Room),
        Ok(Decision { verdict: Verdict::Allowed(_), .. }) => {
            redis.global.queues.hold_up();
            None
        }
        Ok(Decision { verdict: Verdict::Never, .. }) | Err(_) => return Some(Moment::Never),
    };
    redis.global.queues.head_due(key, after, now);
    None
}

/// Answers one who waits as a call would be answered that came now.
fn decide(redis: &mut Redis, name: KeyName, key: &Key, next: &WaitingCall, moment: Moment, turn: &mut Turn) {
    let now = turn.now;
    redis.stats = next.client.stats;
    let asked = next.claim.asked(next.limit, next.others_wait);
    let passes = match moment {
        Moment::Room => true,
        Moment::Never => false,
        Moment::Over => peek(redis, name, &asked, now).is_ok_and(|seen| seen.verdict.allowed()),
    };
    if passes && !redis.may_acquire(name, &next.client) {
        return conclude(redis.global, key, next, Err(Error::NoPermission), true, now);
    }
    // A denial writes the clock that has gone back.
    let writes = passes || redis.global.queues.is_behind_clock(key);
    if !(if writes { turn.may_grant() } else { turns::may_propagate() }) {
        redis.stats.decided(false);
        let denied = denied(redis, name, next, now);
        return conclude(redis.global, key, next, denied, true, now);
    }
    let renews = charge::lease_until(redis, name, next.claim.holder(), now).is_some();
    let decided = charge(redis, name, &asked, now);
    redis.finish();
    // Others may have taken what was free, as they heard that a key had expired: then its turn comes once more.
    let has_to_wait = matches!(decided, Ok(Decision { verdict: Verdict::After(_), .. }));
    if moment == Moment::Over || !has_to_wait {
        conclude(redis.global, key, next, decided, renews, now);
    }
}

/// Answers one who waits no longer.
fn conclude(
    global: &Global,
    key: &Key,
    next: &WaitingCall,
    decided: Result<Decision, Error>,
    renews: bool,
    now: Timestamp,
) {
    let allowed = decided.as_ref().is_ok_and(|decision| decision.verdict.allowed());
    if allowed {
        global.queues.served.count();
    }
    // What a renewal takes its holder had, or others hold by its name.
    let grant = (allowed && !renews).then(|| Grant {
        key: key.clone(),
        holder: next.claim.holder().into(),
        expires_at: next.claim.expires_at(now),
    });
    let reply = decided.map(|decision| Reply::decision(&decision));
    match (global.queues.leave(key, next.place), grant) {
        (Some(_), grant) => handback::answer(global, &next.client, reply, grant),
        // It has gone while others ran.
        (None, Some(grant)) => global.queues.untold(grant),
        (None, None) => {}
    }
}

/// What one is answered who is not to wait any longer, without a change.
fn denial(redis: &mut Redis, name: KeyName, next: &WaitingCall, now: Timestamp) -> Result<Reply, Error> {
    denied(redis, name, next, now).map(|decision| Reply::decision(&decision))
}

/// The decision on one who is granted nothing, though there may be room: nothing can be written now, or it is told not
/// to wait.
fn denied(redis: &mut Redis, name: KeyName, next: &WaitingCall, now: Timestamp) -> Result<Decision, Error> {
    let mut asked = next.claim.asked(next.limit, true);
    let decision = peek(redis, name, &asked, now)?;
    if !decision.verdict.allowed() {
        return Ok(decision);
    }
    // It has a lease already, perhaps one that it is being granted just now and that will be given back.
    for spec in behind::specs(&mut asked) {
        spec.nx = true;
    }
    peek(redis, name, &asked, now)
}
