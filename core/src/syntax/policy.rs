//! A policy: a list of specs that the server keeps under a name, and what a call by that name asks of it.
//!
//! What the callers said is the operator's now: the numbers and flags of each limit, its name (AS) and perhaps its
//! cost. What is left to a call is what differs from call to call: its cost and mode, its id, what it keeps.

use super::ban_words::ban_rule;
use super::by_policy::ByPolicy;
use super::common_options::CommonOptions;
use super::key_request::{CompositeRequest, KeyRequest};
use super::options::{Cost, Options};
use super::purpose::{Idempotency, Purpose, Verb};
use super::refusal::{self, WordPlace};
use super::spec::{ParsedLimit, Spec};
use super::spec_options::SpecOptions;
use super::words::{self, is_ban};
use crate::algorithm::any::AnyLimit;
use crate::algorithm::bucket::{Bucket, Discipline};
use crate::ban::BanRule;
use crate::evaluate::Request;
use crate::number::Amount;
use crate::wire::args::Args;
use crate::wire::error::{Error, MustBe, Reason, Syntax};
use std::borrow::Cow;
use std::fmt;

/// A list of limits, and perhaps a ban. It displays as the words that it is read from.
///
/// ```
/// use ratelimit_core::wire::args::Args;
/// use ratelimit_core::syntax::Policy;
///
/// let text = "RL.POLICYSET TOKENBUCKET 60 60 1m COST 1 AS requests FIXED 1000 1d SHADOW BAN 10 1h 1d";
/// let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
/// let policy = Policy::read(&mut Args::new(&words))?;
/// assert_eq!(format!("RL.POLICYSET {policy}"), text);
/// # Ok::<(), ratelimit_core::wire::error::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    /// 1 to [`MAX_SPECS`](super::MAX_SPECS).
    limits: Vec<PolicyLimit>,
    ban: Option<BanRule>,
    /// The one limit of a policy that a plain key can serve: it has nothing that takes a composite key.
    plain: Option<AnyLimit>,
    /// What a call asks of any other that says no more than its name, if that borrows nothing of the policy.
    ready: Option<CompositeRequest<'static>>,
    /// Whether an admitted call may have to wait for its turn.
    queues: bool,
    /// A limit with FORCE among them.
    forces: bool,
}

/// A limit of a policy.
#[derive(Clone, Debug)]
struct PolicyLimit {
    limit: AnyLimit,
    /// What it was before it was scaled, if usage recovers more slowly then.
    slower: Option<AnyLimit>,
    cost: Option<Cost>,
    name: Option<Box<[u8]>>,
    shadow: bool,
    /// Charges past the limit instead of denying them (FORCE).
    force: bool,
}

const COST_OF_POLICY: MustBe = MustBe::number("a number", " from 0 to 1000000000000 in a policy", "1");
const SET: Syntax = Syntax { word: "RL.POLICYSET", arguments: "name [NX | VERSION version] spec [spec ...]" };

