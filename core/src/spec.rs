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

/// A limit, and what a call asks of it.
#[derive(Clone, Copy, Debug)]
pub struct Spec<'a> {
    /// The limit.
    pub limit: AnyLimit<'a>,
    /// What is asked.
    pub ask: Ask,
}

/// A limit of any algorithm. [`with_limit!`] is the one place that tells them apart.
#[derive(Clone, Copy, Debug)]
pub enum AnyLimit<'a> {
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
    Concurrency(Concurrency<'a>),
}

/// Runs `$body` with `$limit` bound to the algorithm's own type.
#[macro_export]
macro_rules! with_limit {
    ($any:expr, $limit:ident => $body:expr) => {
        match $any {
            $crate::spec::AnyLimit::Bucket($limit) => $body,
            $crate::spec::AnyLimit::FixedWindow($limit) => $body,
            $crate::spec::AnyLimit::SlidingWindow($limit) => $body,
            $crate::spec::AnyLimit::StrictWindow($limit) => $body,
            $crate::spec::AnyLimit::SlidingLog($limit) => $body,
            $crate::spec::AnyLimit::Concurrency($limit) => $body,
        }
    };
}

type Reader<'a> = fn(&mut Args<'a>) -> Result<Spec<'a>, Error>;

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
    /// Every algorithm, by the name that it has in a spec.
    const ALGORITHMS: [(&'static str, Reader<'a>); 6] = [
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
    pub fn token_bucket(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        let bucket = bucket(args, "refill", Discipline::Burst)?;
        let ask = Options { may_wait: true, ..Options::default() }.read(args)?.ask()?;
        Ok(Spec { limit: AnyLimit::Bucket(bucket), ask })
    }

    /// `capacity leak period [COST cost] [UPTO | FORCE]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn leaky_bucket(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        let bucket = bucket(args, "leak", Discipline::Queue)?;
        let ask = Options::default().read(args)?.ask()?;
        Ok(Spec { limit: AnyLimit::Bucket(bucket), ask })
    }

    /// `limit window [ALIGNED] [COST cost] [UPTO | FORCE]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn fixed_window(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        let (limit, window) = window(args)?;
        let options = Options { flag: Some("ALIGNED"), ..Options::default() }.read(args)?;
        let limit = AnyLimit::FixedWindow(FixedWindow::new(limit, window, options.flagged));
        Ok(Spec { limit, ask: options.ask()? })
    }

    /// `limit window [STRICT] [COST cost] [UPTO | FORCE]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn sliding_window(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        let (limit, window) = window(args)?;
        let options = Options { flag: Some("STRICT"), ..Options::default() }.read(args)?;
        let limit = if options.flagged {
            AnyLimit::StrictWindow(StrictWindow::new(limit, window))
        } else {
            AnyLimit::SlidingWindow(SlidingWindow::new(limit, window))
        };
        Ok(Spec { limit, ask: options.ask()? })
    }

    /// `limit window [COST cost] [UPTO | FORCE]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn sliding_log(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        let (limit, window) = window(args)?;
        let ask = Options::default().read(args)?.ask()?;
        Ok(Spec { limit: AnyLimit::SlidingLog(SlidingLog::new(limit, window)), ask })
    }

    /// `limit ttl holder [COST cost]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn concurrency(args: &mut Args<'a>) -> Result<Spec<'a>, Error> {
        let (limit, ttl) = (amount(args, "limit")?, period(args, "ttl")?);
        let limit = Concurrency::new(limit, ttl, holder(args)?);
        let mut cost = Amount::ONE;
        if args.accept("COST") {
            cost = Amount::parse_up(args.word()?)
                .filter(|cost| *cost != Amount::ZERO)
                .ok_or(Error::out_of_range("cost", COST_OF_LEASE))?;
        }
        Ok(Spec { limit: AnyLimit::Concurrency(limit), ask: Ask::Take(cost) })
    }

    /// One of several specs, which are to pass all or none: there is no part of a cost to grant.
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
    let (keys, names) = args.numbered_keys().ok_or(Error::out_of_range("numkeys", NUMKEYS))?;
    let mut parts = Vec::with_capacity(names.len());
    for key in keys {
        if args.is_empty() {
            return Err(Error::TooFewSpecs { keys: names.len(), specs: parts.len() });
        }
        let place = if parts.is_empty() { Place::FirstOfSeveral } else { Place::Next };
        parts.push((key, Spec::of_several(args, place)?));
    }
    if !args.is_empty() {
        let place = " behind the last spec; numkeys must be the number of keys and of specs";
        return Err(Error::unexpected_where(args.word()?, place));
    }
    // Not before: a numkeys that is too large makes keys of the specs, in which words come twice.
    if has_twins(names) {
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
    let seconds = whole(args.word()?, 315_360_000).ok_or(Error::out_of_range("period", SECONDS))?;
    let period = Period::new(Span::SECOND.times(seconds)).ok_or(Error::out_of_range("period", SECONDS))?;
    let quantity = if args.is_empty() { Amount::ONE } else { units(args, "quantity", QUANTITY, 1_000_000_000_000)? };
    args.end()?;
    let bucket = Bucket::new(capacity, refill, period, Discipline::Burst)
        .map_err(|_| Error::out_of_range("count", if refill == Amount::ZERO { COUNT } else { FAST_COUNT }))?;
    Ok((bucket, Ask::Take(quantity)))
}

fn units(args: &mut Args, argument: &'static str, must_be: MustBe, most: u64) -> Result<Amount, Error> {
    let units = whole(args.word()?, most).ok_or(Error::out_of_range(argument, must_be))?;
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
    valid.then_some(name).ok_or(Error::out_of_range("holder", HOLDER))
}

/// `capacity rate period`
fn bucket(args: &mut Args, rate: &'static str, discipline: Discipline) -> Result<Bucket, Error> {
    let capacity = amount(args, "capacity")?;
    let refill = Amount::parse_down(args.word()?).ok_or(Error::out_of_range(rate, RATE))?;
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

fn amount(args: &mut Args, argument: &'static str) -> Result<Amount, Error> {
    Amount::parse_down(args.word()?).ok_or(Error::out_of_range(argument, AMOUNT))
}

fn period(args: &mut Args, argument: &'static str) -> Result<Period, Error> {
    Period::parse(args.word()?).ok_or(Error::out_of_range(argument, DURATION))
}

/// The options behind an algorithm's numbers, in any order, each at most once.
#[derive(Default)]
struct Options {
    /// A flag that this algorithm has, and whether it was given.
    flag: Option<&'static str>,
    flagged: bool,
    /// Whether this algorithm has MAXWAIT.
    may_wait: bool,
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
    fn read(mut self, args: &mut Args) -> Result<Options, Error> {
        // Most calls have none.
        while !args.is_empty() {
            let before = args.clone();
            let twice = if args.accept("COST") {
                self.cost.replace(cost(args.word()?)?).is_some()
            } else if args.accept("UPTO") {
                self.mode.replace(Mode::UpTo).is_some()
            } else if args.accept("FORCE") {
                self.mode.replace(Mode::Force).is_some()
            } else if self.may_wait && args.accept("MAXWAIT") {
                let patience = Span::parse(args.word()?).ok_or(Error::out_of_range("maxwait", PATIENCE))?;
                self.mode.replace(Mode::MaxWait(patience)).is_some()
            } else if self.flag.is_some_and(|flag| args.accept(flag)) {
                std::mem::replace(&mut self.flagged, true)
            } else {
                return Ok(self);
            };
            if twice {
                before.end()?;
            }
        }
        Ok(self)
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
