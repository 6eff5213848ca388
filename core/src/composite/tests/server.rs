//! One key as the server keeps it, plain or with components, and the replicas that it tells of its changes.

use super::sent_effects::{check_any, check_each_number, converted};
use crate::algorithm::any::{AnyUsage, Single, with_limit, with_usage};
use crate::composite::{Answer, Component, CompositeEvaluation, CompositeUsage, FastEvaluation, Held};
use crate::expiry::{Expiry, StepBack};
use crate::kind::Kind;
use crate::limit::{Limit, Usage};
use crate::number::{Span, Timestamp};
use crate::syntax::{CompositeRequest, KeyRequest};
use crate::testing::encoded_fields::{EncodedFields, applied, decoded, encoded, whole_effect};
use crate::wire::codec::Discard;
use proptest::sample::Index;

/// What a key holds.
#[derive(Clone, Debug)]
pub enum Value {
    Plain(AnyUsage),
    Composite(CompositeUsage),
}

/// A key with its expiry, in milliseconds since the epoch; `None` if there is none.
pub type Key = Option<(Value, u64)>;

#[derive(Clone, Debug, Default)]
pub struct Server {
    pub key: Key,
    /// It knows what it is told, and no limits.
    replica: CompositeUsage,
    /// A replica that reads its key from the disk before each effect.
    restarted: CompositeUsage,
    /// How the next effect is mutated.
    pub mutations: Vec<(Index, u64)>,
    /// Whether each number of each effect is replaced by each other of it, by its neighbours and by small ones.
    pub mutates_all: bool,
}

/// Why a call is not answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    WrongType,
    TooManyComponents,
    NoHolder,
}

/// What an answered call has shown and changed.
#[derive(Debug)]
pub struct Told {
    pub answer: Answer,
    /// Whether it has written anything.
    pub writes: bool,
}

pub fn call_of<'a>(asked: &KeyRequest<'a>) -> CompositeRequest<'a> {
    match asked {
        KeyRequest::One(spec) => CompositeRequest::of_one(*spec),
        KeyRequest::Composite(call) => (**call).clone(),
        KeyRequest::Policy(by) => unreachable!("{by:?}"),
    }
}

pub fn unused_of<L: Limit>(_: &L) -> AnyUsage
where
    L::Usage: Single,
{
    L::Usage::default().into_any()
}

/// A clock gone back, to a call that charges nothing.
fn step_back<U: Usage>(usage: &mut U, now: Timestamp, reset: impl Fn(&U, Timestamp) -> Span) -> Option<StepBack> {
    let back = usage.ahead(now);
    if back == Span::ZERO {
        return None;
    }
    let then = now.plus(back);
    let before = Expiry::of(then, reset(usage, then));
    usage.move_back(now);
    let after = Expiry::of(now, reset(usage, now));
    Some(StepBack { now, back, recovery: usage.recovery(), before, after })
}

/// A call that took the fast path.
struct FastCharge {
    seen: FastEvaluation,
    answer: Answer,
    told: CompositeUsage,
    untold: CompositeUsage,
}

impl FastCharge {
    fn new(before: &CompositeUsage, call: &CompositeRequest, now: Timestamp) -> Option<FastCharge> {
        let seen = before.evaluate_fast(call, now)?;
        let (mut told, mut untold) = (before.clone(), before.clone());
        let answer = if seen.denies() {
            before.deny_fast(call, &seen, now)
        } else {
            let answer = told.charge_fast(call, &seen, true, now);
            assert_eq!(untold.charge_fast(call, &seen, false, now), answer);
            answer
        };
        Some(FastCharge { seen, answer: Answer::of(answer), told, untold })
    }

