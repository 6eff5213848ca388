//! What a call says of its limits: `TOKENBUCKET 200 100 60s COST 2` -> a limit and what is asked of it.
//!
//! A spec is an algorithm's name, its numbers and options, and ends where a word comes that it has no place for, so
//! that several can stand one after another. Calls on one key are read by [`Asked`], calls on several by
//! [`CallOnKeys`].

mod call;
pub mod heavy_hitters;
mod keys;
mod options;
mod policy;
mod window;

use crate::algorithm::bucket::{Bucket, Discipline, Refused};
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::leases::{Concurrency, MAX_HOLDER};
use crate::algorithm::log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::strict_window::StrictWindow;
use crate::evaluate::Ask;
use crate::limit::{Kind, Known, Limit, Usage};
use crate::number::{Amount, Period, Span};
use crate::wire::args::{Args, whole};
use crate::wire::error::{Error, MustBe, Reason, Syntax, What};
pub use call::{Asked, Call, MAX_SPECS};
pub use keys::{CallOnKeys, KeySpec, OnKey};
pub use options::{Behind, Block, Counts, MAX_ID, MAX_NAME, Purpose, is_name};
pub use policy::{ByPolicy, Policy, name_of_policy};
use std::fmt;
use window::Window;

/// A limit, and what a call asks of it.
///
/// ```
/// use ratelimit_core::wire::args::Args;
/// use ratelimit_core::syntax::{AnyLimit, Asked};
/// use ratelimit_core::{Amount, Ask};
///
/// let words: [&[u8]; 6] = [b"RL.TAKE", b"fixed", b"1000", b"1d", b"COST", b"-1"];
/// let Asked::One(spec) = Asked::take(&mut Args::new(&words))? else { unreachable!() };
/// assert!(matches!(spec.limit, AnyLimit::FixedWindow(_)));
/// assert_eq!(spec.ask, Ask::GiveBack(Amount::ONE));
/// # Ok::<(), ratelimit_core::wire::error::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a word of its own")]
pub struct Spec<'a> {
    /// The limit, lowered by what is kept: to decide under it is exact, and a decision is told with
    /// [`Decision::keeping`](crate::limit::Decision::keeping).
    pub limit: AnyLimit,
    /// What is asked.
    pub ask: Ask,
    /// Who asks for a lease; nobody of any other limit.
    pub holder: &'a [u8],
    /// How much of the limit is to stay available after the call (KEEP), up to all of it.
    pub kept: Amount,
    /// What its part of the key is known by (AS): 1 to [`MAX_NAME`] bytes.
    pub name: Option<&'a [u8]>,
    /// Whether a COST stands behind its own numbers: what it was charged, a settlement leaves alone.
    pub own_cost: bool,
    /// Whether it is for a first lease only (NX).
    pub nx: bool,
    /// Whether it decides only for itself (SHADOW, in a policy).
    pub shadow: bool,
    /// Whether it is a policy's: then the policy is the truth of its key, which may hold what another definition left.
    pub by_policy: bool,
    /// A limit under which usage recovers more slowly, and may again before it has: that of a policy that is scaled.
    pub slower: Option<&'a AnyLimit>,
}

/// A limit of any algorithm; it displays as the words that it is read from. [`with_limit!`](crate::with_limit) is how
/// to call it.
#[derive(Clone, Copy, Debug)]
pub enum AnyLimit {
    /// RL.TOKENBUCKET, RL.LEAKYBUCKET.
    Bucket(Bucket),
    /// RL.FIXED.
    FixedWindow(FixedWindow),
    /// RL.SLIDING.
    SlidingWindow(SlidingWindow),
    /// RL.SLIDING with STRICT.
    StrictWindow(StrictWindow),
    /// RL.SLIDINGLOG.
    SlidingLog(SlidingLog),
    /// RL.ACQUIRE.
    Concurrency(Concurrency),
}

