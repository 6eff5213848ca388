//! What a call says of its limit: `TOKENBUCKET 200 100 60s COST 2` -> a limit and what is asked of it.
//!
//! A spec ends where a word comes that it has no place for, so that several can stand one after another; whoever
//! wants only one calls [`Args::end`].

use crate::args::{Args, KeyName, has_twins, whole};
use crate::bucket::{Bucket, Discipline, Refused};
use crate::error::{Error, MustBe, NUMKEYS, one_of};
use crate::fixed_window::FixedWindow;
use crate::leases::{Concurrency, MAX_HOLDER};
use crate::log::SlidingLog;
use crate::sliding_window::SlidingWindow;
use crate::strict_window::StrictWindow;
use crate::{Amount, Ask, Period, Span};
use std::fmt;

/// A limit, and what a call asks of it.
///
/// ```
/// use ratelimit_core::args::Args;
/// use ratelimit_core::spec::{AnyLimit, Spec};
/// use ratelimit_core::{Amount, Ask};
///
/// let words: [&[u8]; 6] = [b"RL.TAKE", b"fixed", b"1000", b"1d", b"COST", b"-1"];
/// let spec = Spec::any(&mut Args::new(&words))?;
/// assert!(matches!(spec.limit, AnyLimit::FixedWindow(_)));
/// assert_eq!(spec.ask, Ask::GiveBack(Amount::ONE));
/// # Ok::<(), ratelimit_core::error::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Spec<'a> {
    /// The limit.
    pub limit: AnyLimit,
    /// What is asked.
    pub ask: Ask,
    /// Who asks for a lease; nobody of any other limit.
    pub holder: &'a [u8],
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
            $crate::spec::AnyLimit::Bucket($limit) => $body,
            $crate::spec::AnyLimit::FixedWindow($limit) => $body,
            $crate::spec::AnyLimit::SlidingWindow($limit) => $body,
            $crate::spec::AnyLimit::StrictWindow($limit) => $body,
            $crate::spec::AnyLimit::SlidingLog($limit) => $body,
            $crate::spec::AnyLimit::Concurrency(concurrency) => {
                let $limit = &concurrency.asked_by($spec.holder);
                $body
            }
        }
    };
}

impl fmt::Display for AnyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnyLimit::Bucket(limit) => limit.fmt(f),
            AnyLimit::FixedWindow(limit) => limit.fmt(f),
            AnyLimit::SlidingWindow(limit) => limit.fmt(f),
            AnyLimit::StrictWindow(limit) => limit.fmt(f),
            AnyLimit::SlidingLog(limit) => limit.fmt(f),
            AnyLimit::Concurrency(limit) => limit.fmt(f),
        }
    }
}

/// Reads the words of a spec behind its algorithm's name.
pub type Reader<'a> = fn(&mut Args<'a>) -> Result<Spec<'a>, Error>;

const AMOUNT: MustBe = MustBe { what: "a number from 0 to 1000000000000", example: "100" };
const RATE: MustBe = MustBe { what: "a number from 0.000001 to 1000000000000", example: "100" };
const QUICK_RATE: MustBe =
    MustBe { what: "enough to refill the capacity within 36500d", example: "the capacity itself" };
const DURATION: MustBe = MustBe { what: "a duration from 1us to 3650d", example: "60s" };
const PATIENCE: MustBe = MustBe { what: "0 or a duration from 1us to 3650d", example: "500ms" };
const COST: MustBe = MustBe { what: "a number from -1000000000000 to 1000000000000", example: "1" };
const COST_WITH_MODE: MustBe = MustBe { what: "a number from 0 to 1000000000000 with FORCE or MAXWAIT", example: "1" };
const COST_OF_LEASE: MustBe = MustBe { what: "a number above 0, up to 1000000000000", example: "1" };
const KEYS: MustBe = MustBe { what: "different from each other", example: "{alice}:minute {alice}:day" };
const BURST: MustBe = MustBe { what: "a whole number from 0 to 999999999999", example: "15" };
const COUNT: MustBe = MustBe { what: "a whole number from 1 to 1000000000000", example: "30" };
const FAST_COUNT: MustBe = MustBe { what: "enough to refill the burst within 36500d", example: "max_burst itself" };
const SECONDS: MustBe = MustBe { what: "a whole number of seconds from 1 to 315360000", example: "60" };
const QUANTITY: MustBe = MustBe { what: "a whole number from 0 to 1000000000000", example: "1" };
const HOLDER: MustBe = MustBe { what: "a name of 1 to 256 bytes", example: "worker-7" };
const COST_UPTO: MustBe = MustBe { what: "a whole number from 1 to 1000000000000 with UPTO", example: "10" };

