//! The options of a call and of a spec, and what they come to together.
//!
//! Options before the first spec are for all specs. Those behind a spec's numbers are for that one, and win.

use super::call::{is_ban, is_policy};
use super::{ALGORITHM_NAMES, AnyLimit, CONCURRENCY, DURATION, Numbers, Spec};
use crate::algorithm::bucket::Discipline;
use crate::algorithm::fixed_window::calendar::{Anchor, Offset};
use crate::evaluate::Ask;
use crate::number::{Amount, Period, Span};
use crate::wire::args::Args;
use crate::wire::error::{Error, MustBe, Needed, Reason, Syntax, What};
use crate::wire::name;

/// A word that begins an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// `COST cost`: negative, it gives back.
    Cost,
    /// `COST cost` of a lease, which is given back by name.
    CostOfLease,
    UpTo,
    Force,
    /// `MAXWAIT duration`
    MaxWait,
    /// `KEEP amount`, `KEEP n%`
    Keep,
    /// `AS name`
    As,
    Aligned,
    /// `OFFSET +hh:mm`, `OFFSET -hh:mm`
    Offset,
    /// `ANCHOR day`
    Anchor,
    Strict,
    Nx,
    /// `ONCE id ttl`
    Once,
    /// `SETTLE id amount`
    Settle,
    Each,
    Shadow,
    /// `BLOCK duration`
    Block,
}

/// The words that are options somewhere.
pub(super) type Words = &'static [Word];

/// What stands before the first spec of RL.TAKE and RL.PEEK.
pub(super) const OF_A_CALL: Words =
    &[Word::Cost, Word::UpTo, Word::Force, Word::MaxWait, Word::Keep, Word::Once, Word::Settle, Word::Each];
/// What stands before the first spec of RL.MTAKE and RL.MPEEK.
pub(super) const OF_KEYS: Words = &[Word::Cost, Word::Force, Word::MaxWait, Word::Keep, Word::Once, Word::Settle];
/// What stands behind the numbers of an algorithm.
pub(super) const OF_TOKEN_BUCKET: Words =
    &[Word::Cost, Word::UpTo, Word::Force, Word::MaxWait, Word::Keep, Word::As, Word::Once, Word::Settle];
/// Likewise.
pub(super) const OF_LEAKY_BUCKET: Words =
    &[Word::Cost, Word::UpTo, Word::Force, Word::Keep, Word::As, Word::Once, Word::Settle];
/// Likewise.
pub(super) const OF_FIXED_WINDOW: Words = &[
    Word::Cost,
    Word::UpTo,
    Word::Force,
    Word::Keep,
    Word::As,
    Word::Aligned,
    Word::Offset,
    Word::Anchor,
    Word::Once,
    Word::Settle,
];
/// Likewise.
pub(super) const OF_SLIDING_WINDOW: Words =
    &[Word::Cost, Word::UpTo, Word::Force, Word::Keep, Word::As, Word::Strict, Word::Once, Word::Settle];
/// Likewise.
pub(super) const OF_SLIDING_LOG: Words = OF_LEAKY_BUCKET;
/// Likewise.
pub(super) const OF_CONCURRENCY: Words = &[Word::CostOfLease, Word::Keep, Word::As, Word::Nx];
/// Behind those of RL.ACQUIRE.
const OF_ACQUIRE: Words = &[Word::CostOfLease, Word::Keep, Word::As, Word::Nx, Word::Block];
/// What stands where no option can.
pub(super) const NONE: Words = &[];

/// Those of `words` that a policy can say: the rest comes with the call.
fn in_policy(words: Words) -> Words {
    let has = |word| words.contains(&word);
    if has(Word::CostOfLease) {
        &[Word::CostOfLease, Word::As, Word::Shadow]
    } else if has(Word::Aligned) {
        &[Word::Cost, Word::As, Word::Aligned, Word::Offset, Word::Anchor, Word::Shadow]
    } else if has(Word::Strict) {
        &[Word::Cost, Word::As, Word::Strict, Word::Shadow]
    } else {
        &[Word::Cost, Word::As, Word::Shadow]
    }
}

