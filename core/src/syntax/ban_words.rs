//! The words of a ban: a rule behind specs, and RL.BAN's.

use super::numbers::DURATION;
use crate::ban::BanRule;
use crate::number::{Period, Span};
use crate::wire::args::{Args, whole};
use crate::wire::error::{Error, MustBe, Syntax};

const STRIKES: MustBe = MustBe::number("a whole number", " from 1 to 4294967295", "10");
const BANNED_FOR: MustBe = MustBe::duration("0 or a duration", " from 1us to 3650d", "10m");
const BAN: Syntax = Syntax { word: "BAN", arguments: "strikes window block" };

/// `strikes window block`
pub(super) fn ban_rule(args: &mut Args) -> Result<BanRule, Error> {
    let strikes = whole(args.argument("strikes", &BAN)?, u32::MAX.into());
    let strikes = strikes.and_then(|strikes| u32::try_from(strikes).ok()).filter(|strikes| *strikes > 0);
    let strikes = strikes.ok_or_else(|| args.refused("strikes", &STRIKES, &BAN))?;
    let mut period =
        |argument| Period::parse(args.argument(argument, &BAN)?).ok_or_else(|| args.refused(argument, &DURATION, &BAN));
    Ok(BanRule { strikes, window: period("window")?, block: period("block")? })
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
