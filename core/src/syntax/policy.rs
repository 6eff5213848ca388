//! A policy: a list of specs that the server keeps under a name, and a call that asks for one by that name.
//!
//! What the callers said is the operator's now: the numbers and flags of each limit, its name (AS) and perhaps its cost.
//! What is left to a call is what differs from call to call: its cost and mode, its id, what it keeps.

use super::call::{Asked, Call, ban_rule, is_ban, reader_behind};
use super::options::{self, Behind, Cost, Counts, OF_A_CALL, OF_KEYS, Options, Purpose, Terms, Verb};
use super::{AnyLimit, Numbers, Place, Spec};
use crate::algorithm::bucket::Discipline;
use crate::ban::BanRule;
use crate::evaluate::Ask;
use crate::number::Amount;
use crate::wire::args::Args;
use crate::wire::error::{Error, MustBe, Reason, Syntax, What};
use crate::wire::name::MAX_NAME;
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
    /// The one limit of a policy that a plain key can serve: it has nothing of what a key needs parts for.
    plain: Option<AnyLimit>,
    /// What a call asks of any other that says no more than its name, if that borrows nothing of the policy.
    ready: Option<Call<'static>>,
    /// Whether an admitted call may have to wait for its turn.
    queues: bool,
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
}

const COST_OF_POLICY: MustBe = MustBe::number("a number", " from 0 to 1000000000000 in a policy", "1");
const POLICY: MustBe = MustBe::other("a name of 1 to 256 bytes", "plan:pro");
const SET: Syntax = Syntax { word: "RL.POLICYSET", arguments: "name [NX | VERSION version] spec [spec ...]" };
const BEHIND_POLICY: Syntax = Syntax { word: "POLICY", arguments: "name [OR name ...]" };

impl Policy {
    /// `spec [SHADOW] [spec [SHADOW] ...] [BAN strikes window block]`, and no more.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn read(args: &mut Args<'_>) -> Result<Policy, Error> {
        let (mut specs, mut limits, mut words, mut ban): (Vec<Spec>, Vec<_>, _, _) =
            (vec![], vec![], options::NONE, None);
        loop {
            let word = args.argument("a spec", &SET)?;
            if is_ban(word) && !limits.is_empty() {
                ban = Some(ban_rule(args)?);
                break;
            }
            let place = if limits.is_empty() { Place::FirstOfPolicy } else { Place::NextOfPolicy };
            let read = reader_behind(word, words, place, limits.len(), Verb::Take)?;
            let mut behind = Behind::of_policy();
            let numbers = read(args, &mut behind)?;
            words = behind.words;
            let own = behind.options();
            own.refuse_give_back(&COST_OF_POLICY)?;
            let spec = Terms::NONE.spec(&numbers, own)?;
            specs.iter().try_for_each(|other| spec.refuse_twin(other))?;
            specs.push(spec);
            let name = own.name.map(Box::from);
            limits.push(PolicyLimit { limit: numbers.limit, slower: None, cost: own.cost, name, shadow: own.shadow });
            if args.is_empty() {
                break;
            }
        }
        if let Some(word) = args.peek() {
            return Err(options::refused(word, Reason::BanStandsLast));
        }
        Ok(Policy::of(limits, ban))
    }

    fn of(limits: Vec<PolicyLimit>, ban: Option<BanRule>) -> Policy {
        let plain = match limits.as_slice() {
            [PolicyLimit { limit, slower: None, cost: None, name: None, shadow: false }]
                if ban.is_none() && !matches!(limit, AnyLimit::Concurrency(_)) =>
            {
                Some(*limit)
            }
            _ => None,
        };
        let is_ready = |limit: &PolicyLimit| limit.name.is_none() && limit.slower.is_none() && !limit.is_of_leases();
        let ready = (plain.is_none() && limits.iter().all(is_ready))
            .then(|| call_of(limits.iter().map(PolicyLimit::alone).collect(), ban));
        let queues = |limit: &PolicyLimit| matches!(limit.limit, AnyLimit::Bucket(bucket) if bucket.discipline() == Discipline::Queue);
        let queues = limits.iter().any(queues);
        Policy { limits, ban, plain, ready, queues }
    }

    /// The policy with every limit and every refill times `factor`, rounded down as arguments are; a refill is not
    /// below a millionth.
    #[must_use]
    pub fn scaled(&self, factor: Amount) -> Policy {
        let scaled = |limit: &PolicyLimit| {
            let before = limit.limit;
            let slower = matches!(before, AnyLimit::Bucket(_)) && factor > Amount::ONE;
            PolicyLimit { limit: before.scaled(factor), slower: slower.then_some(before), ..limit.clone() }
        };
        Policy::of(self.limits.iter().map(scaled).collect(), self.ban)
    }

    /// The same, whatever the call.
    ///
    /// # Errors
    /// Likewise.
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
        self.plain.map(|limit| Spec { by_policy: true, ..Spec::of(limit, Ask::Take(Amount::ONE)) })
    }

    /// What a call asks of it that says no more than its name.
    ///
    /// # Errors
    /// It has leases, which such a call has no holder for.
    #[inline(always)]
    pub fn call(&self) -> Result<Cow<'_, Call<'_>>, Error> {
        if let Some(ready) = &self.ready { Ok(Cow::Borrowed(ready)) } else { self.call_anew().map(Cow::Owned) }
    }

    #[inline(never)]
    fn call_anew(&self) -> Result<Call<'_>, Error> {
        if self.limits.iter().any(PolicyLimit::is_of_leases) {
            return Err(Error::NoHolder);
        }
        Ok(call_of(self.limits.iter().map(PolicyLimit::asked).collect(), self.ban))
    }

    fn specs<'a>(&'a self, terms: &Terms<'a>, holder: Option<&'a [u8]>) -> Result<Vec<Spec<'a>>, Error> {
        let mut specs = Vec::with_capacity(self.limits.len());
        for of_policy in &self.limits {
            let PolicyLimit { limit, cost, name, .. } = of_policy;
            let of_leases = of_policy.is_of_leases();
            let holder = match holder {
                Some(holder) if of_leases => holder,
                None if of_leases && terms.purpose == Purpose::Charge => return Err(Error::NoHolder),
                _ => &[],
            };
            let own = Options::of_policy(*cost, name.as_deref());
            let spec = terms.spec(&Numbers { limit: *limit, holder }, &own)?;
            specs.push(of_policy.rule(spec));
        }
        Ok(specs)
    }
}