impl Word {
    /// The word itself.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Word::Cost | Word::CostOfLease => "COST",
            Word::UpTo => "UPTO",
            Word::Force => "FORCE",
            Word::MaxWait => "MAXWAIT",
            Word::Keep => "KEEP",
            Word::As => "AS",
            Word::Aligned => "ALIGNED",
            Word::Offset => "OFFSET",
            Word::Anchor => "ANCHOR",
            Word::Strict => "STRICT",
            Word::Nx => "NX",
            Word::Once => "ONCE",
            Word::Settle => "SETTLE",
            Word::Each => "EACH",
            Word::Shadow => "SHADOW",
            Word::Block => "BLOCK",
        }
    }

    fn is(self, word: &[u8]) -> bool {
        word.eq_ignore_ascii_case(self.name().as_bytes())
    }

    /// The option that `word` begins, if it is one of `words`.
    fn among(words: Words, word: &[u8]) -> Option<Word> {
        words.iter().copied().find(|option| option.is(word))
    }
}

/// The names of options to choose from.
pub(super) fn names(words: Words) -> Vec<&'static str> {
    words.iter().copied().map(Word::name).collect()
}

/// What MAXWAIT says.
pub(super) const PATIENCE: MustBe = MustBe::duration("0 or a duration", " from 1us to 3650d", "500ms");
/// What BLOCK says.
const BLOCK: MustBe = MustBe::duration("0 (no end) or a duration", " from 1us to 3650d", "5s");
/// What COST says.
pub(super) const COST: MustBe = MustBe::number("a number", " from -1000000000000 to 1000000000000", "1");
/// The same beside FORCE and MAXWAIT.
pub(super) const COST_WITH_MODE: MustBe =
    MustBe::number("a number", " from 0 to 1000000000000 with FORCE or MAXWAIT", "1");
/// The same beside ONCE.
pub(super) const COST_WITH_ONCE: MustBe = MustBe::number("a number", " from 0 to 1000000000000 with ONCE", "1");
/// The same behind one of several limits on a key.
pub(super) const COST_OF_SEVERAL: MustBe =
    MustBe::number("a number", " from 0 to 1000000000000 behind one of several limits", "1");
/// The same beside UPTO.
pub(super) const COST_UPTO: MustBe = MustBe::number("a whole number", " from 1 to 1000000000000 with UPTO", "10");
/// The same of a lease.
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

const OF_COST: Syntax = Syntax { word: "COST", arguments: "amount" };
const OF_MAXWAIT: Syntax = Syntax { word: "MAXWAIT", arguments: "duration" };
const OF_KEEP: Syntax = Syntax { word: "KEEP", arguments: "amount, or KEEP n%" };
const OF_AS: Syntax = Syntax { word: "AS", arguments: "name" };
const OF_OFFSET: Syntax = Syntax { word: "ALIGNED OFFSET", arguments: "+hh:mm" };
const OF_ANCHOR: Syntax = Syntax { word: "ALIGNED ANCHOR", arguments: "day" };
const OF_ONCE: Syntax = Syntax { word: "ONCE", arguments: "id ttl" };
const OF_SETTLE: Syntax = Syntax { word: "SETTLE", arguments: "id amount" };
const OF_BLOCK: Syntax = Syntax { word: "BLOCK", arguments: "duration" };

/// The longest name of a limit among several, in bytes.
pub const MAX_NAME: usize = 32;

/// The longest id of a call, in bytes.
pub const MAX_ID: usize = name::MAX_NAME;

/// The error of an option that goes with no other.
#[cold]
pub(super) fn out_of_place(word: Word, reason: Reason) -> Error {
    Error::unexpected(word.name().as_bytes(), reason)
}

/// Whether a call that is admitted charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Take,
    Peek,
}

impl Verb {
    /// Of a call on one key.
    pub(super) fn syntax(self) -> &'static Syntax {
        match self {
            Verb::Take => &Syntax { word: "RL.TAKE", arguments: "key [options] spec [spec ...]" },
            Verb::Peek => &Syntax { word: "RL.PEEK", arguments: "key [options] spec [spec ...]" },
        }
    }

    /// The same by a policy.
    pub(super) fn syntax_by_policy(self) -> &'static Syntax {
        match self {
            Verb::Take => &Syntax { word: "RL.TAKE", arguments: "key POLICY name" },
            Verb::Peek => &Syntax { word: "RL.PEEK", arguments: "key POLICY name" },
        }
    }

    /// Whether a call counts once is nothing to one that does not charge.
    pub(super) fn counts(self, counts: Counts) -> Result<Counts, Error> {
        match (self, counts) {
            (Verb::Take, counts) => Ok(counts),
            (Verb::Peek, Counts::Settle { .. }) => Err(out_of_place(Word::Settle, Reason::LookSettlesNothing)),
            (Verb::Peek, _) => Ok(Counts::Every),
        }
    }
}

