//! Grammar of every algorithm: its numbers, and the options that may follow them.

use super::bucket_cache::BucketCache;
use super::numbers::{amount, limit_and_window, period};
use super::purpose::AcquireOptions;
use super::spec::{ParsedLimit, Spec};
use super::spec_options::SpecOptions;
use super::window::{FIXED, Window};
use super::words;
use crate::algorithm::any::AnyLimit;
use crate::algorithm::bucket::{Bucket, Discipline, InvalidBucket};
use crate::algorithm::count_min::Sketch;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::leases::Concurrency;
use crate::algorithm::log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::strict_window::StrictWindow;
use crate::algorithms;
use crate::number::Amount;
use crate::wire::args::Args;
use crate::wire::error::{Error, MustBe, Syntax};
use crate::wire::name;

/// Parser of the numbers and options after the name of an algorithm.
pub type LimitParser<'a> = fn(&mut Args<'a>, &mut SpecOptions<'a>) -> Result<ParsedLimit<'a>, Error>;

macro_rules! limit_parsers {
    ({} $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $limit:ty: $selector:ident, $usage:ty: $storage:ident, [$($word:ident $parser:ident),*];)+) => {
        /// Syntax of every algorithm: its name and arguments.
        pub(super) const SYNTAXES: [&Syntax; [$($(&$word,)*)+].len()] = [$($(&$word,)*)+];

        impl<'a> Spec<'a> {
            /// Name of every algorithm, with the parser of the words that follow it.
            pub const ALGORITHMS: [(&'static str, LimitParser<'a>); SYNTAXES.len()] =
                [$($(($word.word, Spec::$parser),)*)+];
        }
    };
}
algorithms!(limit_parsers, {});

impl<'a> Spec<'a> {
    /// Returns the parser of the words after an algorithm's name.
    #[inline(always)]
    pub(super) fn limit_parser(name: &[u8]) -> Option<LimitParser<'a>> {
        let algorithms = Self::ALGORITHMS.iter();
        // The exact comparison comes first: nearly all clients write upper case, and ignoring case costs 100
        // instructions.
        let mut matching = algorithms
            .filter(|(algorithm, _)| name == algorithm.as_bytes() || name.eq_ignore_ascii_case(algorithm.as_bytes()));
        matching.next().map(|(_, parser)| *parser)
    }
}

const TOKENBUCKET: Syntax = Syntax { word: "TOKENBUCKET", arguments: "capacity refill period" };
const LEAKYBUCKET: Syntax = Syntax { word: "LEAKYBUCKET", arguments: "capacity leak period" };
/// Valid range of a refill.
pub(super) const RATE: MustBe = MustBe::number("a number", " from 0.000001 to 1000000000000", "100");
/// Valid values of a refill, for an error about one that refills too slowly.
pub(super) const FAST_RATE: MustBe =
    MustBe::other("enough to refill the capacity within 36500d", "the capacity itself");
const SLIDING: Syntax = Syntax { word: "SLIDING", arguments: "limit window" };
const SLIDINGLOG: Syntax = Syntax { word: "SLIDINGLOG", arguments: "limit window" };
const SKETCH: Syntax = Syntax { word: "SKETCH", arguments: "capacity refill period item [SIZE size]" };
const SKETCH_OF_POLICY: Syntax = Syntax { word: "SKETCH", arguments: "capacity refill period [SIZE size]" };
const SKETCH_COMMAND: Syntax = Syntax { word: "RL.SKETCH", arguments: "key item capacity refill period [SIZE size]" };
/// Syntax of CONCURRENCY in a call.
pub(super) const CONCURRENCY: Syntax = Syntax { word: "CONCURRENCY", arguments: "limit ttl holder" };
const CONCURRENCY_OF_POLICY: Syntax = Syntax { word: "CONCURRENCY", arguments: "limit ttl" };
/// Valid names of a holder.
pub(super) const HOLDER: MustBe = MustBe::other("a name of 1 to 256 bytes", "worker-7");