/// A call that asks for a policy's limits, and no more.
fn call_of(specs: Vec<Spec>, ban: Option<BanRule>) -> Call {
    Call { specs, counts: Counts::Every, purpose: Purpose::Charge, each: false, ban }
}

impl PolicyLimit {
    fn is_of_leases(&self) -> bool {
        matches!(self.limit, AnyLimit::Concurrency(_))
    }

    /// What a call asks of it that says no more than the policy's name.
    fn asked(&self) -> Spec<'_> {
        self.rule(Spec { name: self.name.as_deref(), ..self.alone() })
    }

    /// The same, without its own name and without what it was before it was scaled.
    fn alone(&self) -> Spec<'static> {
        let ask = match self.cost {
            Some(Cost::Charge { cost, .. }) => Ask::Take(cost),
            _ => Ask::Take(Amount::ONE),
        };
        self.of_policy(Spec { own_cost: self.cost.is_some(), ..Spec::of(self.limit, ask) })
    }

    /// A spec of its limit, as one of the policy.
    #[inline(always)]
    fn rule<'a>(&'a self, spec: Spec<'a>) -> Spec<'a> {
        Spec { slower: self.slower.as_ref(), ..self.of_policy(spec) }
    }

    /// The same, but for what it was before it was scaled.
    #[inline(always)]
    fn of_policy<'a>(&self, spec: Spec<'a>) -> Spec<'a> {
        Spec { shadow: self.shadow, by_policy: true, ..spec }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, PolicyLimit { limit, cost, name, shadow, .. }) in self.limits.iter().enumerate() {
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
            if *shadow {
                f.write_str(" SHADOW")?;
            }
        }
        self.ban.map_or(Ok(()), |BanRule { strikes, window, block }| write!(f, " BAN {strikes} {window} {block}"))
    }
}

/// A call, on one key, that asks for a policy.
#[derive(Clone, Debug)]
pub struct ByPolicy<'a> {
    /// The name that it asks for first.
    first: &'a [u8],
    /// Those that it asks for if there is no such policy (OR).
    others: Vec<&'a [u8]>,
    terms: Terms<'a>,
    verb: Verb,
}