/// Runs `$body` with `$limit` bound to the algorithm's own type, as the [`Spec`] `$spec` asks it.
#[macro_export]
macro_rules! with_limit {
    ($spec:expr, $limit:ident => $body:expr) => {
        match &$spec.limit {
            $crate::syntax::AnyLimit::Bucket($limit) => $body,
            $crate::syntax::AnyLimit::FixedWindow($limit) => $body,
            $crate::syntax::AnyLimit::SlidingWindow($limit) => $body,
            $crate::syntax::AnyLimit::StrictWindow($limit) => $body,
            $crate::syntax::AnyLimit::SlidingLog($limit) => $body,
            $crate::syntax::AnyLimit::Concurrency(concurrency) => {
                let $limit = &concurrency.asked_by($spec.holder).nx($spec.nx);
                $body
            }
        }
    };
}

/// Runs `$body` with `$limit` bound to the algorithm's own type, whoever asks it.
macro_rules! of_any {
    ($any:expr, $limit:ident => $body:expr) => {
        match $any {
            AnyLimit::Bucket($limit) => $body,
            AnyLimit::FixedWindow($limit) => $body,
            AnyLimit::SlidingWindow($limit) => $body,
            AnyLimit::StrictWindow($limit) => $body,
            AnyLimit::SlidingLog($limit) => $body,
            AnyLimit::Concurrency($limit) => $body,
        }
    };
}

impl AnyLimit {
    /// How much may be used at once.
    #[must_use]
    pub fn limit(&self) -> Amount {
        of_any!(self, limit => limit.limit())
    }

    /// The same limit, lower by what a call keeps for others.
    #[must_use]
    pub fn lowered_by(self, kept: Amount) -> AnyLimit {
        self.limited_to(self.limit().minus(kept))
    }

    /// The same limit, higher by so much.
    #[must_use]
    pub fn raised_by(self, kept: Amount) -> AnyLimit {
        self.limited_to(self.limit().plus(kept))
    }

    fn limited_to(self, amount: Amount) -> AnyLimit {
        match self {
            AnyLimit::Bucket(limit) => AnyLimit::Bucket(limit.limited_to(amount)),
            AnyLimit::FixedWindow(limit) => AnyLimit::FixedWindow(limit.limited_to(amount)),
            AnyLimit::SlidingWindow(limit) => AnyLimit::SlidingWindow(limit.limited_to(amount)),
            AnyLimit::StrictWindow(limit) => AnyLimit::StrictWindow(limit.limited_to(amount)),
            AnyLimit::SlidingLog(limit) => AnyLimit::SlidingLog(limit.limited_to(amount)),
            AnyLimit::Concurrency(limit) => AnyLimit::Concurrency(limit.limited_to(amount)),
        }
    }

    /// The same times `factor`, its refill too: rounded down as arguments are, a refill not below a millionth.
    #[must_use]
    pub fn scaled(self, factor: Amount) -> AnyLimit {
        match self {
            AnyLimit::Bucket(limit) => AnyLimit::Bucket(limit.scaled(factor)),
            limit => limit.limited_to(limit.limit().times(factor)),
        }
    }

    /// The kind of usage that it is charged to.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            AnyLimit::Bucket(limit) => kind(limit),
            AnyLimit::FixedWindow(limit) => kind(limit),
            AnyLimit::SlidingWindow(limit) => kind(limit),
            AnyLimit::StrictWindow(limit) => kind(limit),
            AnyLimit::SlidingLog(limit) => kind(limit),
            AnyLimit::Concurrency(_) => Kind::Concurrency,
        }
    }

    /// What it is known by without a name, among those of its kind.
    #[must_use]
    pub fn known_by(&self) -> Known {
        match self {
            AnyLimit::Bucket(limit) => limit.known_by(),
            AnyLimit::FixedWindow(limit) => limit.known_by(),
            AnyLimit::SlidingWindow(limit) => limit.known_by(),
            AnyLimit::StrictWindow(limit) => limit.known_by(),
            AnyLimit::SlidingLog(limit) => limit.known_by(),
            // A key has one at most.
            AnyLimit::Concurrency(_) => Known { micros: 0, words: 0 },
        }
    }
}