impl<'a> Spec<'a> {
    /// Every algorithm: the name that it has in a spec, and what reads the words behind it.
    pub const ALGORITHMS: [(&'static str, Reader<'a>); 6] = [
        ("TOKENBUCKET", Spec::token_bucket),
        ("LEAKYBUCKET", Spec::leaky_bucket),
        ("FIXED", Spec::fixed_window),
        ("SLIDING", Spec::sliding_window),
        ("SLIDINGLOG", Spec::sliding_log),
        ("CONCURRENCY", Spec::concurrency),
    ];

    /// `algorithm ...`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn any(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        Spec::at(args, Place::Only)
    }

    #[inline(always)]
    fn at(args: &mut Args<'a>, place: Place) -> Result<Spec<'a>, Error> {
        let name = args.word()?;
        let (_, read) = Self::ALGORITHMS
            .iter()
            // Nearly all write it as the documents do, and comparing without case costs a hundred instructions.
            .find(|(algorithm, _)| name == algorithm.as_bytes() || name.eq_ignore_ascii_case(algorithm.as_bytes()))
            .ok_or_else(|| Spec::unknown(name, place))?;
        read(args)
    }

    /// The refusal of a word where an algorithm's name should be.
    #[cold]
    fn unknown(word: &[u8], place: Place) -> Error {
        let (or_option, and_numkeys) = match place {
            Place::Only => ("", ""),
            Place::FirstOfSeveral => ("", "; numkeys must be the number of keys"),
            Place::Next => ("an option of the spec before or ", ""),
        };
        let names = one_of(&Self::ALGORITHMS.map(|(name, _)| name));
        Error::unexpected_where(word, &format!(", where {or_option}an algorithm is needed: {names}{and_numkeys}"))
    }

    /// `capacity refill period [COST cost] [UPTO | FORCE | MAXWAIT duration]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline]
    pub fn token_bucket(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        let bucket = bucket(args, "refill", Discipline::Burst)?;
        let (ask, _) = options(args, Allowed { flag: None, wait: true })?;
        Ok(Spec { limit: AnyLimit::Bucket(bucket), ask, holder: &[] })
    }

    /// `capacity leak period [COST cost] [UPTO | FORCE]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline]
    pub fn leaky_bucket(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        let bucket = bucket(args, "leak", Discipline::Queue)?;
        let (ask, _) = options(args, Allowed { flag: None, wait: false })?;
        Ok(Spec { limit: AnyLimit::Bucket(bucket), ask, holder: &[] })
    }

    /// `limit window [ALIGNED] [COST cost] [UPTO | FORCE]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline]
    pub fn fixed_window(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        let (limit, window) = window(args)?;
        let (ask, aligned) = options(args, Allowed { flag: Some("ALIGNED"), wait: false })?;
        Ok(Spec { limit: AnyLimit::FixedWindow(FixedWindow::new(limit, window, aligned)), ask, holder: &[] })
    }

    /// `limit window [STRICT] [COST cost] [UPTO | FORCE]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline]
    pub fn sliding_window(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        let (limit, window) = window(args)?;
        let (ask, strict) = options(args, Allowed { flag: Some("STRICT"), wait: false })?;
        let limit = if strict {
            AnyLimit::StrictWindow(StrictWindow::new(limit, window))
        } else {
            AnyLimit::SlidingWindow(SlidingWindow::new(limit, window))
        };
        Ok(Spec { limit, ask, holder: &[] })
    }

    /// `limit window [COST cost] [UPTO | FORCE]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline]
    pub fn sliding_log(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        let (limit, window) = window(args)?;
        let (ask, _) = options(args, Allowed { flag: None, wait: false })?;
        Ok(Spec { limit: AnyLimit::SlidingLog(SlidingLog::new(limit, window)), ask, holder: &[] })
    }

    /// `limit ttl holder [COST cost]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    #[inline]
    pub fn concurrency(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        let (limit, ttl) = (amount(args, "limit")?, period(args, "ttl")?);
        let (limit, holder) = (AnyLimit::Concurrency(Concurrency::new(limit, ttl)), holder(args)?);
        let mut cost = Amount::ONE;
        if args.accept("COST") {
            cost = Amount::parse_up(args.word()?)
                .filter(|cost| *cost != Amount::ZERO)
                .ok_or_else(|| Error::out_of_range("cost", COST_OF_LEASE))?;
        }
        Ok(Spec { limit, ask: Ask::Take(cost), holder })
    }

    /// One of several specs, which are to pass all or none: there is no part of a cost to grant.
    #[inline(always)]
    fn of_several(args: &mut Args<'a>, place: Place) -> Result<Spec<'a>, Error> {
        let spec = Spec::at(args, place)?;
        if matches!(spec.ask, Ask::UpTo(_)) {
            return Err(Error::unexpected_where(b"UPTO", ", since several limits grant all or nothing"));
        }
        Ok(spec)
    }
}

/// Where a spec begins, which tells what else may be wrong if none does.
#[derive(Clone, Copy)]
enum Place {
    /// Where a call has one spec.
    Only,
    /// Behind as many keys as numkeys says.
    FirstOfSeveral,
    /// Behind another spec.
    Next,
}

/// A key, and the spec for it.
pub type Part<'a> = (KeyName, Spec<'a>);