/// Whether a call counts however often it comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counts<'a> {
    /// Every time.
    #[default]
    Every,
    /// Once, as long as its id is remembered.
    Once {
        /// 1 to [`MAX_ID`] bytes.
        id: &'a [u8],
        /// For how long it is.
        ttl: Period,
    },
    /// As what a call before turned out to cost.
    Settle {
        /// That call's.
        id: &'a [u8],
        /// What it turned out to cost.
        amount: Amount,
    },
}

/// For how long a call would rather wait than be denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Block {
    /// It does not wait.
    #[default]
    No,
    /// For so long.
    For(Span),
    /// As long as it takes.
    Forever,
}

/// What a call as a whole is for. A spec with a cost of its own, or of leases, is charged only by a call that charges;
/// else it is looked at with a cost of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It charges.
    Charge,
    /// Its cost is 0.
    Look,
    /// Its cost is negative. Nothing denies it.
    GiveBack,
    /// SETTLE. Nothing denies it, and what is asked of each spec is a cost of 0.
    Settle,
}

impl Purpose {
    /// Of a call that asks no more than that.
    #[must_use]
    pub fn of(ask: Ask) -> Purpose {
        match ask {
            Ask::GiveBack(_) => Purpose::GiveBack,
            ask if ask.is_look() => Purpose::Look,
            Ask::Take(_) | Ask::Force(_) | Ask::Within(..) | Ask::UpTo(_) | Ask::LookPastLimit => Purpose::Charge,
        }
    }
}

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
enum Mode {
    UpTo,
    Force,
    MaxWait(Span),
}

impl Mode {
    fn word(self) -> Word {
        match self {
            Mode::UpTo => Word::UpTo,
            Mode::Force => Word::Force,
            Mode::MaxWait(_) => Word::MaxWait,
        }
    }
}

/// What KEEP says.
#[derive(Clone, Copy, Debug)]
enum Keep<'a> {
    Amount(Amount),
    /// `n%`, as it was said: what it comes to is for the limit to say.
    Share(&'a [u8]),
}

impl Keep<'_> {
    fn of(self, limit: Amount) -> Amount {
        match self {
            Keep::Amount(amount) => amount,
            Keep::Share(text) => limit.percent_up(text).unwrap_or(limit),
        }
    }
}

/// The option that the next word begins, if it is one of `words`.
fn next(args: &Args, words: Words) -> Option<Word> {
    if args.is_empty() { None } else { args.peek().and_then(|word| Word::among(words, word)) }
}

/// What stands behind the numbers of a spec.
#[derive(Clone, Copy, Debug, Default)]
pub struct Behind<'a> {
    options: Option<Options<'a>>,
    /// Those that there could be.
    pub(super) words: Words,
    /// Whether the spec is a policy's.
    pub(super) of_policy: bool,
}