fn kind<L: Limit>(_: &L) -> Kind {
    L::Usage::KIND
}

impl fmt::Display for AnyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        of_any!(self, limit => limit.fmt(f))
    }
}

/// What an algorithm's numbers and flags say.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    limit: AnyLimit,
    holder: &'a [u8],
}

impl Numbers<'_> {
    #[inline(always)]
    fn of(limit: AnyLimit) -> Self {
        Numbers { limit, holder: &[] }
    }
}

/// Reads the numbers behind an algorithm's name, and the options behind them.
pub type Reader<'a> = fn(&mut Args<'a>, &mut Behind<'a>) -> Result<Numbers<'a>, Error>;

const AMOUNT: MustBe = MustBe::number("a number", " from 0 to 1000000000000", "100");
const RATE: MustBe = MustBe::number("a number", " from 0.000001 to 1000000000000", "100");
const QUICK_RATE: MustBe = MustBe::other("enough to refill the capacity within 36500d", "the capacity itself");
const DURATION: MustBe = MustBe::duration("a duration", " from 1us to 3650d", "60s");
const BURST: MustBe = MustBe::number("a whole number", " from 0 to 999999999999", "15");
const COUNT: MustBe = MustBe::number("a whole number", " from 1 to 1000000000000", "30");
const FAST_COUNT: MustBe = MustBe::other("enough to refill the burst within 36500d", "max_burst itself");
const SECONDS: MustBe = MustBe::number("a whole number of seconds", " from 1 to 315360000", "60");
const QUANTITY: MustBe = MustBe::number("a whole number", " from 0 to 1000000000000", "1");
const BANNED_FOR: MustBe = MustBe::duration("0 or a duration", " from 1us to 3650d", "10m");
const HOLDER: MustBe = MustBe::other("a name of 1 to 256 bytes", "worker-7");

const TOKEN_BUCKET: Syntax = Syntax { word: "TOKENBUCKET", arguments: "capacity refill period" };
const LEAKY_BUCKET: Syntax = Syntax { word: "LEAKYBUCKET", arguments: "capacity leak period" };
const FIXED: Syntax = Syntax { word: "FIXED", arguments: "limit window" };
const SLIDING: Syntax = Syntax { word: "SLIDING", arguments: "limit window" };
const SLIDING_LOG: Syntax = Syntax { word: "SLIDINGLOG", arguments: "limit window" };
const CONCURRENCY: Syntax = Syntax { word: "CONCURRENCY", arguments: "limit ttl holder" };
const CONCURRENCY_OF_POLICY: Syntax = Syntax { word: "CONCURRENCY", arguments: "limit ttl" };
const THROTTLE: Syntax = Syntax { word: "RL.THROTTLE", arguments: "key max_burst count period [quantity]" };

/// Of every algorithm, as a spec has it.
const ALGORITHM_NAMES: [&str; 6] =
    [TOKEN_BUCKET.word, LEAKY_BUCKET.word, FIXED.word, SLIDING.word, SLIDING_LOG.word, CONCURRENCY.word];

impl<'a> Spec<'a> {
    /// Every algorithm: the name that it has in a spec, and what reads the words behind it.
    pub const ALGORITHMS: [(&'static str, Reader<'a>); 6] = [
        (TOKEN_BUCKET.word, Spec::token_bucket),
        (LEAKY_BUCKET.word, Spec::leaky_bucket),
        (FIXED.word, Spec::fixed_window),
        (SLIDING.word, Spec::sliding_window),
        (SLIDING_LOG.word, Spec::sliding_log),
        (CONCURRENCY.word, Spec::concurrency),
    ];