impl<'a> Spec<'a> {
    /// Parses `capacity refill period [options] [MAXWAIT duration]`.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn token_bucket(args: &mut Args<'a>, options: &mut SpecOptions<'a>) -> Result<ParsedLimit<'a>, Error> {
        let bucket = bucket(args, "refill", &TOKENBUCKET, Discipline::Burst, options.cache)?;
        options.parse(args, &words::TOKEN_BUCKET_OPTIONS)?;
        Ok(ParsedLimit::of(AnyLimit::Bucket(bucket)))
    }

    /// Parses `capacity leak period [options]`.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn leaky_bucket(args: &mut Args<'a>, options: &mut SpecOptions<'a>) -> Result<ParsedLimit<'a>, Error> {
        let bucket = bucket(args, "leak", &LEAKYBUCKET, Discipline::Queue, options.cache)?;
        options.parse(args, &words::RATE_OPTIONS)?;
        Ok(ParsedLimit::of(AnyLimit::Bucket(bucket)))
    }

    /// Parses `limit window [ALIGNED [OFFSET offset] [ANCHOR day]] [options]`.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn fixed_window(args: &mut Args<'a>, options: &mut SpecOptions<'a>) -> Result<ParsedLimit<'a>, Error> {
        let (limit, window) = (amount(args, "limit", &FIXED)?, Window::parse(args)?);
        let limit = match window {
            // Fast path: most calls have no options, and the compiler then knows that the window is a duration.
            Window::Duration(window) if args.is_empty() => FixedWindow::new(limit, window),
            window => {
                let is_aligned = options.parse(args, &words::FIXED_WINDOW_OPTIONS)?;
                window.limit(limit, is_aligned, options.options().alignment)?
            }
        };
        Ok(ParsedLimit::of(AnyLimit::FixedWindow(limit)))
    }

    /// Parses `limit window [STRICT] [options]`.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn sliding_window(args: &mut Args<'a>, options: &mut SpecOptions<'a>) -> Result<ParsedLimit<'a>, Error> {
        let (limit, window) = limit_and_window(args, &SLIDING)?;
        let is_strict = options.parse(args, &words::SLIDING_WINDOW_OPTIONS)?;
        let limit = if is_strict {
            AnyLimit::StrictWindow(StrictWindow::new(limit, window))
        } else {
            AnyLimit::SlidingWindow(SlidingWindow::new(limit, window))
        };
        Ok(ParsedLimit::of(limit))
    }

    /// Parses `limit window [options]`.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn sliding_log(args: &mut Args<'a>, options: &mut SpecOptions<'a>) -> Result<ParsedLimit<'a>, Error> {
        let (limit, window) = limit_and_window(args, &SLIDINGLOG)?;
        options.parse(args, &words::RATE_OPTIONS)?;
        Ok(ParsedLimit::of(AnyLimit::SlidingLog(SlidingLog::new(limit, window))))
    }

    /// Parses `capacity refill period item [SIZE size] [options]`. In a policy, there is no item.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn sketch(args: &mut Args<'a>, options: &mut SpecOptions<'a>) -> Result<ParsedLimit<'a>, Error> {
        let syntax = if options.in_policy { &SKETCH_OF_POLICY } else { &SKETCH };
        let bucket = bucket(args, "refill", syntax, Discipline::Burst, options.cache)?;
        let item = if options.in_policy { &[] } else { args.argument("item", syntax)? };
        options.parse(args, &words::SKETCH_OPTIONS)?;
        Ok(ParsedLimit { limit: AnyLimit::Sketch(Sketch::new(bucket, options.options().size)), holder_or_item: item })
    }

    /// Parses `item capacity refill period [SIZE size] [options]`, the arguments of RL.SKETCH.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn sketch_of_item(args: &mut Args<'a>, options: &mut SpecOptions<'a>) -> Result<ParsedLimit<'a>, Error> {
        let item = args.argument("item", &SKETCH_COMMAND)?;
        let bucket = bucket(args, "refill", &SKETCH_COMMAND, Discipline::Burst, options.cache)?;
        options.parse(args, &words::SKETCH_OPTIONS)?;
        Ok(ParsedLimit { limit: AnyLimit::Sketch(Sketch::new(bucket, options.options().size)), holder_or_item: item })
    }

    /// Parses `limit ttl holder [COST cost] [KEEP amount] [AS name] [NX]`.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn concurrency(args: &mut Args<'a>, options: &mut SpecOptions<'a>) -> Result<ParsedLimit<'a>, Error> {
        let parsed = concurrency_limit(args, options.in_policy)?;
        options.parse(args, &words::CONCURRENCY_OPTIONS)?;
        Ok(parsed)
    }

    /// Parses `limit ttl holder [COST cost] [KEEP amount] [AS name] [NX] [BLOCK duration] [FENCE]`, the arguments of
    /// RL.ACQUIRE. Returns the limit with the options that only RL.ACQUIRE has.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn acquire(
        args: &mut Args<'a>,
        options: &mut SpecOptions<'a>,
    ) -> Result<(ParsedLimit<'a>, AcquireOptions), Error> {
        let in_policy = false;
        let parsed = concurrency_limit(args, in_policy)?;
        let acquire_options =
            if args.is_empty() { AcquireOptions::default() } else { options.parse_acquire_options(args)? };
        Ok((parsed, acquire_options))
    }
}

