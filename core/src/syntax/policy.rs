//! Policies: lists of specs that the server stores under a name, and the requests of calls by that name.
//!
//! The operator sets the numbers and flags of each limit, its name (AS) and optionally its cost. A call sets what
//! differs from call to call: cost, mode, id and the amount to keep.

use super::ban_words::ban_rule;
use super::common_options::CommonOptions;
use super::key_request::{CompositeRequest, KeyRequest};
use super::options::{Cost, Mode, Options};
use super::policy_request::PolicyRequest;
use super::purpose::{Idempotency, Purpose, Verb};
use super::spec::{ParsedLimit, Spec};
use super::spec_options::SpecOptions;
use super::word_errors;
use super::words::is_ban;
use crate::algorithm::any::AnyLimit;
use crate::algorithm::bucket::Discipline;
use crate::ban::BanRule;
use crate::evaluate::Request;
use crate::number::Amount;
use crate::wire::args::Args;
use crate::wire::error::{Error, MustBe, Reason, Syntax};
use std::borrow::Cow;
use std::fmt;

/// List of limits with an optional ban rule. [`Display`](fmt::Display) prints the words of its definition.
///
/// ```
/// use ratelimit_core::wire::args::Args;
/// use ratelimit_core::syntax::Policy;
///
/// let text = "RL.POLICYSET TOKENBUCKET 60 60 1m COST 1 AS requests FIXED 1000 1d SHADOW BAN 10 1h 1d";
/// let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
/// let policy = Policy::parse(&mut Args::new(&words))?;
/// assert_eq!(format!("RL.POLICYSET {policy}"), text);
/// # Ok::<(), ratelimit_core::wire::error::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    /// Limits, 1 to [`MAX_SPECS`](super::MAX_SPECS).
    limits: Vec<PolicyLimit>,
    ban: Option<BanRule>,
    /// Spec of a policy that a plain key can serve: a single limit without cost, name, SHADOW or ban.
    plain: Option<Spec<'static>>,
    /// Prebuilt request of a call without options, for any other policy. `None` if the request would borrow from the
    /// policy, or needs a holder or an item.
    prebuilt: Option<CompositeRequest<'static>>,
    /// `true` if an admitted call may be delayed (LEAKYBUCKET).
    has_queue: bool,
    /// `true` if a limit has FORCE.
    has_force: bool,
}

/// Limit of a policy.
#[derive(Clone, Debug)]
struct PolicyLimit {
    limit: AnyLimit,
    /// Limit before scaling, if usage recovers more slowly under that limit.
    slower_limit: Option<AnyLimit>,
    cost: Option<Cost>,
    name: Option<Box<[u8]>>,
    shadow: bool,
    /// Charges past the limit instead of denying (FORCE).
    force: bool,
}

const COST_OF_POLICY: MustBe = MustBe::number("a number", " from 0 to 1000000000000 in a policy", "1");
const POLICYSET: Syntax = Syntax { word: "RL.POLICYSET", arguments: "name [NX | VERSION version] spec [spec ...]" };