/// `numkeys key [key ...] spec [spec ...]`, and no more; no key comes twice.
///
/// # Errors
/// The first word that is wrong, or missing, as [`Error`] says it.
pub fn several<'a>(args: &mut Args<'a>) -> Result<Vec<Part<'a>>, Error> {
    let keys = args.numbered_keys().ok_or_else(|| Error::out_of_range("numkeys", NUMKEYS))?;
    let mut parts = Vec::with_capacity(keys.len());
    for key in keys.clone() {
        if args.is_empty() {
            return Err(Error::TooFewSpecs { keys: keys.len(), specs: parts.len() });
        }
        let place = if parts.is_empty() { Place::FirstOfSeveral } else { Place::Next };
        parts.push((key, Spec::of_several(args, place)?));
    }
    if !args.is_empty() {
        let place = " behind the last spec; numkeys must be the number of keys and of specs";
        return Err(Error::unexpected_where(args.word()?, place));
    }
    // Not before: a numkeys that is too large makes keys of the specs, in which words come twice.
    if has_twins(keys.map(|key| args.name(key))) {
        return Err(Error::out_of_range("keys", KEYS));
    }
    Ok(parts)
}

/// `max_burst count period [quantity]`: redis-cell's words for a bucket, and what is asked of it.
///
/// # Errors
/// The first word that is wrong, or missing, as [`Error`] says it.
pub fn throttle(args: &mut Args) -> Result<(Bucket, Ask), Error> {
    let capacity = units(args, "max_burst", BURST, 999_999_999_999)?.plus(Amount::ONE);
    let refill = units(args, "count", COUNT, 1_000_000_000_000)?;
    let seconds = whole(args.word()?, 315_360_000).ok_or_else(|| Error::out_of_range("period", SECONDS))?;
    let period = Period::new(Span::SECOND.times(seconds)).ok_or_else(|| Error::out_of_range("period", SECONDS))?;
    let quantity = if args.is_empty() { Amount::ONE } else { units(args, "quantity", QUANTITY, 1_000_000_000_000)? };
    args.end()?;
    let bucket = Bucket::new(capacity, refill, period, Discipline::Burst)
        .map_err(|_| Error::out_of_range("count", if refill == Amount::ZERO { COUNT } else { FAST_COUNT }))?;
    Ok((bucket, Ask::Take(quantity)))
}

fn units(args: &mut Args, argument: &'static str, must_be: MustBe, most: u64) -> Result<Amount, Error> {
    let units = whole(args.word()?, most).ok_or_else(|| Error::out_of_range(argument, must_be))?;
    Ok(Amount::saturating(units.saturating_mul(Amount::ONE.millionths())))
}

/// `holder [holder ...]`
///
/// # Errors
/// The first word that is wrong, or missing, as [`Error`] says it.
pub fn holders<'a>(args: &mut Args<'a>) -> Result<Vec<&'a [u8]>, Error> {
    let mut holders = vec![holder(args)?];
    while !args.is_empty() {
        holders.push(holder(args)?);
    }
    Ok(holders)
}

/// The name of a holder of leases.
fn holder<'a>(args: &mut Args<'a>) -> Result<&'a [u8], Error> {
    let name = args.word()?;
    let valid = (1..=MAX_HOLDER).contains(&name.len());
    valid.then_some(name).ok_or_else(|| Error::out_of_range("holder", HOLDER))
}

/// `capacity rate period`
#[inline(always)]
fn bucket(args: &mut Args, rate: &'static str, discipline: Discipline) -> Result<Bucket, Error> {
    let capacity = amount(args, "capacity")?;
    let refill = Amount::parse_down(args.word()?).ok_or_else(|| Error::out_of_range(rate, RATE))?;
    let period = period(args, "period")?;
    Bucket::new(capacity, refill, period, discipline).map_err(|refused| {
        let must_be = match refused {
            Refused::NoRefill => RATE,
            Refused::SlowRefill => QUICK_RATE,
        };
        Error::out_of_range(rate, must_be)
    })
}