impl<'a> Behind<'a> {
    /// Of a spec of a policy.
    pub(super) fn of_policy() -> Behind<'a> {
        Behind { of_policy: true, ..Behind::default() }
    }

    /// Reads options up to a word that is none of `words`; whether the algorithm's own flag was among them.
    #[inline(always)]
    pub(super) fn read(&mut self, args: &mut Args<'a>, words: Words) -> Result<bool, Error> {
        // Most calls have none.
        if args.is_empty() { Ok(false) } else { self.read_any(args, words) }
    }

    #[inline(never)]
    fn read_any(&mut self, args: &mut Args<'a>, words: Words) -> Result<bool, Error> {
        let words = if self.of_policy { in_policy(words) } else { words };
        self.words = words;
        let Some(first) = next(args, words) else { return Ok(false) };
        // A limit with its flag is as plain as one without.
        let mut behind_first = *args;
        behind_first.skip();
        if matches!(first, Word::Aligned | Word::Strict) && behind_first.is_empty() {
            *args = behind_first;
            return Ok(true);
        }
        let options = self.options.insert(Options::NONE);
        options.read_from(first, args, words)?;
        Ok(options.flagged)
    }

    /// Reads the options of RL.ACQUIRE; what BLOCK says.
    #[inline(never)]
    pub(super) fn read_blocking(&mut self, args: &mut Args<'a>) -> Result<Block, Error> {
        self.words = OF_ACQUIRE;
        let mut block = None;
        while let Some(option) = next(args, OF_ACQUIRE) {
            let before = *args;
            args.skip();
            let there = if option == Word::Block {
                block.replace(blocking(args.argument("block", &OF_BLOCK)?)?).map(|_| Word::Block)
            } else {
                self.options.get_or_insert(Options::NONE).take(option, args)?
            };
            if let Some(there) = there {
                return Err(excluded(&before, option, there));
            }
        }
        Ok(block.unwrap_or_default())
    }

    /// Whether nothing stands there but perhaps the algorithm's own flag, and no word is left.
    #[must_use]
    #[inline(always)]
    pub fn is_nothing(&self, args: &Args) -> bool {
        args.is_empty() && self.has_no_options()
    }

    /// The same, whatever is left.
    #[inline(always)]
    pub(super) fn has_no_options(&self) -> bool {
        self.options.is_none()
    }

    /// The options, or none.
    pub(super) fn options(&self) -> &Options<'a> {
        self.options.as_ref().unwrap_or(&Options::NONE)
    }
}

