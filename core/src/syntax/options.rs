//! Options at one place of a call, and their values.

use super::numbers::DURATION;
use super::purpose::Idempotency;
use super::spec::is_name;
use super::words::{OptionSet, Word, out_of_place};
use crate::algorithm::count_min::SketchSize;
use crate::algorithm::fixed_window::calendar::{Anchor, Offset};
use crate::evaluate::Request;
use crate::number::{Amount, Period, Span};
use crate::wire::args::Args;
use crate::wire::error::{Error, MustBe, Reason, Syntax};
use crate::wire::name;

/// Valid values of MAXWAIT.
pub(super) const MAXWAIT: MustBe = MustBe::duration("0 or a duration", " from 1us to 3650d", "500ms");
/// Valid values of COST.
pub(super) const COST: MustBe = MustBe::number("a number", " from -1000000000000 to 1000000000000", "1");
/// Valid values of COST with FORCE or MAXWAIT.
pub(super) const COST_WITH_MODE: MustBe =
    MustBe::number("a number", " from 0 to 1000000000000 with FORCE or MAXWAIT", "1");
/// Valid values of COST with ONCE.
pub(super) const COST_WITH_ONCE: MustBe = MustBe::number("a number", " from 0 to 1000000000000 with ONCE", "1");
/// Valid values of COST after one of several limits of a key.
pub(super) const COST_OF_SEVERAL: MustBe =
    MustBe::number("a number", " from 0 to 1000000000000 behind one of several limits", "1");
/// Valid values of COST with UPTO.
pub(super) const COST_UPTO: MustBe = MustBe::number("a whole number", " from 1 to 1000000000000 with UPTO", "10");
/// Valid values of COST of a lease.
pub(super) const COST_OF_LEASE: MustBe = MustBe::number("a number", " above 0, up to 1000000000000", "1");
/// Valid values of KEEP.
pub(super) const KEEP: MustBe = MustBe::other("a number from 0 to 1000000000000, or from 0% to 100%", "20%");
/// Valid names of AS.
pub(super) const NAME: MustBe = MustBe::other("1 to 32 of the letters A-Z and a-z, digits, _ and -", "requests");
/// Valid ids of ONCE and SETTLE.
pub(super) const ID: MustBe = MustBe::other("1 to 256 bytes", "req-17");
/// Valid values of OFFSET.
pub(super) const OFFSET: MustBe = MustBe::other("a distance from UTC from -14:00 to +14:00", "+09:00");
const ANCHOR: MustBe = MustBe::number("a day of the month", " from 1 to 31", "15");
/// Valid amounts of SETTLE.
pub(super) const SETTLED: MustBe = MustBe::number("a number", " from 0 to 1000000000000", "1200");

/// Valid values of SIZE.
pub(super) const SIZE: MustBe = MustBe::other("a size from 64kb to 256mb", "1mb");

const COST_SYNTAX: Syntax = Syntax { word: "COST", arguments: "amount" };
const MAXWAIT_SYNTAX: Syntax = Syntax { word: "MAXWAIT", arguments: "duration" };
const KEEP_SYNTAX: Syntax = Syntax { word: "KEEP", arguments: "amount, or KEEP n%" };
const AS_SYNTAX: Syntax = Syntax { word: "AS", arguments: "name" };
const OFFSET_SYNTAX: Syntax = Syntax { word: "ALIGNED OFFSET", arguments: "+hh:mm" };
const ANCHOR_SYNTAX: Syntax = Syntax { word: "ALIGNED ANCHOR", arguments: "day" };
const ONCE_SYNTAX: Syntax = Syntax { word: "ONCE", arguments: "id ttl" };
const SETTLE_SYNTAX: Syntax = Syntax { word: "SETTLE", arguments: "id amount" };
const SIZE_SYNTAX: Syntax = Syntax { word: "SIZE", arguments: "size" };
const ITEM_SYNTAX: Syntax = Syntax { word: "ITEM", arguments: "item" };

/// Value of COST.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cost {
    /// Cost to charge.
    Charge {
        /// Cost, rounded up to millionths.
        cost: Amount,
        /// `true` if the cost was a whole number before rounding.
        is_whole: bool,
    },
    /// Amount to refund, from a negative cost.
    Refund(Amount),
}