/// `limit window`
fn window(args: &mut Args) -> Result<(Amount, Period), Error> {
    Ok((amount(args, "limit")?, period(args, "window")?))
}

#[inline(always)]
fn amount(args: &mut Args, argument: &'static str) -> Result<Amount, Error> {
    Amount::parse_down(args.word()?).ok_or_else(|| Error::out_of_range(argument, AMOUNT))
}

#[inline(always)]
fn period(args: &mut Args, argument: &'static str) -> Result<Period, Error> {
    Period::parse(args.word()?).ok_or_else(|| Error::out_of_range(argument, DURATION))
}

/// Which options an algorithm has, beside COST, UPTO and FORCE.
#[derive(Clone, Copy)]
struct Allowed {
    /// A flag of its own.
    flag: Option<&'static str>,
    /// MAXWAIT.
    wait: bool,
}

/// The options behind an algorithm's numbers, in any order, each at most once: what is asked, and whether the flag was
/// given.
#[inline]
fn options(args: &mut Args, allowed: Allowed) -> Result<(Ask, bool), Error> {
    // Most calls have none.
    if args.is_empty() { Ok((Ask::Take(Amount::ONE), false)) } else { Options::default().read(args, allowed) }
}

/// Those that were read.
#[derive(Default)]
struct Options {
    flagged: bool,
    cost: Option<Cost>,
    mode: Option<Mode>,
}

/// What a cost says.
#[derive(Clone, Copy)]
enum Cost {
    Charge {
        cost: Amount,
        /// Whether it was said in whole units, before rounding.
        whole: bool,
    },
    GiveBack(Amount),
}

/// The options of which a call has at most one.
#[derive(Clone, Copy)]
enum Mode {
    UpTo,
    Force,
    MaxWait(Span),
}

impl Options {
    fn read(mut self, args: &mut Args, allowed: Allowed) -> Result<(Ask, bool), Error> {
        while let Some(word) = args.peek() {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            let before = *args;
            args.skip();
            let twice = if is("COST") {
                self.cost.replace(cost(args.word()?)?).is_some()
            } else if is("UPTO") {
                self.mode.replace(Mode::UpTo).is_some()
            } else if is("FORCE") {
                self.mode.replace(Mode::Force).is_some()
            } else if allowed.wait && is("MAXWAIT") {
                let patience = Span::parse(args.word()?).ok_or_else(|| Error::out_of_range("maxwait", PATIENCE))?;
                self.mode.replace(Mode::MaxWait(patience)).is_some()
            } else if allowed.flag.is_some_and(is) {
                std::mem::replace(&mut self.flagged, true)
            } else {
                *args = before;
                break;
            };
            if twice {
                before.end()?;
            }
        }
        Ok((self.ask()?, self.flagged))
    }

    fn ask(&self) -> Result<Ask, Error> {
        let (cost, whole) = match (self.cost.unwrap_or(Cost::Charge { cost: Amount::ONE, whole: true }), self.mode) {
            (Cost::Charge { cost, whole }, _) => (cost, whole),
            (Cost::GiveBack(amount), None) => return Ok(Ask::GiveBack(amount)),
            (Cost::GiveBack(_), Some(Mode::UpTo)) => return Err(Error::out_of_range("cost", COST_UPTO)),
            (Cost::GiveBack(_), Some(_)) => return Err(Error::out_of_range("cost", COST_WITH_MODE)),
        };
        match self.mode {
            None => Ok(Ask::Take(cost)),
            Some(Mode::Force) => Ok(Ask::Force(cost)),
            Some(Mode::MaxWait(patience)) => Ok(Ask::Within(cost, patience)),
            Some(Mode::UpTo) if whole && cost != Amount::ZERO => Ok(Ask::UpTo(cost)),
            Some(Mode::UpTo) => Err(Error::out_of_range("cost", COST_UPTO)),
        }
    }
}

/// A cost; negative, it gives back. `-0` is 0.
fn cost(text: &[u8]) -> Result<Cost, Error> {
    let refused = Error::out_of_range("cost", COST);
    let Some(negative) = text.strip_prefix(b"-") else {
        let cost = Amount::parse_up(text).ok_or(refused)?;
        let whole = cost == cost.floor() && Amount::parse_down(text) == Some(cost);
        return Ok(Cost::Charge { cost, whole });
    };
    match Amount::parse_up(negative) {
        Some(Amount::ZERO) => Ok(Cost::Charge { cost: Amount::ZERO, whole: true }),
        _ => Amount::parse_down(negative).map(Cost::GiveBack).ok_or(refused),
    }
}

#[cfg(test)]
mod tests;
