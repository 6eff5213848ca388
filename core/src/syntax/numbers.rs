//! Numeric arguments of limits.

use crate::number::{Amount, Period};
use crate::wire::args::Args;
use crate::wire::error::{Error, MustBe, Syntax};

/// Valid range of an amount.
pub(super) const AMOUNT: MustBe = MustBe::number("a number", " from 0 to 1000000000000", "100");
/// Valid range of a duration.
pub(super) const DURATION: MustBe = MustBe::duration("a duration", " from 1us to 3650d", "60s");

/// Parses `limit window`.
pub(super) fn limit_and_window(args: &mut Args, syntax: &'static Syntax) -> Result<(Amount, Period), Error> {
    Ok((amount(args, "limit", syntax)?, period(args, "window", syntax)?))
}

/// Parses an amount.
#[inline(always)]
pub(super) fn amount(args: &mut Args, argument: &'static str, syntax: &'static Syntax) -> Result<Amount, Error> {
    args.positional(argument, syntax, &AMOUNT, Amount::parse_down)
}

/// Parses a duration.
#[inline(always)]
pub(super) fn period(args: &mut Args, argument: &'static str, syntax: &'static Syntax) -> Result<Period, Error> {
    args.positional(argument, syntax, &DURATION, Period::parse)
}