impl Policy {
    /// `spec [FORCE | SHADOW] [spec [FORCE | SHADOW] ...] [BAN strikes window block [MAX longest]]`, and no more.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn read(args: &mut Args<'_>) -> Result<Policy, Error> {
        let (mut specs, mut limits, mut words, mut ban): (Vec<Spec>, Vec<_>, _, _) =
            (vec![], vec![], words::NONE, None);
        loop {
            let word = args.argument("a spec", &SET)?;
            if is_ban(word) && !limits.is_empty() {
                specs.first().map_or(Ok(()), Spec::refuse_ban)?;
                ban = Some(ban_rule(args)?);
                break;
            }
            let place = if limits.is_empty() { WordPlace::FirstOfPolicy } else { WordPlace::NextOfPolicy };
            let read = refusal::next_reader(word, words, place, limits.len(), Verb::Take)?;
            let mut options = SpecOptions::of_policy();
            let parsed = read(args, &mut options)?;
            words = options.words;
            let own = options.options();
            own.refuse_give_back(&COST_OF_POLICY)?;
            let spec = CommonOptions::NONE.spec(&parsed, own)?;
            specs.iter().try_for_each(|other| spec.refuse_twin(other))?;
            specs.push(spec);
            let name = own.name.map(Box::from);
            let (limit, cost, shadow, force) = (parsed.limit, own.cost, own.shadow, own.force());
            limits.push(PolicyLimit { limit, slower: None, cost, name, shadow, force });
            if args.is_empty() {
                break;
            }
        }
        if let Some(word) = args.peek() {
            return Err(refusal::refused(word, Reason::BanStandsLast));
        }
        Ok(Policy::of(limits, ban))
    }

    fn of(mut limits: Vec<PolicyLimit>, ban: Option<BanRule>) -> Policy {
        for limit in &mut limits {
            limit.limit = limit.limit.prepared();
        }
        let plain = match limits.as_slice() {
            [PolicyLimit { limit, slower: None, cost: None, name: None, shadow: false, .. }]
                if ban.is_none() && !matches!(limit, AnyLimit::Concurrency(_)) =>
            {
                Some(*limit)
            }
            _ => None,
        };
        let says_all = |limit: &PolicyLimit| !limit.is_of_leases() && !limit.is_of_items();
        let is_ready = |limit: &PolicyLimit| limit.name.is_none() && limit.slower.is_none() && says_all(limit);
        let ready = (plain.is_none() && limits.iter().all(is_ready))
            .then(|| composite_of(limits.iter().map(PolicyLimit::alone).collect(), ban));
        let queues = |limit: &PolicyLimit| matches!(limit.limit, AnyLimit::Bucket(bucket) if bucket.discipline() == Discipline::Queue);
        let (queues, forces) = (limits.iter().any(queues), limits.iter().any(|limit| limit.force));
        Policy { limits, ban, plain, ready, queues, forces }
    }

    /// The policy with every limit and every refill times `factor`, rounded down as arguments are; a refill is not
    /// below a millionth.
    #[must_use]
    pub fn scaled(&self, factor: Amount) -> Policy {
        let scaled = |limit: &PolicyLimit| {
            let before = limit.limit;
            let slower = before.recovers_by_rate() && factor > Amount::ONE;
            PolicyLimit { limit: before.scaled(factor), slower: slower.then_some(before), ..limit.clone() }
        };
        Policy::of(self.limits.iter().map(scaled).collect(), self.ban)
    }

    /// Refuses a policy whose admitted calls may have to wait, for a reply that cannot tell how long.
    ///
    /// # Errors
    /// [`Error::MoreToTell`] if one of its limits is a queue (LEAKYBUCKET).
    #[inline(always)]
    pub fn refuse_more_to_tell(&self) -> Result<(), Error> {
        if self.queues { Err(Error::MoreToTell("a LEAKYBUCKET")) } else { Ok(()) }
    }

    /// How many limits it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.limits.len()
    }

    /// Whether it has none: it never is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// What a call asks of it that says no more than its name, if a plain key can serve that.
    #[must_use]
    #[inline(always)]
    pub fn plain(&self) -> Option<Spec<'static>> {
        let plain = self.plain.filter(|limit| !matches!(limit, AnyLimit::Sketch(_)));
        let one = Request::Take(Amount::ONE);
        let request = if self.forces { one.forced() } else { one };
        plain.map(|limit| Spec { by_policy: true, ..Spec::of(limit, request) })
    }

    /// Returns `true` if a limit has FORCE: the policy may charge a call that it denies.
    #[must_use]
    pub fn forces(&self) -> bool {
        self.forces
    }

    /// The token bucket that the policy is, if it is nothing else.
    #[must_use]
    #[inline(always)]
    pub fn token_bucket(&self) -> Option<&Bucket> {
        match &self.plain {
            Some(AnyLimit::Bucket(bucket)) if bucket.discipline() == Discipline::Burst && !self.forces => Some(bucket),
            _ => None,
        }
    }

    /// What a call asks of it that says no more than its name, where that is the same each time.
    #[must_use]
    #[inline(always)]
    pub fn ready(&self) -> Option<&CompositeRequest<'static>> {
        self.ready.as_ref()
    }

    /// What a call asks of it that says no more than its name.
    ///
    /// # Errors
    /// It has leases, which such a call has no holder for, or a sketch, which it has no item for.
    #[inline(always)]
    pub fn composite(&self) -> Result<Cow<'_, CompositeRequest<'_>>, Error> {
        if let Some(ready) = &self.ready { Ok(Cow::Borrowed(ready)) } else { self.composite_anew().map(Cow::Owned) }
    }

    #[inline(never)]
    fn composite_anew(&self) -> Result<CompositeRequest<'_>, Error> {
        if self.limits.iter().any(PolicyLimit::is_of_leases) {
            return Err(Error::NoHolder);
        }
        if self.limits.iter().any(PolicyLimit::is_of_items) {
            return Err(Error::NoItem);
        }
        Ok(composite_of(self.limits.iter().map(PolicyLimit::spec).collect(), self.ban))
    }

    fn specs<'a>(
        &'a self,
        common: &CommonOptions<'a>,
        verb: Verb,
        holder: Option<&'a [u8]>,
    ) -> Result<Vec<Spec<'a>>, Error> {
        let mut specs = Vec::with_capacity(self.limits.len());
        for of_policy in &self.limits {
            let PolicyLimit { limit, cost, name, .. } = of_policy;
            let of_leases = of_policy.is_of_leases();
            let holder = match holder {
                _ if of_policy.is_of_items() => common.item().ok_or(Error::NoItem)?,
                Some(holder) if of_leases => holder,
                None if of_leases && common.purpose == Purpose::Charge => return Err(Error::NoHolder),
                _ => &[],
            };
            let own = Options::of_policy(*cost, name.as_deref());
            let spec = common.spec(&ParsedLimit { limit: *limit, holder }, &own)?;
            let spec = of_policy.rule(spec);
            specs.push(if verb == Verb::Take { of_policy.forced(spec) } else { spec });
        }
        Ok(specs)
    }
}