impl Policy {
    /// Parses `spec [FORCE | SHADOW] [spec [FORCE | SHADOW] ...] [BAN strikes window block [MAX longest]]`.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    pub fn parse(args: &mut Args<'_>) -> Result<Policy, Error> {
        let (mut specs, mut limits, mut words, mut ban): (Vec<Spec>, Vec<_>, _, _) = (vec![], vec![], &[][..], None);
        let in_policy = true;
        loop {
            let word = args.argument("a spec", &POLICYSET)?;
            if is_ban(word) && !limits.is_empty() {
                specs.first().map_or(Ok(()), Spec::check_bannable)?;
                ban = Some(ban_rule(args)?);
                break;
            }
            let parse = word_errors::next_limit_parser(word, words, limits.len(), in_policy)?;
            let mut options = SpecOptions::for_policy();
            let parsed = parse(args, &mut options)?;
            words = options.words;
            let own = options.options();
            own.reject_refund(&COST_OF_POLICY)?;
            let spec = CommonOptions::NONE.spec(&parsed, own)?;
            specs.iter().try_for_each(|other| spec.check_conflict(other))?;
            specs.push(spec);
            let name = own.name.map(Box::from);
            let (limit, cost, shadow, force) =
                (parsed.limit, own.cost, own.shadow, matches!(own.mode, Some(Mode::Force)));
            limits.push(PolicyLimit { limit, slower_limit: None, cost, name, shadow, force });
            if args.is_empty() {
                break;
            }
        }
        if let Some(word) = args.peek() {
            return Err(word_errors::unexpected(word, Reason::AfterBan));
        }
        Ok(Policy::of(limits, ban))
    }

    /// Creates the policy with its prebuilt requests.
    fn of(mut limits: Vec<PolicyLimit>, ban: Option<BanRule>) -> Policy {
        for limit in &mut limits {
            limit.limit = limit.limit.prepared();
        }
        let plain = match limits.as_slice() {
            [limit @ PolicyLimit { slower_limit: None, cost: None, name: None, shadow: false, .. }]
                if ban.is_none() && !limit.needs_holder() =>
            {
                Some(limit.unnamed_spec())
            }
            _ => None,
        };
        let is_complete = |limit: &PolicyLimit| !limit.needs_holder() && !limit.needs_item();
        let borrows = |limit: &PolicyLimit| limit.name.is_some() || limit.slower_limit.is_some();
        let can_be_prebuilt = |limit: &PolicyLimit| is_complete(limit) && !borrows(limit);
        let prebuilt = (plain.is_none() && limits.iter().all(can_be_prebuilt))
            .then(|| composite_of(limits.iter().map(PolicyLimit::unnamed_spec).collect(), ban));
        let is_queue = |limit: &PolicyLimit| matches!(limit.limit, AnyLimit::Bucket(bucket) if bucket.discipline() == Discipline::Queue);
        let (has_queue, has_force) = (limits.iter().any(is_queue), limits.iter().any(|limit| limit.force));
        Policy { limits, ban, plain, prebuilt, has_queue, has_force }
    }

    /// Returns the policy with every limit and refill multiplied by `factor` and rounded down. A refill is at least one
    /// millionth.
    #[must_use]
    pub fn scaled(&self, factor: Amount) -> Policy {
        let scaled = |limit: &PolicyLimit| {
            let unscaled = limit.limit;
            let is_slower = unscaled.recovers_by_rate() && factor > Amount::ONE;
            PolicyLimit { limit: unscaled.scaled(factor), slower_limit: is_slower.then_some(unscaled), ..limit.clone() }
        };
        Policy::of(self.limits.iter().map(scaled).collect(), self.ban)
    }

    /// Returns the number of limits.
    #[must_use]
    pub fn limit_count(&self) -> usize {
        self.limits.len()
    }

    /// Rejects the policy for RL.DELAY if an admitted call may be delayed.
    ///
    /// # Errors
    /// [`Error::LongerReply`] if a limit is a queue (LEAKYBUCKET).
    #[inline(always)]
    pub fn reject_longer_reply(&self) -> Result<(), Error> {
        if self.has_queue { Err(Error::LongerReply("a LEAKYBUCKET")) } else { Ok(()) }
    }

    /// Returns the spec of a call without options, if a plain key can serve it.
    #[must_use]
    #[inline(always)]
    pub fn plain(&self) -> Option<&Spec<'static>> {
        self.plain.as_ref().filter(|spec| !matches!(spec.limit, AnyLimit::Sketch(_)))
    }

    /// Returns `true` if a limit has FORCE: the policy may charge a call that it denies.
    #[must_use]
    pub fn has_force(&self) -> bool {
        self.has_force
    }

    /// Returns the prebuilt request of a call without options, if there is one.
    #[must_use]
    #[inline(always)]
    pub fn prebuilt(&self) -> Option<&CompositeRequest<'static>> {
        self.prebuilt.as_ref()
    }

    /// Returns the request of a call without options.
    ///
    /// # Errors
    /// Returns an error if the policy has leases, which need a holder, or a sketch, which needs an item.
    #[inline(always)]
    pub fn composite(&self) -> Result<Cow<'_, CompositeRequest<'_>>, Error> {
        self.prebuilt
            .as_ref()
            .map_or_else(|| self.build_composite().map(Cow::Owned), |request| Ok(Cow::Borrowed(request)))
    }

    #[inline(never)]
    fn build_composite(&self) -> Result<CompositeRequest<'_>, Error> {
        if self.limits.iter().any(PolicyLimit::needs_holder) {
            return Err(Error::NoHolder);
        }
        if self.limits.iter().any(PolicyLimit::needs_item) {
            return Err(Error::NoItem);
        }
        Ok(composite_of(self.limits.iter().map(PolicyLimit::spec).collect(), self.ban))
    }

    /// Returns the specs of a call with the options `common`. A lease needs `holder`, unless the call charges nothing.
    fn specs<'a>(
        &'a self,
        common: &CommonOptions<'a>,
        verb: Verb,
        holder: Option<&'a [u8]>,
    ) -> Result<Vec<Spec<'a>>, Error> {
        let mut specs = Vec::with_capacity(self.limits.len());
        for policy_limit in &self.limits {
            let PolicyLimit { limit, slower_limit, cost, name, shadow, .. } = policy_limit;
            let needs_holder = policy_limit.needs_holder();
            let holder_or_item = match holder {
                _ if policy_limit.needs_item() => common.options.item.ok_or(Error::NoItem)?,
                Some(holder) if needs_holder => holder,
                None if needs_holder && common.purpose == Purpose::Charge => return Err(Error::NoHolder),
                _ => &[],
            };
            let own = Options { cost: *cost, name: name.as_deref(), ..Options::NONE };
            let spec = common.spec(&ParsedLimit { limit: *limit, holder_or_item }, &own)?;
            let spec = Spec { shadow: *shadow, by_policy: true, slower_limit: slower_limit.as_ref(), ..spec };
            specs.push(if verb == Verb::Take { policy_limit.with_force(spec) } else { spec });
        }
        Ok(specs)
    }
}

