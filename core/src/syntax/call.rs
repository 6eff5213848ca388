//! A call on one key: a spec or several, and what goes with them.

use super::options::{self, Behind, Counts, OF_A_CALL, Options, Purpose, Terms, Verb, Words};
use super::policy::ByPolicy;
use super::{AnyLimit, DURATION, Numbers, Place, Reader, Spec};
use crate::ban::BanRule;
use crate::evaluate::Ask;
use crate::number::Period;
use crate::wire::args::{Args, whole};
use crate::wire::error::{Error, Hint, MustBe, Reason, Syntax, What};

/// A call on one key.
///
/// ```
/// use ratelimit_core::wire::args::Args;
/// use ratelimit_core::syntax::{Asked, Counts};
/// use ratelimit_core::{Amount, Ask};
///
/// let text = "RL.TAKE COST 4000 ONCE req-17 5m TOKENBUCKET 60 60 1m COST 1 AS requests TOKENBUCKET 9000 9000 1m AS tokens";
/// let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
/// let Asked::Several(call) = Asked::take(&mut Args::new(&words))? else { unreachable!() };
/// let asks: Vec<Ask> = call.specs.iter().map(|spec| spec.ask).collect();
/// assert_eq!(asks, [1, 4000].map(|units| Ask::Take(Amount::saturating(units * 1_000_000))));
/// assert!(matches!(call.counts, Counts::Once { id: b"req-17", .. }));
/// # Ok::<(), ratelimit_core::wire::error::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum Asked<'a> {
    /// What a plain key can serve: one spec, and nothing else to remember or to tell.
    One(Spec<'a>),
    /// Anything more.
    Several(Box<Call<'a>>),
    /// The specs of a policy, which [`ByPolicy::asked`] reads.
    Policy(Box<ByPolicy<'a>>),
}

/// A call on one key that is more than one spec.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// 1 to [`MAX_SPECS`]: no two of one kind that are known by the same.
    pub specs: Vec<Spec<'a>>,
    /// How often it counts.
    pub counts: Counts<'a>,
    /// What it is for as a whole.
    pub purpose: Purpose,
    /// Whether each limit's own decision is to be told.
    pub each: bool,
    /// What bans the key.
    pub ban: Option<BanRule>,
}

/// How many specs one call on a key may have.
pub const MAX_SPECS: usize = 8;

const STRIKES: MustBe = MustBe::number("a whole number", " from 1 to 4294967295", "10");
const NAMES: MustBe = MustBe::other("different from each other for limits of one kind", "AS requests");
const BAN: Syntax = Syntax { word: "BAN", arguments: "strikes window block" };

impl<'a> Call<'a> {
    /// A call that is one spec, and no more.
    #[must_use]
    pub fn of_one(spec: Spec<'a>) -> Call<'a> {
        let purpose = Purpose::of(spec.ask);
        Call { specs: vec![spec], counts: Counts::Every, purpose, each: false, ban: None }
    }
}

impl<'a> Asked<'a> {
    /// `[options] spec [spec ...] [BAN strikes window block]`, and no more: of RL.TAKE.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline(always)]
    pub fn take(args: &mut Args<'a>) -> Result<Asked<'a>, Error> {
        Asked::read(args, Verb::Take)
    }

    /// The same of RL.PEEK, which settles nothing and has no use for an id.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline(always)]
    pub fn peek(args: &mut Args<'a>) -> Result<Asked<'a>, Error> {
        Asked::read(args, Verb::Peek)
    }

    /// The numbers and options of one algorithm, and no more: of a command of its own. Who knows the algorithm and is in
    /// a hurry reads the numbers and asks [`Behind::is_nothing`] first.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline(always)]
    pub fn one(
        args: &mut Args<'a>,
        read: impl FnOnce(&mut Args<'a>, &mut Behind<'a>) -> Result<Numbers<'a>, Error>,
    ) -> Result<Asked<'a>, Error> {
        let mut behind = Behind::default();
        let numbers = read(args, &mut behind)?;
        if behind.is_nothing(args) {
            return Ok(Asked::One(Spec::plain(numbers)));
        }
        Asked::alone(args, &numbers, &behind)
    }

    /// What numbers of one algorithm ask together with what stands behind them.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline(never)]
    pub fn alone(args: &mut Args<'a>, numbers: &Numbers<'a>, behind: &Behind<'a>) -> Result<Asked<'a>, Error> {
        if let Some(word) = args.peek() {
            return Err(options::needed(word, What::Option, behind.words, false));
        }
        Asked::of_one(Verb::Take, &Terms::NONE, numbers, behind, None)
    }

    #[inline(always)]
    fn read(args: &mut Args<'a>, verb: Verb) -> Result<Asked<'a>, Error> {
        let Some(read) = args.peek().and_then(Spec::reader) else {
            return Asked::behind_options(args, verb);
        };
        args.skip();
        let mut behind = Behind::default();
        let numbers = read(args, &mut behind)?;
        if behind.is_nothing(args) {
            return Ok(Asked::One(Spec::plain(numbers)));
        }
        Asked::behind_first(args, verb, &Terms::NONE, &numbers, &behind)
    }

    /// A call that does not begin with a spec.
    #[cold]
    fn behind_options(args: &mut Args<'a>, verb: Verb) -> Result<Asked<'a>, Error> {
        let terms = Options::read(args, OF_A_CALL)?.of_the_call()?;
        let word = args.argument("a spec", verb.syntax())?;
        if is_ban(word) {
            return Err(Error::unexpected(word, Reason::BanBehindSpecs));
        }
        if is_policy(word) {
            return ByPolicy::of_key(args, verb, &terms).map(|by| Asked::Policy(Box::new(by)));
        }
        let read = Spec::reader(word).ok_or_else(|| Spec::unknown(word, Place::First, OF_A_CALL, verb))?;
        let mut behind = Behind::default();
        let numbers = read(args, &mut behind)?;
        Asked::behind_first(args, verb, &terms, &numbers, &behind)
    }

    /// What follows the first spec.
    #[inline(never)]
    fn behind_first(
        args: &mut Args<'a>,
        verb: Verb,
        terms: &Terms<'a>,
        numbers: &Numbers<'a>,
        behind: &Behind<'a>,
    ) -> Result<Asked<'a>, Error> {
        // What a plain key can serve asks for no memory.
        if args.is_empty() {
            return Asked::of_one(verb, terms, numbers, behind, None);
        }
        let (mut specs, mut words, mut ban): (Vec<Spec>, _, _) = (Vec::new(), behind.words, None);
        while let (Some(word), None) = (args.peek(), ban) {
            args.skip();
            if is_ban(word) {
                ban = Some(ban_rule(args)?);
                continue;
            }
            if specs.is_empty() {
                // Once, for all there can be.
                specs.reserve_exact(MAX_SPECS);
                specs.push(terms.spec_on_key(numbers, behind)?);
            }
            let read = reader_behind(word, words, Place::Next, specs.len(), verb)?;
            let mut behind = Behind::default();
            let numbers = read(args, &mut behind)?;
            words = behind.words;
            let spec = terms.spec_on_key(&numbers, &behind)?;
            specs.iter().try_for_each(|other| spec.refuse_twin(other))?;
            specs.push(spec);
        }
        if let Some(word) = args.peek() {
            return Err(options::refused(word, Reason::BanStandsLast));
        }
        if specs.is_empty() {
            return Asked::of_one(verb, terms, numbers, behind, ban);
        }
        let counts = verb.counts(terms.counts())?;
        let (purpose, each) = (terms.purpose, terms.each());
        Ok(Asked::Several(Box::new(Call { specs, counts, purpose, each, ban })))
    }

    /// A call that has one spec.
    #[inline(always)]
    fn of_one(
        verb: Verb,
        terms: &Terms<'a>,
        numbers: &Numbers<'a>,
        behind: &Behind<'a>,
        ban: Option<BanRule>,
    ) -> Result<Asked<'a>, Error> {
        let own = behind.options();
        let counting = terms.counting_as(own)?;
        let terms = counting.as_ref().unwrap_or(terms);
        let counts = verb.counts(terms.counts())?;
        let spec = terms.spec(numbers, own)?;
        let purpose = if terms.purpose == Purpose::Charge { Purpose::of(spec.ask) } else { terms.purpose };
        // Nothing denies a give-back, not even what it only looks at.
        let looks_beside = purpose == Purpose::GiveBack && !matches!(spec.ask, Ask::GiveBack(_));
        let plain = counts == Counts::Every && spec.name.is_none() && !terms.each() && ban.is_none() && !looks_beside;
        if plain {
            return Ok(Asked::One(spec));
        }
        let (specs, each) = (vec![spec], terms.each());
        Ok(Asked::Several(Box::new(Call { specs, counts, purpose, each, ban })))
    }
}

/// What reads the spec that `word` begins behind `before` others, of which the last could have the options `words`.
pub(super) fn reader_behind<'a>(
    word: &[u8],
    words: Words,
    place: Place,
    before: usize,
    verb: Verb,
) -> Result<Reader<'a>, Error> {
    let Some(read) = Spec::reader(word) else {
        if word.eq_ignore_ascii_case(b"EACH") && !place.is_in_policy() {
            return Err(Error::unexpected(b"EACH", Reason::ForAllSpecs));
        }
        if is_policy(word) {
            return Err(Error::unexpected(b"POLICY", Reason::PolicyAlone));
        }
        return Err(Spec::unknown(word, place, words, verb));
    };
    if before == MAX_SPECS {
        return Err(Error::unexpected(word, Reason::TooManySpecs { most: MAX_SPECS, of_policy: place.is_in_policy() }));
    }
    Ok(read)
}

impl Spec<'_> {
    /// Refuses a spec that would find the same part of a key as another.
    pub(super) fn refuse_twin(&self, other: &Spec) -> Result<(), Error> {
        if self.limit.kind() != other.limit.kind() {
            return Ok(());
        }
        match (self.name, other.name) {
            _ if matches!(self.limit, AnyLimit::Concurrency(_)) => {
                Err(Error::unexpected(b"CONCURRENCY", Reason::OneOfLeases))
            }
            (Some(name), Some(twin)) if name == twin => Err(Error::hinted("names", &NAMES, name, Hint::Twice)),
            (None, None) if self.limit.known_by() == other.limit.known_by() => {
                let limits = [other, self].map(|spec| spec.limit.raised_by(spec.kept).to_string());
                Err(Error::SameWindow(Box::new(limits)))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a word begins what stands for a policy's specs.
pub(super) fn is_policy(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"POLICY")
}

/// Whether a word begins the rule of a ban.
pub(super) fn is_ban(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"BAN")
}

/// `strikes window block`
pub(super) fn ban_rule(args: &mut Args) -> Result<BanRule, Error> {
    let strikes = whole(args.argument("strikes", &BAN)?, u32::MAX.into());
    let strikes = strikes.and_then(|strikes| u32::try_from(strikes).ok()).filter(|strikes| *strikes > 0);
    let strikes = strikes.ok_or_else(|| args.refused("strikes", &STRIKES, &BAN))?;
    let mut period =
        |argument| Period::parse(args.argument(argument, &BAN)?).ok_or_else(|| args.refused(argument, &DURATION, &BAN));
    Ok(BanRule { strikes, window: period("window")?, block: period("block")? })
}