    /// The slow path has come to the same.
    fn assert_same(
        mut self,
        call: &CompositeRequest,
        seen: &CompositeEvaluation,
        answer: &Answer,
        usage: &CompositeUsage,
        charged: bool,
    ) {
        assert_eq!(!self.seen.denies(), charged, "{call:?}");
        assert_eq!(self.seen.limits(call).collect::<Vec<_>>(), seen.limits(call).collect::<Vec<_>>());
        assert_eq!(self.answer, Answer { each: vec![], ..answer.clone() }, "{call:?}");
        for own in [&self.told, &self.untold] {
            assert_eq!(encoded(own), encoded(usage), "{call:?}");
        }
        let (mut effect, mut told) = (EncodedFields::default(), EncodedFields::default());
        usage.clone().encode_effect(&mut effect);
        self.told.encode_effect(&mut told);
        assert_eq!(told, effect, "{call:?}");
        // Nothing is left to tell with the next change.
        self.untold.encode_effect(&mut Discard);
        assert!(!self.told.has_delta() && !self.untold.has_delta());
    }
}

impl Server {
    pub fn components(&self) -> Option<&CompositeUsage> {
        if let Some((Value::Composite(components), _)) = &self.key { Some(components) } else { None }
    }

    pub fn plain(&self) -> Option<&AnyUsage> {
        if let Some((Value::Plain(usage), _)) = &self.key { Some(usage) } else { None }
    }

    /// What it would write to the disk.
    pub fn stored(&self) -> Option<EncodedFields> {
        self.key.as_ref().map(|(value, _)| match value {
            Value::Plain(any) => with_usage!(any, usage => encoded(usage)),
            Value::Composite(components) => encoded(components),
        })
    }

    /// What it would write to the disk, and when the key expires.
    pub fn key_as_stored(&self) -> Option<(EncodedFields, u64)> {
        self.stored().zip(self.key.as_ref().map(|(_, at)| *at))
    }

    /// The key expires, if it may by now; whether it does.
    pub fn expire(&mut self, now: Timestamp) -> bool {
        let expires = self.key.as_ref().is_some_and(|(_, at)| *at <= now.floor_millis());
        if expires {
            *self = Server::default();
        }
        expires
    }

    /// What RL.PEEK and RL.TAKE do.
    pub fn call(&mut self, asked: &KeyRequest, now: Timestamp, peeks: bool) -> Result<Told, Refused> {
        let call = call_of(asked);
        let missing = || match asked {
            KeyRequest::One(spec) => Value::Plain(with_limit!(spec, limit => unused_of(limit))),
            KeyRequest::Composite(_) | KeyRequest::Policy(_) => Value::Composite(CompositeUsage::default()),
        };
        let expires_at = self.key.as_ref().map(|(_, at)| *at);
        match self.key.as_ref().map_or_else(missing, |(value, _)| value.clone()) {
            Value::Composite(usage) => self.call_composite(&call, usage, expires_at, now, peeks),
            Value::Plain(any) => match call.specs.as_slice() {
                // What another definition of a policy left is no mistake.
                [spec] if spec.limit.kind() != any.kind() && !spec.by_policy => Err(Refused::WrongType),
                _ => Ok(with_usage!(&any, usage => self.call_plain(&call, usage, expires_at, now, peeks))),
            },
        }
    }

    fn call_composite(
        &mut self,
        call: &CompositeRequest,
        mut usage: CompositeUsage,
        expires_at: Option<u64>,
        now: Timestamp,
        peeks: bool,
    ) -> Result<Told, Refused> {
        let fast = if peeks { None } else { FastCharge::new(&usage, call, now) };
        let held = Held::Composite(&usage);
        let seen = CompositeEvaluation::at(call, held, now);
        if seen.has_too_many_components(held, now) {
            assert!(fast.is_none());
            return Err(Refused::TooManyComponents);
        }
        if peeks || (!seen.changes() && !seen.strikes()) {
            let answer = seen.answer(call, held, now, false);
            if let Some(fast) = fast {
                fast.assert_same(call, &seen, &answer, &usage, false);
            }
            let step = if peeks { None } else { step_back(&mut usage, now, CompositeUsage::reset) };
            if let Some(step) = &step {
                self.propagate(&mut usage);
                self.put(usage, step.expiry(expires_at));
            }
            return Ok(Told { answer, writes: step.is_some() });
        }
        let moved = usage.is_after(now);
        let entries: Vec<_> = seen.entries(call, held, now).collect();
        if moved {
            usage.move_back(now);
        }
        usage.charge(call, &seen, now);
        check_entries(&usage, &entries, now);
        let answer = seen.answer(call, Held::Composite(&usage), now, true);
        if let Some(fast) = fast {
            assert!(!moved && entries.is_empty());
            fast.assert_same(call, &seen, &answer, &usage, true);
        }
        self.charged(usage, expires_at, moved, now);
        Ok(Told { answer, writes: true })
    }