    /// What reads the words behind the name of an algorithm.
    #[inline(always)]
    fn reader(name: &[u8]) -> Option<Reader<'a>> {
        let algorithms = Self::ALGORITHMS.iter();
        // Nearly all write it as the documents do, and comparing without case costs a hundred instructions.
        let mut named = algorithms
            .filter(|(algorithm, _)| name == algorithm.as_bytes() || name.eq_ignore_ascii_case(algorithm.as_bytes()));
        named.next().map(|(_, read)| *read)
    }

    /// The refusal of a word where an algorithm's name could be, and these options.
    #[cold]
    fn unknown(word: &[u8], place: Place, options: options::Words, verb: options::Verb) -> Error {
        let (what, options) = match place {
            Place::First => (What::FirstSpec, options),
            Place::FirstOfPolicy => (What::Algorithm, options::NONE),
            Place::FirstOfKeys => (What::FirstSpecOfKeys, options),
            Place::Next | Place::NextOfPolicy => (What::NextSpec, options),
            Place::NextOfKeys => (What::NextSpecOfKeys, options),
        };
        let mut refused = options::needed(word, what, options, true);
        if let (Place::First, Error::Unexpected { reason, .. }) = (place, &mut refused)
            && let Reason::Needed(needed) = &mut **reason
        {
            needed.or_policy(verb.syntax_by_policy(), word);
        }
        refused
    }

    /// A cost of 1, with nothing else said.
    #[must_use]
    #[inline(always)]
    pub fn plain(Numbers { limit, holder }: Numbers<'a>) -> Spec<'a> {
        let ask = Ask::Take(Amount::ONE);
        Spec {
            limit,
            ask,
            holder,
            kept: Amount::ZERO,
            name: None,
            own_cost: false,
            nx: false,
            shadow: false,
            by_policy: false,
            slower: None,
        }
    }

    /// A limit, and what is asked of it; nothing else was said.
    #[must_use]
    pub fn of(limit: AnyLimit, ask: Ask) -> Spec<'a> {
        Spec { ask, ..Spec::plain(Numbers::of(limit)) }
    }

    /// Whether its holder is the call's id: the lease of a policy.
    #[must_use]
    pub fn is_held_by_id(&self) -> bool {
        self.by_policy && matches!(self.limit, AnyLimit::Concurrency(_))
    }

    /// The same if so much is to stay available.
    pub(crate) fn keeping(self, kept: Amount) -> Spec<'a> {
        let limit = self.limit.limit();
        // More than there is never stays available, not even after nothing.
        let ask = if kept > limit && self.ask.is_look() { Ask::LookPastLimit } else { self.ask };
        let kept = kept.min(limit);
        Spec { limit: self.limit.lowered_by(kept), ask, kept, ..self }
    }

    /// `capacity refill period [options] [MAXWAIT duration]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline(always)]
    pub fn token_bucket(args: &mut Args<'a>, behind: &mut Behind<'a>) -> Result<Numbers<'a>, Error> {
        let bucket = bucket(args, "refill", &TOKEN_BUCKET, Discipline::Burst)?;
        behind.read(args, options::OF_TOKEN_BUCKET)?;
        Ok(Numbers::of(AnyLimit::Bucket(bucket)))
    }

    /// `capacity leak period [options]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline(always)]
    pub fn leaky_bucket(args: &mut Args<'a>, behind: &mut Behind<'a>) -> Result<Numbers<'a>, Error> {
        let bucket = bucket(args, "leak", &LEAKY_BUCKET, Discipline::Queue)?;
        behind.read(args, options::OF_LEAKY_BUCKET)?;
        Ok(Numbers::of(AnyLimit::Bucket(bucket)))
    }

    /// `limit window [ALIGNED [OFFSET offset] [ANCHOR day]] [options]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline(always)]
    pub fn fixed_window(args: &mut Args<'a>, behind: &mut Behind<'a>) -> Result<Numbers<'a>, Error> {
        let (limit, window) = (amount(args, "limit", &FIXED)?, Window::read(args)?);
        let limit = match window {
            // Most say no more, and the compiler sees which of the windows it is.
            Window::Lasts(window) if args.is_empty() => FixedWindow::new(limit, window, false),
            window => {
                let aligned = behind.read(args, options::OF_FIXED_WINDOW)?;
                window.limit(limit, aligned, behind.options().alignment)?
            }
        };
        Ok(Numbers::of(AnyLimit::FixedWindow(limit)))
    }

    /// `limit window [STRICT] [options]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline(always)]
    pub fn sliding_window(args: &mut Args<'a>, behind: &mut Behind<'a>) -> Result<Numbers<'a>, Error> {
        let (limit, window) = window(args, &SLIDING)?;
        let limit = if behind.read(args, options::OF_SLIDING_WINDOW)? {
            AnyLimit::StrictWindow(StrictWindow::new(limit, window))
        } else {
            AnyLimit::SlidingWindow(SlidingWindow::new(limit, window))
        };
        Ok(Numbers::of(limit))
    }

    /// `limit window [options]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline(always)]
    pub fn sliding_log(args: &mut Args<'a>, behind: &mut Behind<'a>) -> Result<Numbers<'a>, Error> {
        let (limit, window) = window(args, &SLIDING_LOG)?;
        behind.read(args, options::OF_SLIDING_LOG)?;
        Ok(Numbers::of(AnyLimit::SlidingLog(SlidingLog::new(limit, window))))
    }

    /// `limit ttl holder [COST cost] [KEEP amount] [AS name] [NX]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline(always)]
    pub fn concurrency(args: &mut Args<'a>, behind: &mut Behind<'a>) -> Result<Numbers<'a>, Error> {
        let numbers = lease(args, behind.of_policy)?;
        behind.read(args, options::OF_CONCURRENCY)?;
        Ok(numbers)
    }

    /// The same with `[BLOCK duration]` among the options, of RL.ACQUIRE; and how long it says.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline(always)]
    pub fn acquire(args: &mut Args<'a>, behind: &mut Behind<'a>) -> Result<(Numbers<'a>, Block), Error> {
        let numbers = lease(args, false)?;
        let block = if args.is_empty() { Block::No } else { behind.read_blocking(args)? };
        Ok((numbers, block))
    }
}