/// A call that asks for a policy's limits, and no more.
fn composite_of(specs: Vec<Spec>, ban: Option<BanRule>) -> CompositeRequest {
    CompositeRequest { specs, idempotency: Idempotency::Every, purpose: Purpose::Charge, each: false, ban }
}

impl PolicyLimit {
    fn is_of_leases(&self) -> bool {
        matches!(self.limit, AnyLimit::Concurrency(_))
    }

    fn is_of_items(&self) -> bool {
        matches!(self.limit, AnyLimit::Sketch(_))
    }

    /// What a call asks of it that says no more than the policy's name.
    fn spec(&self) -> Spec<'_> {
        self.rule(Spec { name: self.name.as_deref(), ..self.alone() })
    }

    /// The spec of a call that says no more than the policy's name, without the limit's own name and without what the
    /// limit was before it was scaled.
    fn alone(&self) -> Spec<'static> {
        let request = match self.cost {
            Some(Cost::Charge { cost, .. }) => Request::Take(cost),
            _ => Request::Take(Amount::ONE),
        };
        self.forced(self.of_policy(Spec { own_cost: self.cost.is_some(), ..Spec::of(self.limit, request) }))
    }

    /// A spec of its limit, as one of the policy.
    #[inline(always)]
    fn rule<'a>(&'a self, spec: Spec<'a>) -> Spec<'a> {
        Spec { slower: self.slower.as_ref(), ..self.of_policy(spec) }
    }

    /// Marks a spec as one of the policy, without what the limit was before it was scaled.
    #[inline(always)]
    fn of_policy<'a>(&self, spec: Spec<'a>) -> Spec<'a> {
        Spec { shadow: self.shadow, by_policy: true, ..spec }
    }

    /// Returns the spec of a call that charges: with FORCE it charges past the limit, and keeps nothing of it.
    fn forced<'a>(&self, spec: Spec<'a>) -> Spec<'a> {
        let request = spec.request.forced();
        if self.force && request.is_forced() {
            Spec { limit: self.limit, request, kept: Amount::ZERO, ..spec }
        } else {
            spec
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, PolicyLimit { limit, cost, name, shadow, force, .. }) in self.limits.iter().enumerate() {
            if place > 0 {
                f.write_str(" ")?;
            }
            limit.fmt(f)?;
            if let Some(Cost::Charge { cost, .. }) = cost {
                write!(f, " COST {cost}")?;
            }
            if let Some(name) = name {
                // Of letters, digits, - and _.
                write!(f, " AS {}", String::from_utf8_lossy(name))?;
            }
            if *force {
                f.write_str(" FORCE")?;
            }
            if *shadow {
                f.write_str(" SHADOW")?;
            }
        }
        let Some(BanRule { strikes, window, block, longest }) = self.ban else { return Ok(()) };
        write!(f, " BAN {strikes} {window} {block}")?;
        longest.map_or(Ok(()), |longest| write!(f, " MAX {longest}"))
    }
}

impl<'a> ByPolicy<'a> {
    /// Refuses a call of RL.DELAY if it would have more to tell, when it is admitted, than that.
    ///
    /// # Errors
    /// Names what that is.
    pub fn refuse_more_to_tell(&self, policy: &Policy) -> Result<(), Error> {
        if self.each() {
            return Err(Error::MoreToTell("EACH"));
        }
        policy.refuse_more_to_tell()?;
        self.common.word_that_tells_more().map_or(Ok(()), |word| Err(Error::MoreToTell(word)))
    }

    /// What it asks of the policy.
    ///
    /// # Errors
    /// Options that do not go together, or with a limit of the policy.
    pub fn request<'p>(&self, policy: &'p Policy) -> Result<KeyRequest<'p>, Error>
    where
        'a: 'p,
    {
        let idempotency = self.verb.idempotency(self.common.idempotency())?;
        let holder = match (self.verb, idempotency) {
            (Verb::Peek, _) => Some(&b""[..]),
            (Verb::Take, Idempotency::Once { id, .. } | Idempotency::Settle { id, .. }) => Some(id),
            (Verb::Take, Idempotency::Every) => None,
        };
        let specs = policy.specs(&self.common, self.verb, holder)?;
        let (purpose, each) = (self.common.purpose, self.each());
        if let ([spec], Some(_), Idempotency::Every, false) = (specs.as_slice(), policy.plain, idempotency, each) {
            // Nothing denies a give-back, not even what it only looks at.
            let looks_beside = purpose == Purpose::GiveBack && !matches!(spec.request, Request::GiveBack(_));
            if !looks_beside {
                return Ok(KeyRequest::One(*spec));
            }
        }
        Ok(KeyRequest::Composite(Box::new(CompositeRequest { specs, idempotency, purpose, each, ban: policy.ban })))
    }
}

#[cfg(test)]
mod tests;