    fn call_plain<U: Single>(
        &mut self,
        call: &CompositeRequest,
        usage: &U,
        expires_at: Option<u64>,
        now: Timestamp,
        peeks: bool,
    ) -> Told {
        let mut usage = usage.clone();
        let held = Held::plain(&usage);
        let seen = CompositeEvaluation::at(call, held, now);
        assert!(!seen.has_too_many_components(held, now));
        let reset = |usage: &U, now| call.reset_of_plain(usage, now);
        let put = |server: &mut Server, usage: U, at| {
            server.key = (!usage.is_unused()).then(|| (Value::Plain(usage.into_any()), at));
        };
        if peeks || (!seen.changes() && !seen.strikes()) {
            let answer = seen.answer(call, held, now, false);
            let step = if peeks { None } else { step_back(&mut usage, now, reset) };
            if let Some(step) = &step {
                usage.encode_effect(&mut Discard);
                put(self, usage, step.expiry(expires_at));
            }
            return Told { answer, writes: step.is_some() };
        }
        if seen.stays_plain(call) {
            let moved = usage.is_after(now);
            if moved {
                usage.move_back(now);
            }
            seen.charge_plain(call, &mut usage, now);
            usage.encode_effect(&mut Discard);
            let answer = seen.answer(call, Held::plain(&usage), now, true);
            let at = Expiry::of(now, reset(&usage, now)).after_charge(expires_at, moved);
            put(self, usage, at);
            return Told { answer, writes: true };
        }
        let components = self.convert(&usage, expires_at, now, |components| components.charge(call, &seen, now));
        let answer = seen.answer(call, Held::Composite(&components), now, true);
        Told { answer, writes: true }
    }

    /// A plain key becomes one with components, and all of it is propagated.
    fn convert<U: Single>(
        &mut self,
        usage: &U,
        expires_at: Option<u64>,
        now: Timestamp,
        change: impl FnOnce(&mut CompositeUsage),
    ) -> CompositeUsage {
        let mut plain = usage.clone();
        let (mut components, ()) = CompositeUsage::convert(&mut plain, expires_at, now, change);
        assert!(plain.is_unused(), "it is moved");
        let mut effect = EncodedFields::default();
        components.encode_effect(&mut effect);
        for (place, value) in std::mem::take(&mut self.mutations) {
            converted(usage, expires_at, &effect.with_integer(place, value));
        }
        // A replica has what was propagated of the plain key, or what it has read of it from the disk.
        self.replica = converted(usage, expires_at, &effect).unwrap();
        let stored: U = decoded(&encoded(usage)).unwrap();
        self.restarted = converted(&stored, expires_at, &effect).unwrap();
        assert_eq!(encoded(&self.replica), encoded(&components));
        assert_eq!(encoded(&self.restarted), encoded(&components));
        if components.is_unused() {
            (self.replica, self.restarted) = (CompositeUsage::default(), CompositeUsage::default());
        } else {
            self.compare(&components);
            let whole = whole_effect(&components);
            assert_eq!(encoded(&applied(&CompositeUsage::default(), &whole).unwrap()), encoded(&components));
        }
        let at = Expiry::of(now, components.reset(now)).after_charge(None, false);
        self.put(components.clone(), at);
        components
    }