/// The options that were read in one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options<'a> {
    /// COST.
    pub(super) cost: Option<Cost>,
    /// The same as it was said, for who refuses it.
    cost_said: &'a [u8],
    mode: Option<Mode>,
    keep: Option<Keep<'a>>,
    /// AS.
    pub(super) name: Option<&'a [u8]>,
    /// ALIGNED, STRICT or NX: each algorithm has one at most.
    flagged: bool,
    /// OFFSET and ANCHOR.
    pub(super) alignment: Alignment,
    counts: Counts<'a>,
    each: bool,
    /// SHADOW.
    pub(super) shadow: bool,
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
        counts: Counts::Every,
        each: false,
        shadow: false,
    };

    /// Those that a policy says of a limit.
    pub(super) fn of_policy(cost: Option<Cost>, name: Option<&'a [u8]>) -> Options<'a> {
        Options { cost, name, ..Options::NONE }
    }

    /// Reads options in any order, each at most once, up to a word that is none of `words`.
    pub(super) fn read(args: &mut Args<'a>, words: Words) -> Result<Options<'a>, Error> {
        let mut options = Options::NONE;
        if let Some(first) = next(args, words) {
            options.read_from(first, args, words)?;
        }
        Ok(options)
    }

    /// The same, `first` being what the next word begins.
    #[inline(always)]
    fn read_from(&mut self, first: Word, args: &mut Args<'a>, words: Words) -> Result<(), Error> {
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
    fn take(&mut self, option: Word, args: &mut Args<'a>) -> Result<Option<Word>, Error> {
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
            Word::Force => self.mode.replace(Mode::Force).map(Mode::word),
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
                self.counts(Counts::Once { id, ttl })
            }
            Word::Settle => {
                let id = id(args.argument("id", &OF_SETTLE)?)?;
                let word = args.argument("amount", &OF_SETTLE)?;
                let amount = Amount::parse_up(word).ok_or_else(|| Error::out_of_range("amount", &SETTLED, word))?;
                self.counts(Counts::Settle { id, amount })
            }
            Word::Each => std::mem::replace(&mut self.each, true).then_some(option),
            Word::Shadow => std::mem::replace(&mut self.shadow, true).then_some(option),
            // Whoever takes it reads it elsewhere.
            Word::Block => return Err(out_of_place(Word::Block, Reason::OnlyAcquireBlocks)),
        })
    }

    fn counts(&mut self, counts: Counts<'a>) -> Option<Word> {
        match std::mem::replace(&mut self.counts, counts) {
            Counts::Every => None,
            Counts::Once { .. } => Some(Word::Once),
            Counts::Settle { .. } => Some(Word::Settle),
        }
    }

    /// What all specs have in common: these are the options before the first, or none.
    pub(super) fn of_the_call(self) -> Result<Terms<'a>, Error> {
        let purpose = match (self.counts, self.cost) {
            (Counts::Settle { .. }, _) => {
                self.refuse_beside_settle()?;
                Purpose::Settle
            }
            (_, Some(Cost::GiveBack(_))) => Purpose::GiveBack,
            (_, Some(Cost::Charge { cost: Amount::ZERO, .. })) => Purpose::Look,
            _ => Purpose::Charge,
        };
        // Wrong is wrong, even if no spec takes it.
        refuse_to_keep(self.keep, self.ask(self.mode)?, purpose)?;
        let terms = Terms { options: self, purpose, are_any: true, own_cost: false };
        terms.refuse_once_beside(&self)?;
        Ok(terms)
    }

    /// Refuses what only the one spec of a call can have.
    pub(super) fn refuse_among_several(&self) -> Result<(), Error> {
        match (self.counts, self.mode) {
            (Counts::Once { .. }, _) => Err(out_of_place(Word::Once, Reason::ForAllSpecs)),
            (Counts::Settle { .. }, _) => Err(out_of_place(Word::Settle, Reason::ForAllSpecs)),
            (Counts::Every, Some(Mode::UpTo)) => Err(out_of_place(Word::UpTo, Reason::UpToAmongSeveral)),
            (Counts::Every, _) => Ok(()),
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
    fn refuse_beside_settle(&self) -> Result<(), Error> {
        let beside = [self.cost.map(|_| Word::Cost), self.mode.map(Mode::word), self.keep.map(|_| Word::Keep)];
        beside.into_iter().flatten().next().map_or(Ok(()), |word| Err(out_of_place(word, Reason::SettleSaysTheCost)))
    }

    /// What its cost, of 1 unless it is said, and a mode ask together.
    fn ask(&self, mode: Option<Mode>) -> Result<Ask, Error> {
        let refused = |must_be| Error::out_of_range("cost", must_be, self.cost_said);
        let (cost, whole) = match (self.cost.unwrap_or(Cost::Charge { cost: Amount::ONE, whole: true }), mode) {
            (Cost::Charge { cost, whole }, _) => (cost, whole),
            (Cost::GiveBack(amount), None) => return Ok(Ask::GiveBack(amount)),
            (Cost::GiveBack(_), Some(Mode::UpTo)) => return Err(refused(&COST_UPTO)),
            (Cost::GiveBack(_), Some(_)) => return Err(refused(&COST_WITH_MODE)),
        };
        match mode {
            None => Ok(Ask::Take(cost)),
            Some(Mode::Force) => Ok(Ask::Force(cost)),
            Some(Mode::MaxWait(patience)) => Ok(Ask::Within(cost, patience)),
            Some(Mode::UpTo) if whole && cost != Amount::ZERO => Ok(Ask::UpTo(cost)),
            Some(Mode::UpTo) => Err(refused(&COST_UPTO)),
        }
    }
}

/// What all specs of a call have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    options: Options<'a>,
    /// What the call is for, by them alone.
    pub(super) purpose: Purpose,
    /// Whether anything was said at all.
    are_any: bool,
    /// Whether the cost is of one key's own: what it was charged, a settlement of all leaves alone.
    own_cost: bool,
}

impl<'a> Terms<'a> {
    /// Those of a call without options of its own.
    pub(super) const NONE: Terms<'static> =
        Terms { options: Options::NONE, purpose: Purpose::Charge, are_any: false, own_cost: false };