/// Parses `capacity rate period`, using the cache of parsed buckets. Errors call the rate `rate_name`.
#[inline(always)]
fn bucket(
    args: &mut Args,
    rate_name: &'static str,
    syntax: &'static Syntax,
    discipline: Discipline,
    cache: Option<&BucketCache>,
) -> Result<Bucket, Error> {
    let Some(cache) = cache else { return parse_bucket(args, rate_name, syntax, discipline) };
    let mut unread = *args;
    let words = args.next_words();
    let bucket = cache.get_or_parse(words, discipline, || parse_bucket(&mut unread, rate_name, syntax, discipline))?;
    // The bucket already has this discipline. Setting it again rebuilds the bucket from its fields, which stay in
    // registers, and tells the compiler to omit the code of the other discipline.
    Ok(bucket.with_discipline(discipline))
}

/// Parses `capacity rate period`. Errors call the rate `rate_name`.
fn parse_bucket(
    args: &mut Args,
    rate_name: &'static str,
    syntax: &'static Syntax,
    discipline: Discipline,
) -> Result<Bucket, Error> {
    let capacity = amount(args, "capacity", syntax)?;
    let refill = args.positional(rate_name, syntax, &RATE, Amount::parse_down)?;
    let period = period(args, "period", syntax)?;
    Bucket::new(capacity, refill, period, discipline).map_err(|invalid| {
        let must_be = match invalid {
            InvalidBucket::NoRefill => &RATE,
            InvalidBucket::SlowRefill => &FAST_RATE,
        };
        Error::out_of_range(rate_name, must_be, args.recent_word(1))
    })
}

/// Parses `limit ttl holder`; in a policy, `limit ttl`.
#[inline(always)]
fn concurrency_limit<'a>(args: &mut Args<'a>, in_policy: bool) -> Result<ParsedLimit<'a>, Error> {
    let syntax = if in_policy { &CONCURRENCY_OF_POLICY } else { &CONCURRENCY };
    let (limit, ttl) = (amount(args, "limit", syntax)?, period(args, "ttl", syntax)?);
    let holder = if in_policy { &[] } else { args.option_value("holder", syntax, &HOLDER, name::valid)? };
    Ok(ParsedLimit { limit: AnyLimit::Concurrency(Concurrency::new(limit, ttl)), holder_or_item: holder })
}

/// Parses `holder [holder ...]`.
///
/// # Errors
/// Returns an error that names the first word that is missing or malformed.
pub fn holders<'a>(args: &mut Args<'a>) -> Result<Vec<&'a [u8]>, Error> {
    let mut holders = Vec::new();
    loop {
        let word = args.word()?;
        holders.push(name::valid(word).ok_or_else(|| Error::out_of_range("holder", &HOLDER, word))?);
        if args.is_empty() {
            return Ok(holders);
        }
    }
}