    /// What RL.RELEASE does; how many leases there were.
    pub fn release(&mut self, holder: &[u8], now: Timestamp) -> Option<(usize, bool)> {
        let (Value::Composite(mut usage), expires_at) = self.key.clone()? else { return None };
        let step = step_back(&mut usage, now, CompositeUsage::reset);
        let before = encoded(&usage);
        let released = usage.release(&[holder], now);
        if released > 0 {
            self.charged(usage, Some(expires_at), step.is_some(), now);
        } else {
            assert_eq!(encoded(&usage), before, "nothing is told of it");
            if let Some(step) = &step {
                self.propagate(&mut usage);
                self.put(usage, step.expiry(Some(expires_at)));
            }
        }
        Some((released, step.is_some() || released > 0))
    }

    /// What RL.BAN does: how long it is banned, and whether anything was written.
    pub fn ban(&mut self, duration: Span, now: Timestamp) -> (Span, bool) {
        let (mut usage, expires_at) = match self.key.clone() {
            Some((Value::Plain(any), at)) if duration != Span::ZERO => {
                let change = |components: &mut CompositeUsage| components.ban(duration, now);
                let components = with_usage!(&any, usage => self.convert(usage, Some(at), now, change));
                return (components.banned(now), true);
            }
            Some((Value::Composite(usage), at)) => (usage, Some(at)),
            None => (CompositeUsage::default(), None),
            Some((Value::Plain(_), _)) => return (Span::ZERO, false),
        };
        if !usage.can_ban(duration, now) {
            return (usage.banned(now), false);
        }
        let moved = usage.is_after(now);
        if moved {
            usage.move_back(now);
        }
        usage.ban(duration, now);
        let left = usage.banned(now);
        self.charged(usage, expires_at, moved, now);
        (left, true)
    }

    fn charged(&mut self, mut usage: CompositeUsage, expires_at: Option<u64>, moved: bool, now: Timestamp) {
        let at = Expiry::of(now, usage.reset(now)).after_charge(expires_at, moved);
        if usage.is_unused() {
            *self = Server::default();
        } else {
            self.propagate(&mut usage);
            self.put(usage, at);
        }
    }

    fn put(&mut self, usage: CompositeUsage, at: u64) {
        self.key = (!usage.is_unused()).then_some((Value::Composite(usage), at));
    }

    /// Tells the replicas what has changed, which then hold the same.
    fn propagate(&mut self, usage: &mut CompositeUsage) {
        let mut effect = EncodedFields::default();
        usage.encode_effect(&mut effect);
        for (place, value) in std::mem::take(&mut self.mutations) {
            check_any(&self.replica, &effect.with_integer(place, value));
        }
        if self.mutates_all {
            check_each_number(&self.replica, &effect);
        }
        let followed = applied(&self.replica, &effect);
        assert!(followed.is_some(), "{effect:?} is refused");
        self.replica = followed.unwrap();
        if !self.restarted.is_unused() {
            self.restarted = decoded(&encoded(&self.restarted)).unwrap();
        }
        self.restarted = applied(&self.restarted, &effect).unwrap();
        self.compare(usage);
    }

    fn compare(&self, usage: &CompositeUsage) {
        let stored = encoded(usage);
        assert_eq!(encoded(&self.replica), stored);
        assert_eq!(encoded(&self.restarted), stored);
        assert_eq!(encoded(&decoded::<CompositeUsage>(&stored).unwrap()), stored);
    }
}

/// Each component has as many entries after a call as it was said to get. (Of ids more may have expired, and
/// at the last instant a lease has expired as it is taken.)
fn check_entries(usage: &CompositeUsage, said: &[(Kind, usize, bool)], now: Timestamp) {
    let is_kept = |kind: Kind| kind != Kind::Limits && (kind != Kind::Concurrency || now < Timestamp::MAX);
    for (kind, entries, _) in said.iter().filter(|(kind, ..)| is_kept(*kind)) {
        let mut of_kind = usage.components.iter().filter(|component| component.usage.kind() == *kind);
        let gets = |component: &Component| with_usage!(&component.usage, usage => usage.entries()) == *entries;
        assert!(of_kind.any(gets), "{said:?}");
    }
}
