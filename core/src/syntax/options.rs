//! The options that stand in one place, and what they say.

use super::numbers::DURATION;
use super::purpose::{Idempotency, MAX_ID};
use super::spec::is_name;
use super::words::{OptionSet, Word, out_of_place};
use crate::algorithm::count_min::SketchSize;
use crate::algorithm::fixed_window::calendar::{Anchor, Offset};
use crate::evaluate::Request;
use crate::number::{Amount, Period, Span};
use crate::wire::args::Args;
use crate::wire::error::{Error, MustBe, Reason, Syntax};

/// What MAXWAIT says.
pub(super) const PATIENCE: MustBe = MustBe::duration("0 or a duration", " from 1us to 3650d", "500ms");
/// What COST says.
pub(super) const COST: MustBe = MustBe::number("a number", " from -1000000000000 to 1000000000000", "1");
/// What COST says in a call with FORCE or MAXWAIT.
pub(super) const COST_WITH_MODE: MustBe =
    MustBe::number("a number", " from 0 to 1000000000000 with FORCE or MAXWAIT", "1");
/// What COST says in a call with ONCE.
pub(super) const COST_WITH_ONCE: MustBe = MustBe::number("a number", " from 0 to 1000000000000 with ONCE", "1");
/// What COST says after one of several limits on a key.
pub(super) const COST_OF_SEVERAL: MustBe =
    MustBe::number("a number", " from 0 to 1000000000000 behind one of several limits", "1");
/// What COST says in a call with UPTO.
pub(super) const COST_UPTO: MustBe = MustBe::number("a whole number", " from 1 to 1000000000000 with UPTO", "10");
/// What COST says of a lease.
pub(super) const COST_OF_LEASE: MustBe = MustBe::number("a number", " above 0, up to 1000000000000", "1");
/// What KEEP says.
pub(super) const KEEP: MustBe = MustBe::other("a number from 0 to 1000000000000, or from 0% to 100%", "20%");
/// What AS says.
pub(super) const NAME: MustBe = MustBe::other("1 to 32 of the letters A-Z and a-z, digits, _ and -", "requests");
/// Which call ONCE and SETTLE are about.
pub(super) const ID: MustBe = MustBe::other("1 to 256 bytes", "req-17");
/// What OFFSET says.
pub(super) const OFFSET: MustBe = MustBe::other("a distance from UTC from -14:00 to +14:00", "+09:00");
const ANCHOR: MustBe = MustBe::number("a day of the month", " from 1 to 31", "15");
/// What SETTLE says the call turned out to cost.
pub(super) const SETTLED: MustBe = MustBe::number("a number", " from 0 to 1000000000000", "1200");

/// What SIZE says.
pub(super) const SIZE: MustBe = MustBe::other("a size from 64kb to 256mb", "1mb");

const OF_COST: Syntax = Syntax { word: "COST", arguments: "amount" };
const OF_MAXWAIT: Syntax = Syntax { word: "MAXWAIT", arguments: "duration" };
const OF_KEEP: Syntax = Syntax { word: "KEEP", arguments: "amount, or KEEP n%" };
const OF_AS: Syntax = Syntax { word: "AS", arguments: "name" };
const OF_OFFSET: Syntax = Syntax { word: "ALIGNED OFFSET", arguments: "+hh:mm" };
const OF_ANCHOR: Syntax = Syntax { word: "ALIGNED ANCHOR", arguments: "day" };
const OF_ONCE: Syntax = Syntax { word: "ONCE", arguments: "id ttl" };
const OF_SETTLE: Syntax = Syntax { word: "SETTLE", arguments: "id amount" };
const OF_SIZE: Syntax = Syntax { word: "SIZE", arguments: "size" };
const OF_ITEM: Syntax = Syntax { word: "ITEM", arguments: "item" };

/// What a cost says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cost {
    Charge {
        cost: Amount,
        /// Whether it was said in whole units, before rounding.
        whole: bool,
    },
    GiveBack(Amount),
}

/// The options of which a call has at most one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    UpTo,
    Force,
    MaxWait(Span),
}