impl Cost {
    /// Parses a cost. A negative one is a refund; `-0` is 0.
    fn parse(text: &[u8]) -> Option<Cost> {
        let Some(negative) = text.strip_prefix(b"-") else {
            let cost = Amount::parse_up(text)?;
            let is_whole = cost == cost.floor() && Amount::parse_down(text) == Some(cost);
            return Some(Cost::Charge { cost, is_whole });
        };
        match Amount::parse_up(negative)? {
            Amount::ZERO => Some(Cost::Charge { cost: Amount::ZERO, is_whole: true }),
            _ => Amount::parse_down(negative).map(Cost::Refund),
        }
    }

    /// Parses the cost of a lease, which is above 0.
    fn parse_of_lease(text: &[u8]) -> Option<Cost> {
        let cost = Amount::parse_up(text).filter(|cost| *cost != Amount::ZERO)?;
        Some(Cost::Charge { cost, is_whole: false })
    }
}

/// Mutually exclusive options that change how a cost is charged.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    UpTo,
    Force,
    MaxWait(Span),
}

impl Mode {
    /// Returns the word of the option.
    pub(super) fn word(self) -> Word {
        match self {
            Mode::UpTo => Word::UpTo,
            Mode::Force => Word::Force,
            Mode::MaxWait(_) => Word::MaxWait,
        }
    }
}

/// Value of KEEP.
#[derive(Clone, Copy, Debug)]
pub(super) enum Keep<'a> {
    /// Amount in units.
    Amount(Amount),
    /// Percentage of the limit, as text.
    Share(&'a [u8]),
}

impl<'a> Keep<'a> {
    /// Parses `amount` or `n%`.
    fn parse(text: &'a [u8]) -> Option<Keep<'a>> {
        if text.ends_with(b"%") {
            Amount::ONE.percent_up(text).map(|_| Keep::Share(text))
        } else {
            Amount::parse_up(text).map(Keep::Amount)
        }
    }

    /// Returns the amount to keep of a limit.
    pub(super) fn of(self, limit: Amount) -> Amount {
        match self {
            Keep::Amount(amount) => amount,
            Keep::Share(text) => limit.percent_up(text).unwrap_or(limit),
        }
    }
}

/// Returns the option that the next word begins, if it is one of `words`.
pub(super) fn next_option(args: &Args, words: OptionSet) -> Option<Word> {
    if args.is_empty() { None } else { args.peek().and_then(|word| Word::among(words, word)) }
}

/// Options parsed at one place of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options<'a> {
    /// Cost (COST).
    pub(super) cost: Option<Cost>,
    /// Text of the cost, for error messages.
    pub(super) cost_text: &'a [u8],
    /// Charging mode (UPTO, FORCE or MAXWAIT).
    pub(super) mode: Option<Mode>,
    /// Amount that must stay available (KEEP).
    pub(super) keep: Option<Keep<'a>>,
    /// Name of the limit (AS).
    pub(super) name: Option<&'a [u8]>,
    /// Flag of the algorithm: ALIGNED, STRICT or NX. Each algorithm has one at most.
    pub(super) has_flag: bool,
    /// Boundaries of an aligned window (OFFSET, ANCHOR).
    pub(super) alignment: Alignment,
    /// Idempotency (ONCE, SETTLE).
    pub(super) idempotency: Idempotency<'a>,
    /// `true` if the reply lists the decision of each limit (EACH).
    pub(super) each: bool,
    /// `true` if the decision is recorded but not enforced (SHADOW).
    pub(super) shadow: bool,
    /// Size of a sketch (SIZE).
    pub(super) size: Option<SketchSize>,
    /// Item for the sketch of a policy (ITEM).
    pub(super) item: Option<&'a [u8]>,
}

/// Boundaries of an aligned window, if they differ from the default.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alignment {
    /// Offset of local time from UTC.
    pub(super) offset: Option<Offset>,
    /// Day of the month on which the window begins.
    pub(super) anchor: Option<Anchor>,
}