/// Builds the request of a call without options from its specs.
fn composite_of(specs: Vec<Spec>, ban: Option<BanRule>) -> CompositeRequest {
    CompositeRequest { specs, idempotency: Idempotency::Every, purpose: Purpose::Charge, each: false, ban }
}

impl PolicyLimit {
    fn needs_holder(&self) -> bool {
        matches!(self.limit, AnyLimit::Concurrency(_))
    }

    fn needs_item(&self) -> bool {
        matches!(self.limit, AnyLimit::Sketch(_))
    }

    /// Returns the spec of a call without options.
    fn spec(&self) -> Spec<'_> {
        Spec { name: self.name.as_deref(), slower_limit: self.slower_limit.as_ref(), ..self.unnamed_spec() }
    }

    /// Returns the spec of a call without options. Omits the name and the slower limit, which would be borrowed.
    fn unnamed_spec(&self) -> Spec<'static> {
        let request = match self.cost {
            Some(Cost::Charge { cost, .. }) => Request::Take(cost),
            _ => Request::Take(Amount::ONE),
        };
        let (has_own_cost, shadow) = (self.cost.is_some(), self.shadow);
        self.with_force(Spec { has_own_cost, shadow, by_policy: true, ..Spec::of(self.limit, request) })
    }

    /// Applies FORCE to the spec of a call that charges, if the limit has it: the call charges past the limit, and KEEP
    /// does not apply.
    fn with_force<'a>(&self, spec: Spec<'a>) -> Spec<'a> {
        let request = spec.request.forced();
        if self.force && request.is_forced() {
            Spec { limit: self.limit, request, keep: Amount::ZERO, ..spec }
        } else {
            spec
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, PolicyLimit { limit, cost, name, shadow, force, .. }) in self.limits.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            limit.fmt(f)?;
            if let Some(Cost::Charge { cost, .. }) = cost {
                write!(f, " COST {cost}")?;
            }
            if let Some(name) = name {
                // A name consists of letters, digits, - and _.
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

impl<'a> PolicyRequest<'a> {
    /// Rejects a call of RL.DELAY whose reply would need more than one integer.
    ///
    /// # Errors
    /// [`Error::LongerReply`] with the option or the algorithm that needs a longer reply.
    pub fn reject_longer_reply(&self, policy: &Policy) -> Result<(), Error> {
        if self.each() {
            return Err(Error::LongerReply("EACH"));
        }
        policy.reject_longer_reply()?;
        self.common.mode_with_longer_reply().map_or(Ok(()), |word| Err(Error::LongerReply(word)))
    }

    /// Returns the request of the call on a policy.
    ///
    /// # Errors
    /// Returns an error if options conflict with each other or with a limit of the policy.
    pub fn request<'p>(&self, policy: &'p Policy) -> Result<KeyRequest<'p>, Error>
    where
        'a: 'p,
    {
        let idempotency = self.verb.idempotency(self.common.options.idempotency)?;
        let holder = match (self.verb, idempotency) {
            (Verb::Peek, _) => Some(&b""[..]),
            (Verb::Take, Idempotency::Once { id, .. } | Idempotency::Settle { id, .. }) => Some(id),
            (Verb::Take, Idempotency::Every) => None,
        };
        let specs = policy.specs(&self.common, self.verb, holder)?;
        let (purpose, each) = (self.common.purpose, self.each());
        if let ([spec], Some(_), Idempotency::Every, false) = (specs.as_slice(), &policy.plain, idempotency, each) {
            // In a refund (a negative common COST), a limit with a cost of its own is a peek. A plain key could deny
            // it, but a refund is never denied.
            let is_peek_in_refund = purpose == Purpose::Refund && !matches!(spec.request, Request::Refund(_));
            if !is_peek_in_refund {
                return Ok(KeyRequest::One(*spec));
            }
        }
        Ok(KeyRequest::Composite(Box::new(CompositeRequest { specs, idempotency, purpose, each, ban: policy.ban })))
    }
}

#[cfg(test)]
mod tests;