impl Mode {
    /// Its word.
    pub(super) fn word(self) -> Word {
        match self {
            Mode::UpTo => Word::UpTo,
            Mode::Force => Word::Force,
            Mode::MaxWait(_) => Word::MaxWait,
        }
    }
}

/// What KEEP says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Keep<'a> {
    Amount(Amount),
    /// `n%`, as it was said: what it comes to is for the limit to say.
    Share(&'a [u8]),
}

impl Keep<'_> {
    /// What it comes to, of a limit.
    pub(super) fn of(self, limit: Amount) -> Amount {
        match self {
            Keep::Amount(amount) => amount,
            Keep::Share(text) => limit.percent_up(text).unwrap_or(limit),
        }
    }
}

/// The option that the next word begins, if it is one of `words`.
pub(super) fn next(args: &Args, words: OptionSet) -> Option<Word> {
    if args.is_empty() { None } else { args.peek().and_then(|word| Word::among(words, word)) }
}

/// The options that were read in one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options<'a> {
    /// COST.
    pub(super) cost: Option<Cost>,
    /// The word that COST was given, for the error that refuses it.
    pub(super) cost_said: &'a [u8],
    /// UPTO, FORCE or MAXWAIT.
    pub(super) mode: Option<Mode>,
    /// KEEP.
    pub(super) keep: Option<Keep<'a>>,
    /// AS.
    pub(super) name: Option<&'a [u8]>,
    /// ALIGNED, STRICT or NX: each algorithm has one at most.
    pub(super) flagged: bool,
    /// OFFSET and ANCHOR.
    pub(super) alignment: Alignment,
    /// ONCE or SETTLE.
    pub(super) idempotency: Idempotency<'a>,
    /// EACH.
    pub(super) each: bool,
    /// SHADOW.
    pub(super) shadow: bool,
    /// SIZE.
    pub(super) size: Option<SketchSize>,
    /// ITEM.
    pub(super) item: Option<&'a [u8]>,
}

/// Where the boundaries of an aligned window lie, if they are moved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alignment {
    /// How far clocks are from UTC.
    pub(super) offset: Option<Offset>,
    /// The day of the month that they begin on.
    pub(super) anchor: Option<Anchor>,
}