impl<'a> Options<'a> {
    /// Empty options.
    pub(super) const NONE: Options<'static> = Options {
        cost: None,
        cost_text: &[],
        mode: None,
        keep: None,
        name: None,
        has_flag: false,
        alignment: Alignment { offset: None, anchor: None },
        idempotency: Idempotency::Every,
        each: false,
        shadow: false,
        size: None,
        item: None,
    };

    /// Parses options in any order, each at most once, up to the first word that is not one of `words`.
    pub(super) fn parse(args: &mut Args<'a>, words: OptionSet) -> Result<Options<'a>, Error> {
        let mut options = Options::NONE;
        if let Some(first) = next_option(args, words) {
            options.parse_from(first, args, words)?;
        }
        Ok(options)
    }

    /// Parses options in any order, each at most once, up to the first word that is not one of `words`. The next word
    /// begins the option `first`.
    #[inline(always)]
    pub(super) fn parse_from(&mut self, first: Word, args: &mut Args<'a>, words: OptionSet) -> Result<(), Error> {
        let mut next = Some(first);
        while let Some(option) = next {
            let before = *args;
            args.skip();
            if let Some(other) = self.set(option, args)? {
                return Err(excluded(&before, option, other));
            }
            next = next_option(args, words);
        }
        Ok(())
    }

    /// Parses the values after the word of an option and sets it. Returns an option that was already set and excludes
    /// it.
    pub(super) fn set(&mut self, option: Word, args: &mut Args<'a>) -> Result<Option<Word>, Error> {
        Ok(match option {
            Word::Cost | Word::CostOfLease => {
                self.cost_text = args.argument("cost", &COST_SYNTAX)?;
                let (cost, must_be) = if option == Word::Cost {
                    (Cost::parse(self.cost_text), &COST)
                } else {
                    (Cost::parse_of_lease(self.cost_text), &COST_OF_LEASE)
                };
                let cost = cost.ok_or_else(|| Error::out_of_range("cost", must_be, self.cost_text))?;
                self.cost.replace(cost).map(|_| option)
            }
            Word::UpTo => self.mode.replace(Mode::UpTo).map(Mode::word),
            Word::Force => {
                let shadow = self.shadow.then_some(Word::Shadow);
                self.mode.replace(Mode::Force).map(Mode::word).or(shadow)
            }
            Word::MaxWait => {
                let max_wait = args.option_value("maxwait", &MAXWAIT_SYNTAX, &MAXWAIT, Span::parse)?;
                self.mode.replace(Mode::MaxWait(max_wait)).map(Mode::word)
            }
            Word::Keep => {
                let keep = args.option_value("keep", &KEEP_SYNTAX, &KEEP, Keep::parse)?;
                self.keep.replace(keep).map(|_| option)
            }
            Word::As => {
                let name = args.option_value("name", &AS_SYNTAX, &NAME, |name| is_name(name).then_some(name))?;
                self.name.replace(name).map(|_| option)
            }
            Word::Offset => {
                let offset = args.option_value("offset", &OFFSET_SYNTAX, &OFFSET, Offset::parse)?;
                self.alignment.offset.replace(offset).map(|_| option)
            }
            Word::Anchor => {
                let anchor = args.option_value("anchor", &ANCHOR_SYNTAX, &ANCHOR, Anchor::parse)?;
                self.alignment.anchor.replace(anchor).map(|_| option)
            }
            Word::Aligned | Word::Strict | Word::Nx => std::mem::replace(&mut self.has_flag, true).then_some(option),
            Word::Once => {
                let id = args.option_value("id", &ONCE_SYNTAX, &ID, name::valid)?;
                let ttl = args.option_value("ttl", &ONCE_SYNTAX, &DURATION, Period::parse)?;
                self.set_idempotency(Idempotency::Once { id, ttl })
            }
            Word::Settle => {
                let id = args.option_value("id", &SETTLE_SYNTAX, &ID, name::valid)?;
                let amount = args.option_value("amount", &SETTLE_SYNTAX, &SETTLED, Amount::parse_up)?;
                self.set_idempotency(Idempotency::Settle { id, amount })
            }
            Word::Each => std::mem::replace(&mut self.each, true).then_some(option),
            Word::Size => {
                let size = args.option_value("size", &SIZE_SYNTAX, &SIZE, SketchSize::parse)?;
                self.size.replace(size).map(|_| option)
            }
            Word::Item => self.item.replace(args.argument("item", &ITEM_SYNTAX)?).map(|_| option),
            Word::Shadow => {
                let duplicate = std::mem::replace(&mut self.shadow, true).then_some(option);
                // FORCE has no effect on a limit in shadow mode, which never denies.
                duplicate.or(self.mode.map(Mode::word))
            }
            // RL.ACQUIRE, the only command with these options, parses them elsewhere.
            Word::Block | Word::Fence => return Err(out_of_place(option, Reason::OnlyAcquire)),
        })
    }

    fn set_idempotency(&mut self, idempotency: Idempotency<'a>) -> Option<Word> {
        match std::mem::replace(&mut self.idempotency, idempotency) {
            Idempotency::Every => None,
            Idempotency::Once { .. } => Some(Word::Once),
            Idempotency::Settle { .. } => Some(Word::Settle),
        }
    }

    /// Rejects options that are valid only for the single spec of a call.
    pub(super) fn reject_single_spec_options(&self) -> Result<(), Error> {
        match (self.idempotency, self.mode) {
            (Idempotency::Once { .. }, _) => Err(out_of_place(Word::Once, Reason::ForAllSpecs)),
            (Idempotency::Settle { .. }, _) => Err(out_of_place(Word::Settle, Reason::ForAllSpecs)),
            (Idempotency::Every, Some(Mode::UpTo)) => Err(out_of_place(Word::UpTo, Reason::UpToAmongSeveral)),
            (Idempotency::Every, _) => Ok(()),
        }
    }

    /// Rejects a negative cost. The error describes the valid values by `must_be`.
    pub(super) fn reject_refund(&self, must_be: &'static MustBe) -> Result<(), Error> {
        match self.cost {
            Some(Cost::Refund(_)) => Err(Error::out_of_range("cost", must_be, self.cost_text)),
            _ => Ok(()),
        }
    }

    /// Rejects COST, UPTO, FORCE, MAXWAIT and KEEP together with SETTLE.
    pub(super) fn reject_settle_conflict(&self) -> Result<(), Error> {
        let conflicts = [self.cost.map(|_| Word::Cost), self.mode.map(Mode::word), self.keep.map(|_| Word::Keep)];
        conflicts.into_iter().flatten().next().map_or(Ok(()), |word| Err(out_of_place(word, Reason::SettleSetsCost)))
    }

    /// Combines the cost, by default 1, with a mode.
    pub(super) fn request(&self, mode: Option<Mode>) -> Result<Request, Error> {
        let out_of_range = |must_be| Error::out_of_range("cost", must_be, self.cost_text);
        let (cost, is_whole) = match (self.cost.unwrap_or(Cost::Charge { cost: Amount::ONE, is_whole: true }), mode) {
            (Cost::Charge { cost, is_whole }, _) => (cost, is_whole),
            (Cost::Refund(amount), None) => return Ok(Request::Refund(amount)),
            (Cost::Refund(_), Some(Mode::UpTo)) => return Err(out_of_range(&COST_UPTO)),
            (Cost::Refund(_), Some(_)) => return Err(out_of_range(&COST_WITH_MODE)),
        };
        match mode {
            None => Ok(Request::Take(cost)),
            Some(Mode::Force) => Ok(Request::Force(cost)),
            Some(Mode::MaxWait(max_wait)) => Ok(Request::Within(cost, max_wait)),
            Some(Mode::UpTo) if is_whole && cost != Amount::ZERO => Ok(Request::UpTo(cost)),
            Some(Mode::UpTo) => Err(out_of_range(&COST_UPTO)),
        }
    }
}

/// Returns the error for an option that the option `other` excludes. The next word of `args` is that of the option.
#[cold]
pub(super) fn excluded(args: &Args, option: Word, other: Word) -> Error {
    args.unexpected(if option == other { Reason::Duplicate } else { Reason::ExcludedBy(other.name()) })
}
