//! Parser of ban rules (`BAN` after the specs) and of the arguments of RL.BAN.

use super::numbers::period;
use crate::ban::BanRule;
use crate::number::time::is_duration;
use crate::number::{Period, Span};
use crate::wire::args::{Args, whole};
use crate::wire::error::{Error, MustBe, Reason, Syntax};

const STRIKES: MustBe = MustBe::number("a whole number", " from 1 to 4294967295", "10");
const BAN_DURATION: MustBe = MustBe::duration("0 or a duration", " from 1us to 3650d", "10m");
const MAX_BLOCK: MustBe = MustBe::duration("a duration", " from block up to 3650d", "1d");
const BAN: Syntax = Syntax { word: "BAN", arguments: "strikes window block [MAX longest]" };

/// Parses `strikes window block [MAX longest]`.
pub(super) fn ban_rule(args: &mut Args) -> Result<BanRule, Error> {
    let strikes = args.positional("strikes", &BAN, &STRIKES, |word| {
        u32::try_from(whole(word, u32::MAX.into())?).ok().filter(|strikes| *strikes > 0)
    })?;
    let (window, block) = (period(args, "window", &BAN)?, period(args, "block", &BAN)?);
    let longest = if args.accept("MAX") {
        let parse = |word| Period::parse(word).filter(|longest| *longest >= block);
        Some(args.positional("longest", &BAN, &MAX_BLOCK, parse)?)
    } else {
        None
    };
    if longest.is_none() && args.peek().is_some_and(is_duration) {
        return Err(args.unexpected(Reason::MaxIsMissing));
    }
    Ok(BanRule { strikes, window, block, longest })
}

/// Parses the duration of RL.BAN, which may be 0.
///
/// # Errors
/// Returns an error that names the first word that is missing or malformed.
pub fn ban_duration(args: &mut Args) -> Result<Span, Error> {
    let word = args.word()?;
    let duration = Span::parse(word).ok_or_else(|| Error::out_of_range("duration", &BAN_DURATION, word))?;
    args.end()?;
    Ok(duration)
}
