//! Parser of ban rules (`BAN` after the specs) and of the arguments of RL.BAN.

use super::numbers::DURATION;
use crate::ban::BanRule;
use crate::number::time::is_duration;
use crate::number::{Period, Span};
use crate::wire::args::{Args, whole};
use crate::wire::error::{Error, MustBe, Reason, Syntax};

const STRIKES: MustBe = MustBe::number("a whole number", " from 1 to 4294967295", "10");
const BANNED_FOR: MustBe = MustBe::duration("0 or a duration", " from 1us to 3650d", "10m");
const MAX_BLOCK: MustBe = MustBe::duration("a duration", " from block up to 3650d", "1d");
const BAN: Syntax = Syntax { word: "BAN", arguments: "strikes window block [MAX longest]" };

/// Parses `strikes window block [MAX longest]`.
pub(super) fn ban_rule(args: &mut Args) -> Result<BanRule, Error> {
    let strikes = whole(args.argument("strikes", &BAN)?, u32::MAX.into());
    let strikes = strikes.and_then(|strikes| u32::try_from(strikes).ok()).filter(|strikes| *strikes > 0);
    let strikes = strikes.ok_or_else(|| args.invalid("strikes", &STRIKES, &BAN))?;
    let mut period =
        |argument| Period::parse(args.argument(argument, &BAN)?).ok_or_else(|| args.invalid(argument, &DURATION, &BAN));
    let (window, block) = (period("window")?, period("block")?);
    let longest = if args.accept("MAX") { Some(longest(args, block)?) } else { None };
    if longest.is_none() && args.peek().is_some_and(is_duration) {
        return Err(args.unexpected(Reason::MaxIsMissing));
    }
    Ok(BanRule { strikes, window, block, longest })
}

/// Parses the word `longest`, which must be at least `block`.
fn longest(args: &mut Args, block: Period) -> Result<Period, Error> {
    let longest = Period::parse(args.argument("longest", &BAN)?).filter(|longest| *longest >= block);
    longest.ok_or_else(|| args.invalid("longest", &MAX_BLOCK, &BAN))
}

/// Parses the duration of RL.BAN, which may be 0.
///
/// # Errors
/// Returns an error that names the first word that is missing or malformed.
pub fn block(args: &mut Args) -> Result<Span, Error> {
    let word = args.word()?;
    let duration = Span::parse(word).ok_or_else(|| Error::out_of_range("duration", &BANNED_FOR, word))?;
    args.end()?;
    Ok(duration)
}