    /// How often the call counts.
    pub(super) fn counts(&self) -> Counts<'a> {
        self.options.counts
    }

    /// The mode with which an admitted call may have to wait, or is granted less than it asks for.
    pub(super) fn word_that_tells_more(&self) -> Option<&'static str> {
        let mode = self.options.mode.filter(|mode| matches!(mode, Mode::UpTo | Mode::MaxWait(_)));
        mode.map(|mode| mode.word().name())
    }

    /// The same with options that stand behind the only spec of a key, and win.
    pub(super) fn with(&self, own: &Options<'a>) -> Result<Terms<'a>, Error> {
        let all = self.options;
        let counts = self.counting_as(own)?.map_or(all.counts, |terms| terms.counts());
        // Of a call that as a whole charges nothing, what has a cost of its own is looked at.
        let looks = own.cost.is_some() && self.purpose != Purpose::Charge;
        let cost = if looks { Some(Cost::Charge { cost: Amount::ZERO, whole: true }) } else { own.cost.or(all.cost) };
        let cost_said = if own.cost.is_some() { own.cost_said } else { all.cost_said };
        // What goes with the cost of all does not go with another; a share is kept of any.
        let (mode, keep) = match (own.cost, all.keep) {
            (Some(_), Some(Keep::Share(_))) => (own.mode, own.keep.or(all.keep)),
            (Some(_), _) => (own.mode, own.keep),
            (None, _) => (own.mode.or(all.mode), own.keep.or(all.keep)),
        };
        let options = Options { cost, cost_said, mode, keep, counts, each: all.each || own.each, ..Options::NONE };
        if looks {
            Ok(Terms { options, purpose: self.purpose, are_any: true, own_cost: true })
        } else {
            options.of_the_call()
        }
    }

    /// Whether each decision is to be told.
    pub(super) fn each(&self) -> bool {
        self.options.each
    }

    /// The same with the ONCE or SETTLE that stands behind the only spec; `None` if there is none.
    pub(super) fn counting_as(&self, spec: &Options<'a>) -> Result<Option<Terms<'a>>, Error> {
        let word = match spec.counts {
            Counts::Every => return Ok(None),
            Counts::Once { .. } => Word::Once,
            Counts::Settle { .. } => {
                spec.refuse_beside_settle()?;
                Word::Settle
            }
        };
        if self.options.counts != Counts::Every {
            return Err(out_of_place(word, Reason::HasId));
        }
        Options { counts: spec.counts, ..self.options }.of_the_call().map(Some)
    }

    /// What is asked of one of several limits on one key.
    pub(super) fn spec_on_key(&self, numbers: &Numbers<'a>, behind: &Behind<'a>) -> Result<Spec<'a>, Error> {
        behind.options().refuse_give_back(&COST_OF_SEVERAL)?;
        self.spec_among_several(numbers, behind)
    }

    /// What is asked of one of several limits.
    #[inline(always)]
    pub(super) fn spec_among_several(&self, numbers: &Numbers<'a>, behind: &Behind<'a>) -> Result<Spec<'a>, Error> {
        // Most say no more than their numbers.
        if self.are_any || behind.options.is_some() {
            self.spec_by_options(numbers, behind.options())
        } else {
            Ok(Spec::plain(*numbers))
        }
    }

    #[inline(never)]
    fn spec_by_options(&self, numbers: &Numbers<'a>, own: &Options<'a>) -> Result<Spec<'a>, Error> {
        own.refuse_among_several()?;
        self.spec(numbers, own)
    }

    /// What is asked of one limit, by its own options and these.
    #[inline(always)]
    pub(super) fn spec(&self, numbers: &Numbers<'a>, own: &Options<'a>) -> Result<Spec<'a>, Error> {
        let Numbers { limit, holder } = *numbers;
        let of_leases = matches!(limit, AnyLimit::Concurrency(_));
        let ask = self.ask(&limit, own)?;
        self.refuse_once_beside(own)?;
        let keep = own.keep.or(match self.options.keep {
            Some(Keep::Amount(_)) if own.cost.is_some() || of_leases => None,
            keep => keep,
        });
        refuse_to_keep(keep, ask, self.purpose)?;
        let spec = Spec {
            limit,
            ask,
            holder,
            kept: Amount::ZERO,
            name: own.name,
            own_cost: own.cost.is_some() || self.own_cost,
            nx: own.flagged && of_leases,
            shadow: false,
            by_policy: false,
            slower: None,
        };
        Ok(match keep {
            Some(keep) => spec.keeping(keep.of(limit.limit())),
            None => spec,
        })
    }

    fn ask(&self, limit: &AnyLimit, own: &Options) -> Result<Ask, Error> {
        let apart = own.cost.is_some() || matches!(limit, AnyLimit::Concurrency(_));
        match (self.purpose, own.mode) {
            (Purpose::Settle, Some(mode)) if !apart => Err(out_of_place(mode.word(), Reason::SettleSaysTheCost)),
            (Purpose::Settle, _) => Ok(Ask::Take(Amount::ZERO)),
            (Purpose::Look | Purpose::GiveBack, _) if apart => Ok(Ask::Take(Amount::ZERO)),
            (_, mode) if apart => own.ask(mode),
            (_, mode) => {
                let waits = matches!(limit, AnyLimit::Bucket(bucket) if bucket.discipline() == Discipline::Burst);
                let of_the_call = self.options.mode.filter(|mode| waits || !matches!(mode, Mode::MaxWait(_)));
                self.options.ask(mode.or(of_the_call))
            }
        }
    }

    /// "Not with a negative cost."
    fn refuse_once_beside(&self, options: &Options) -> Result<(), Error> {
        match (self.options.counts, options.cost) {
            (Counts::Once { .. }, Some(Cost::GiveBack(_))) => {
                Err(Error::out_of_range("cost", &COST_WITH_ONCE, options.cost_said))
            }
            _ => Ok(()),
        }
    }
}