/// Where a word stands that begins no spec, which tells what else is needed there.
#[derive(Clone, Copy)]
enum Place {
    /// Before the first spec.
    First,
    /// Before the first of a policy.
    FirstOfPolicy,
    /// Behind another.
    Next,
    /// Behind another of a policy.
    NextOfPolicy,
    /// Before the first spec, behind as many keys as numkeys says.
    FirstOfKeys,
    /// Behind another, for the next of them.
    NextOfKeys,
}

impl Place {
    fn is_in_policy(self) -> bool {
        matches!(self, Place::FirstOfPolicy | Place::NextOfPolicy)
    }
}

/// `max_burst count period [quantity]`: redis-cell's words for a bucket, and what is asked of it.
///
/// # Errors
/// The first word that is wrong, or missing, as [`Error`] says it.
pub fn throttle(args: &mut Args) -> Result<(Bucket, Ask), Error> {
    let capacity = units(args, "max_burst", &BURST, 999_999_999_999)?.plus(Amount::ONE);
    let refill = units(args, "count", &COUNT, 1_000_000_000_000)?;
    let period = whole(args.argument("period", &THROTTLE)?, 315_360_000);
    let period = period.and_then(|seconds| Period::new(Span::SECOND.times(seconds)));
    let period = period.ok_or_else(|| args.refused("period", &SECONDS, &THROTTLE))?;
    let slow = |args: &Args| {
        let must_be = if refill == Amount::ZERO { &COUNT } else { &FAST_COUNT };
        Error::out_of_range("count", must_be, args.before(1))
    };
    let bucket = Bucket::new(capacity, refill, period, Discipline::Burst).map_err(|_| slow(args))?;
    let quantity = if args.is_empty() { Amount::ONE } else { units(args, "quantity", &QUANTITY, 1_000_000_000_000)? };
    args.end()?;
    Ok((bucket, Ask::Take(quantity)))
}