impl<'a> ByPolicy<'a> {
    /// `[OR name ...] [options]`, and no more: what stands behind the first name of RL.LIMIT.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn behind(first: &'a [u8], args: &mut Args<'a>) -> Result<ByPolicy<'a>, Error> {
        let by = ByPolicy::behind_name(first, args, Verb::Take, &Terms::NONE, false)?;
        if let Some(word) = args.peek() {
            return Err(options::needed(word, What::OrOption, OF_A_CALL, false));
        }
        Ok(by)
    }

    /// What stands behind POLICY: of a call on one key.
    pub(super) fn of_key(args: &mut Args<'a>, verb: Verb, terms: &Terms<'a>) -> Result<ByPolicy<'a>, Error> {
        let first = name_behind(args)?;
        let by = ByPolicy::behind_name(first, args, verb, terms, false)?;
        match args.peek() {
            Some(word) => Err(options::refused(word, Reason::PolicyStandsAlone)),
            None => Ok(by),
        }
    }

    /// The same, of one key of several.
    pub(super) fn of_keys(args: &mut Args<'a>, verb: Verb, terms: &Terms<'a>) -> Result<ByPolicy<'a>, Error> {
        let first = name_behind(args)?;
        ByPolicy::behind_name(first, args, verb, terms, true)
    }

    #[inline(never)]
    fn behind_name(
        first: &'a [u8],
        args: &mut Args<'a>,
        verb: Verb,
        terms: &Terms<'a>,
        one_of_several: bool,
    ) -> Result<ByPolicy<'a>, Error> {
        let words = if one_of_several { OF_KEYS } else { OF_A_CALL };
        let mut others = Vec::new();
        while args.accept("OR") {
            others.push(name_behind(args)?);
        }
        let own = Options::read(args, words)?;
        if one_of_several {
            own.refuse_among_several()?;
        }
        Ok(ByPolicy { first, others, terms: terms.with(&own)?, verb })
    }

    /// The names that it asks for: the first that is a policy's rules.
    pub fn names(&self) -> impl Iterator<Item = &'a [u8]> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// The refusal of a call that asks for no policy there is.
    #[cold]
    #[must_use]
    pub fn missing(&self) -> Error {
        Error::no_policy(self.names())
    }

    /// Refuses a call of RL.DELAY if it would have more to tell, when it is admitted, than that.
    ///
    /// # Errors
    /// Names what that is.
    pub fn refuse_more_to_tell(&self, policy: &Policy) -> Result<(), Error> {
        if self.each() {
            return Err(Error::MoreToTell("EACH"));
        }
        policy.refuse_more_to_tell()?;
        self.terms.word_that_tells_more().map_or(Ok(()), |word| Err(Error::MoreToTell(word)))
    }

    /// Whether each limit's decision is to be told.
    #[must_use]
    pub fn each(&self) -> bool {
        self.terms.each()
    }

    /// What it asks of the policy.
    ///
    /// # Errors
    /// Options that do not go together, or with a limit of the policy.
    pub fn asked<'p>(&self, policy: &'p Policy) -> Result<Asked<'p>, Error>
    where
        'a: 'p,
    {
        let counts = self.verb.counts(self.terms.counts())?;
        let holder = match (self.verb, counts) {
            (Verb::Peek, _) => Some(&b""[..]),
            (Verb::Take, Counts::Once { id, .. } | Counts::Settle { id, .. }) => Some(id),
            (Verb::Take, Counts::Every) => None,
        };
        let specs = policy.specs(&self.terms, holder)?;
        let (purpose, each) = (self.terms.purpose, self.each());
        if let ([spec], Some(_), Counts::Every, false) = (specs.as_slice(), policy.plain, counts, each) {
            // Nothing denies a give-back, not even what it only looks at.
            let looks_beside = purpose == Purpose::GiveBack && !matches!(spec.ask, Ask::GiveBack(_));
            if !looks_beside {
                return Ok(Asked::One(*spec));
            }
        }
        Ok(Asked::Several(Box::new(Call { specs, counts, purpose, each, ban: policy.ban })))
    }
}

/// `name`: of a policy, where the server counts the words.
///
/// # Errors
/// The word, if it is missing, or no such name.
#[inline(always)]
pub fn name_of_policy<'a>(args: &mut Args<'a>) -> Result<&'a [u8], Error> {
    valid(args.word()?)
}

/// `name`: behind POLICY or OR.
fn name_behind<'a>(args: &mut Args<'a>) -> Result<&'a [u8], Error> {
    valid(args.argument("name", &BEHIND_POLICY)?)
}

#[inline(always)]
fn valid(name: &[u8]) -> Result<&[u8], Error> {
    let valid = (1..=MAX_NAME).contains(&name.len());
    valid.then_some(name).ok_or_else(|| Error::out_of_range("name", &POLICY, name))
}

#[cfg(test)]
mod tests;