impl<'a> Options<'a> {
    /// None at all.
    pub(super) const NONE: Options<'static> = Options {
        cost: None,
        cost_said: &[],
        mode: None,
        keep: None,
        name: None,
        flagged: false,
        alignment: Alignment { offset: None, anchor: None },
        idempotency: Idempotency::Every,
        each: false,
        shadow: false,
        size: None,
        item: None,
    };

    /// Those that a policy says of a limit.
    pub(super) fn of_policy(cost: Option<Cost>, name: Option<&'a [u8]>) -> Options<'a> {
        Options { cost, name, ..Options::NONE }
    }

    /// Returns `true` if FORCE is among them.
    pub(super) fn force(&self) -> bool {
        matches!(self.mode, Some(Mode::Force))
    }

    /// Reads options in any order, each at most once, up to a word that is none of `words`.
    pub(super) fn read(args: &mut Args<'a>, words: OptionSet) -> Result<Options<'a>, Error> {
        let mut options = Options::NONE;
        if let Some(first) = next(args, words) {
            options.read_from(first, args, words)?;
        }
        Ok(options)
    }

    /// Reads options in any order, each at most once, up to a word that is none of `words`. The next word is `first`.
    #[inline(always)]
    pub(super) fn read_from(&mut self, first: Word, args: &mut Args<'a>, words: OptionSet) -> Result<(), Error> {
        let mut option = Some(first);
        while let Some(read) = option {
            let before = *args;
            args.skip();
            if let Some(there) = self.take(read, args)? {
                return Err(excluded(&before, read, there));
            }
            option = next(args, words);
        }
        Ok(())
    }

    /// Reads what follows the word of an option; the option that was in its place already.
    pub(super) fn take(&mut self, option: Word, args: &mut Args<'a>) -> Result<Option<Word>, Error> {
        Ok(match option {
            Word::Cost => {
                self.cost_said = args.argument("cost", &OF_COST)?;
                self.cost.replace(cost(self.cost_said)?).map(|_| option)
            }
            Word::CostOfLease => {
                self.cost_said = args.argument("cost", &OF_COST)?;
                self.cost.replace(cost_of_lease(self.cost_said)?).map(|_| option)
            }
            Word::UpTo => self.mode.replace(Mode::UpTo).map(Mode::word),
            Word::Force => {
                let shadow = self.shadow.then_some(Word::Shadow);
                self.mode.replace(Mode::Force).map(Mode::word).or(shadow)
            }
            Word::MaxWait => {
                let word = args.argument("maxwait", &OF_MAXWAIT)?;
                let patience = Span::parse(word).ok_or_else(|| Error::out_of_range("maxwait", &PATIENCE, word))?;
                self.mode.replace(Mode::MaxWait(patience)).map(Mode::word)
            }
            Word::Keep => self.keep.replace(keep(args.argument("keep", &OF_KEEP)?)?).map(|_| option),
            Word::As => self.name.replace(name(args.argument("name", &OF_AS)?)?).map(|_| option),
            Word::Offset => {
                let word = args.argument("offset", &OF_OFFSET)?;
                let offset = Offset::parse(word).ok_or_else(|| Error::out_of_range("offset", &OFFSET, word))?;
                self.alignment.offset.replace(offset).map(|_| option)
            }
            Word::Anchor => {
                let word = args.argument("anchor", &OF_ANCHOR)?;
                let anchor = Anchor::parse(word).ok_or_else(|| Error::out_of_range("anchor", &ANCHOR, word))?;
                self.alignment.anchor.replace(anchor).map(|_| option)
            }
            Word::Aligned | Word::Strict | Word::Nx => std::mem::replace(&mut self.flagged, true).then_some(option),
            Word::Once => {
                let id = id(args.argument("id", &OF_ONCE)?)?;
                let word = args.argument("ttl", &OF_ONCE)?;
                let ttl = Period::parse(word).ok_or_else(|| Error::out_of_range("ttl", &DURATION, word))?;
                self.set_idempotency(Idempotency::Once { id, ttl })
            }
            Word::Settle => {
                let id = id(args.argument("id", &OF_SETTLE)?)?;
                let word = args.argument("amount", &OF_SETTLE)?;
                let amount = Amount::parse_up(word).ok_or_else(|| Error::out_of_range("amount", &SETTLED, word))?;
                self.set_idempotency(Idempotency::Settle { id, amount })
            }
            Word::Each => std::mem::replace(&mut self.each, true).then_some(option),
            Word::Size => {
                let word = args.argument("size", &OF_SIZE)?;
                let size = SketchSize::parse(word).ok_or_else(|| Error::out_of_range("size", &SIZE, word))?;
                self.size.replace(size).map(|_| option)
            }
            Word::Item => self.item.replace(args.argument("item", &OF_ITEM)?).map(|_| option),
            Word::Shadow => {
                let again = std::mem::replace(&mut self.shadow, true).then_some(option);
                // What denies nobody has nothing to be forced past.
                again.or(self.mode.map(Mode::word))
            }
            // RL.ACQUIRE, the one command that has them, reads them elsewhere.
            Word::Block | Word::Fence => return Err(out_of_place(option, Reason::OnlyAcquireBlocks)),
        })
    }

    fn set_idempotency(&mut self, idempotency: Idempotency<'a>) -> Option<Word> {
        match std::mem::replace(&mut self.idempotency, idempotency) {
            Idempotency::Every => None,
            Idempotency::Once { .. } => Some(Word::Once),
            Idempotency::Settle { .. } => Some(Word::Settle),
        }
    }

    /// Refuses what only the one spec of a call can have.
    pub(super) fn refuse_among_several(&self) -> Result<(), Error> {
        match (self.idempotency, self.mode) {
            (Idempotency::Once { .. }, _) => Err(out_of_place(Word::Once, Reason::ForAllSpecs)),
            (Idempotency::Settle { .. }, _) => Err(out_of_place(Word::Settle, Reason::ForAllSpecs)),
            (Idempotency::Every, Some(Mode::UpTo)) => Err(out_of_place(Word::UpTo, Reason::UpToAmongSeveral)),
            (Idempotency::Every, _) => Ok(()),
        }
    }

    /// Refuses what gives back to one of several limits of a key only.
    pub(super) fn refuse_give_back(&self, must_be: &'static MustBe) -> Result<(), Error> {
        match self.cost {
            Some(Cost::GiveBack(_)) => Err(Error::out_of_range("cost", must_be, self.cost_said)),
            _ => Ok(()),
        }
    }

    /// "In place of COST, UPTO, FORCE, MAXWAIT, KEEP."
    pub(super) fn refuse_beside_settle(&self) -> Result<(), Error> {
        let beside = [self.cost.map(|_| Word::Cost), self.mode.map(Mode::word), self.keep.map(|_| Word::Keep)];
        beside.into_iter().flatten().next().map_or(Ok(()), |word| Err(out_of_place(word, Reason::SettleSaysTheCost)))
    }

    /// What its cost, of 1 unless it is said, and a mode ask together.
    pub(super) fn request(&self, mode: Option<Mode>) -> Result<Request, Error> {
        let refused = |must_be| Error::out_of_range("cost", must_be, self.cost_said);
        let (cost, whole) = match (self.cost.unwrap_or(Cost::Charge { cost: Amount::ONE, whole: true }), mode) {
            (Cost::Charge { cost, whole }, _) => (cost, whole),
            (Cost::GiveBack(amount), None) => return Ok(Request::GiveBack(amount)),
            (Cost::GiveBack(_), Some(Mode::UpTo)) => return Err(refused(&COST_UPTO)),
            (Cost::GiveBack(_), Some(_)) => return Err(refused(&COST_WITH_MODE)),
        };
        match mode {
            None => Ok(Request::Take(cost)),
            Some(Mode::Force) => Ok(Request::Force(cost)),
            Some(Mode::MaxWait(patience)) => Ok(Request::Within(cost, patience)),
            Some(Mode::UpTo) if whole && cost != Amount::ZERO => Ok(Request::UpTo(cost)),
            Some(Mode::UpTo) => Err(refused(&COST_UPTO)),
        }
    }
}

/// The error of an option in whose place another is, at the words `before` it.
#[cold]
pub(super) fn excluded(before: &Args, option: Word, there: Word) -> Error {
    before.unexpected(if option == there { Reason::Again } else { Reason::Extras(there.name()) })
}

/// A cost; negative, it gives back. `-0` is 0.
fn cost(text: &[u8]) -> Result<Cost, Error> {
    let refused = || Error::out_of_range("cost", &COST, text);
    let Some(negative) = text.strip_prefix(b"-") else {
        let cost = Amount::parse_up(text).ok_or_else(refused)?;
        let whole = cost == cost.floor() && Amount::parse_down(text) == Some(cost);
        return Ok(Cost::Charge { cost, whole });
    };
    match Amount::parse_up(negative) {
        Some(Amount::ZERO) => Ok(Cost::Charge { cost: Amount::ZERO, whole: true }),
        _ => Amount::parse_down(negative).map(Cost::GiveBack).ok_or_else(refused),
    }
}

fn cost_of_lease(text: &[u8]) -> Result<Cost, Error> {
    let cost = Amount::parse_up(text).filter(|cost| *cost != Amount::ZERO);
    let cost = cost.ok_or_else(|| Error::out_of_range("cost", &COST_OF_LEASE, text))?;
    Ok(Cost::Charge { cost, whole: false })
}

fn keep(text: &[u8]) -> Result<Keep<'_>, Error> {
    let keep = if text.ends_with(b"%") {
        Amount::ONE.percent_up(text).map(|_| Keep::Share(text))
    } else {
        Amount::parse_up(text).map(Keep::Amount)
    };
    keep.ok_or_else(|| Error::out_of_range("keep", &KEEP, text))
}

fn name(text: &[u8]) -> Result<&[u8], Error> {
    is_name(text).then_some(text).ok_or_else(|| Error::out_of_range("name", &NAME, text))
}

fn id(text: &[u8]) -> Result<&[u8], Error> {
    let valid = (1..=MAX_ID).contains(&text.len());
    valid.then_some(text).ok_or_else(|| Error::out_of_range("id", &ID, text))
}