fn units(args: &mut Args, argument: &'static str, must_be: &'static MustBe, most: u64) -> Result<Amount, Error> {
    let units = whole(args.argument(argument, &THROTTLE)?, most);
    let units = units.ok_or_else(|| args.refused(argument, must_be, &THROTTLE))?;
    Ok(Amount::saturating(units.saturating_mul(Amount::ONE.millionths())))
}

/// `duration`, which may be 0: of a ban.
///
/// # Errors
/// The first word that is wrong, or missing, as [`Error`] says it.
pub fn block(args: &mut Args) -> Result<Span, Error> {
    let word = args.word()?;
    let duration = Span::parse(word).ok_or_else(|| Error::out_of_range("duration", &BANNED_FOR, word))?;
    args.end()?;
    Ok(duration)
}

/// `holder [holder ...]`
///
/// # Errors
/// The first word that is wrong, or missing, as [`Error`] says it.
pub fn holders<'a>(args: &mut Args<'a>) -> Result<Vec<&'a [u8]>, Error> {
    let mut holders = vec![holder(args.word()?)?];
    while !args.is_empty() {
        holders.push(holder(args.word()?)?);
    }
    Ok(holders)
}

/// The name of a holder of leases.
fn holder(name: &[u8]) -> Result<&[u8], Error> {
    let valid = (1..=MAX_HOLDER).contains(&name.len());
    valid.then_some(name).ok_or_else(|| Error::out_of_range("holder", &HOLDER, name))
}

/// `capacity rate period`
#[inline(always)]
fn bucket(
    args: &mut Args,
    rate: &'static str,
    syntax: &'static Syntax,
    discipline: Discipline,
) -> Result<Bucket, Error> {
    let capacity = amount(args, "capacity", syntax)?;
    let refill = Amount::parse_down(args.argument(rate, syntax)?).ok_or_else(|| args.refused(rate, &RATE, syntax))?;
    let period = period(args, "period", syntax)?;
    Bucket::new(capacity, refill, period, discipline).map_err(|refused| {
        let must_be = match refused {
            Refused::NoRefill => &RATE,
            Refused::SlowRefill => &QUICK_RATE,
        };
        Error::out_of_range(rate, must_be, args.before(1))
    })
}

/// `limit ttl holder`, without a holder in a policy.
#[inline(always)]
fn lease<'a>(args: &mut Args<'a>, of_policy: bool) -> Result<Numbers<'a>, Error> {
    let syntax = if of_policy { &CONCURRENCY_OF_POLICY } else { &CONCURRENCY };
    let (limit, ttl) = (amount(args, "limit", syntax)?, period(args, "ttl", syntax)?);
    let holder = if of_policy { &[] } else { holder(args.argument("holder", syntax)?)? };
    Ok(Numbers { limit: AnyLimit::Concurrency(Concurrency::new(limit, ttl)), holder })
}

/// `limit window`
fn window(args: &mut Args, syntax: &'static Syntax) -> Result<(Amount, Period), Error> {
    Ok((amount(args, "limit", syntax)?, period(args, "window", syntax)?))
}

#[inline(always)]
fn amount(args: &mut Args, argument: &'static str, syntax: &'static Syntax) -> Result<Amount, Error> {
    Amount::parse_down(args.argument(argument, syntax)?).ok_or_else(|| args.refused(argument, &AMOUNT, syntax))
}

#[inline(always)]
fn period(args: &mut Args, argument: &'static str, syntax: &'static Syntax) -> Result<Period, Error> {
    Period::parse(args.argument(argument, syntax)?).ok_or_else(|| args.refused(argument, &DURATION, syntax))
}

#[cfg(test)]
mod tests;
