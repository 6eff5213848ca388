//! Parser of RL.THROTTLE, whose arguments are those of redis-cell.

use crate::algorithm::bucket::{Bucket, Discipline};
use crate::evaluate::Request;
use crate::number::{Amount, Period, Span};
use crate::wire::args::{Args, whole};
use crate::wire::error::{Error, MustBe, Syntax};

const BURST: MustBe = MustBe::number("a whole number", " from 0 to 999999999999", "15");
const COUNT: MustBe = MustBe::number("a whole number", " from 1 to 1000000000000", "30");
/// Valid values of a count, for an error about one that refills too slowly.
pub(super) const FAST_COUNT: MustBe = MustBe::other("enough to refill the burst within 36500d", "max_burst itself");
const SECONDS: MustBe = MustBe::number("a whole number of seconds", " from 1 to 315360000", "60");
const QUANTITY: MustBe = MustBe::number("a whole number", " from 0 to 1000000000000", "1");
const THROTTLE: Syntax = Syntax { word: "RL.THROTTLE", arguments: "key max_burst count period [quantity]" };

/// Parses `max_burst count period [quantity]`, the arguments of redis-cell, and returns the bucket and the request.
///
/// # Errors
/// Returns an error that names the first word that is missing or malformed.
pub fn throttle(args: &mut Args) -> Result<(Bucket, Request), Error> {
    let capacity = units(args, "max_burst", &BURST, 999_999_999_999)?.plus(Amount::ONE);
    let refill = units(args, "count", &COUNT, 1_000_000_000_000)?;
    let parse_seconds = |word| Period::new(Span::SECOND.times(whole(word, 315_360_000)?));
    let period = args.positional("period", &THROTTLE, &SECONDS, parse_seconds)?;
    let bucket = Bucket::new(capacity, refill, period, Discipline::Burst).map_err(|_| {
        let must_be = if refill == Amount::ZERO { &COUNT } else { &FAST_COUNT };
        Error::out_of_range("count", must_be, args.recent_word(1))
    })?;
    let quantity = if args.is_empty() { Amount::ONE } else { units(args, "quantity", &QUANTITY, 1_000_000_000_000)? };
    args.end()?;
    Ok((bucket, Request::Take(quantity)))
}

/// Parses a whole number of units, up to `max`.
fn units(args: &mut Args, argument: &'static str, must_be: &'static MustBe, max: u64) -> Result<Amount, Error> {
    let units = args.positional(argument, &THROTTLE, must_be, |word| whole(word, max))?;
    Ok(Amount::saturating(units.saturating_mul(Amount::ONE.millionths())))
}