/// "Not with FORCE, SETTLE or a negative cost."
fn refuse_to_keep(keep: Option<Keep>, ask: Ask, purpose: Purpose) -> Result<(), Error> {
    let keeps_nothing = matches!(purpose, Purpose::Settle | Purpose::GiveBack);
    if keep.is_some() && (keeps_nothing || matches!(ask, Ask::Force(_) | Ask::GiveBack(_))) {
        return Err(out_of_place(Word::Keep, Reason::KeepsNothing));
    }
    Ok(())
}

/// The error of an option in whose place another is, at the words `before` it.
#[cold]
fn excluded(before: &Args, option: Word, there: Word) -> Error {
    before.unexpected(if option == there { Reason::Again } else { Reason::Beside(there.name()) })
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

/// Only the bare `0` has no end. Whoever works out what is left of a time-out gets `0ms` at its end, and means the
/// opposite.
fn blocking(text: &[u8]) -> Result<Block, Error> {
    if text == b"0" {
        return Ok(Block::Forever);
    }
    let span = Span::parse(text).filter(|span| *span != Span::ZERO);
    span.map(Block::For).ok_or_else(|| Error::out_of_range("block", &BLOCK, text))
}

/// The error of a word that has no place where it stands. Of BLOCK it is rather who has it, wherever that stands.
#[cold]
pub(super) fn refused(word: &[u8], reason: Reason) -> Error {
    if Word::Block.is(word) {
        out_of_place(Word::Block, Reason::OnlyAcquireBlocks)
    } else {
        Error::unexpected(word, reason)
    }
}

/// The error of a word in whose place `what` is needed: one of these options, and the name of an algorithm if it may be
/// one.
#[cold]
pub(super) fn needed(word: &[u8], what: What, options: Words, or_algorithm: bool) -> Error {
    let algorithms = if or_algorithm { ALGORITHM_NAMES.to_vec() } else { Vec::new() };
    let mut needed = Needed::instead_of(word, what, names(options), algorithms);
    let of_take = || is_ban(word) || is_policy(word) || Word::Each.is(word) || Spec::reader(word).is_some();
    if what == What::Option && of_take() {
        needed.is_meant("RL.TAKE");
    } else if or_algorithm && (word.eq_ignore_ascii_case(b"ACQUIRE") || word.eq_ignore_ascii_case(b"RL.ACQUIRE")) {
        needed.is_meant(CONCURRENCY.word);
    }
    let has_cost = options.iter().any(|option| matches!(option, Word::Cost | Word::CostOfLease));
    if has_cost && matches!(what, What::Option | What::OrOption | What::NextSpec) {
        needed.or_value("COST", word);
    }
    if what == What::OrOption {
        needed.or_value("OR", word);
    }
    refused(word, Reason::Needed(needed))
}

fn keep(text: &[u8]) -> Result<Keep<'_>, Error> {
    let keep = if text.ends_with(b"%") {
        Amount::ONE.percent_up(text).map(|_| Keep::Share(text))
    } else {
        Amount::parse_up(text).map(Keep::Amount)
    };
    keep.ok_or_else(|| Error::out_of_range("keep", &KEEP, text))
}

/// Whether a limit can have that name.
#[must_use]
pub fn is_name(text: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=MAX_NAME).contains(&text.len()) && text.iter().all(plain)
}

fn name(text: &[u8]) -> Result<&[u8], Error> {
    is_name(text).then_some(text).ok_or_else(|| Error::out_of_range("name", &NAME, text))
}

fn id(text: &[u8]) -> Result<&[u8], Error> {
    let valid = (1..=MAX_ID).contains(&text.len());
    valid.then_some(text).ok_or_else(|| Error::out_of_range("id", &ID, text))
}
