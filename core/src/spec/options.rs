//! The options of a call and of a spec, and what they come to together.
//!
//! Options before the first spec are for all specs. Those behind a spec's numbers are for that one, and win.

use super::{AnyLimit, DURATION, Numbers, Spec};
use crate::args::Args;
use crate::bucket::Discipline;
use crate::calendar::{Anchor, Offset};
use crate::error::{Error, MustBe, one_of};
use crate::name;
use crate::{Amount, Ask, Period, Span};

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

/// The names of options to choose from: `COST, UPTO or FORCE`.
pub(super) fn names(words: Words) -> String {
    let names: Vec<&str> = words.iter().copied().map(Word::name).collect();
    one_of(&names)
}

/// What MAXWAIT says.
pub(super) const PATIENCE: MustBe = MustBe { what: "0 or a duration from 1us to 3650d", example: "500ms" };
/// What BLOCK says.
const BLOCK: MustBe = MustBe { what: "0 (no end) or a duration from 1us to 3650d", example: "5s" };
/// What COST says.
pub(super) const COST: MustBe = MustBe { what: "a number from -1000000000000 to 1000000000000", example: "1" };
/// The same beside FORCE and MAXWAIT.
pub(super) const COST_WITH_MODE: MustBe =
    MustBe { what: "a number from 0 to 1000000000000 with FORCE or MAXWAIT", example: "1" };
/// The same beside ONCE.
pub(super) const COST_WITH_ONCE: MustBe = MustBe { what: "a number from 0 to 1000000000000 with ONCE", example: "1" };
/// The same behind one of several limits on a key.
pub(super) const COST_OF_SEVERAL: MustBe =
    MustBe { what: "a number from 0 to 1000000000000 behind one of several limits", example: "1" };
/// The same beside UPTO.
pub(super) const COST_UPTO: MustBe = MustBe { what: "a whole number from 1 to 1000000000000 with UPTO", example: "10" };
/// The same of a lease.
pub(super) const COST_OF_LEASE: MustBe = MustBe { what: "a number above 0, up to 1000000000000", example: "1" };
/// What KEEP says.
pub(super) const KEEP: MustBe = MustBe { what: "a number from 0 to 1000000000000, or from 0% to 100%", example: "20%" };
/// What AS says.
pub(super) const NAME: MustBe =
    MustBe { what: "1 to 32 of the letters A-Z and a-z, digits, _ and -", example: "requests" };
/// Which call ONCE and SETTLE are about.
pub(super) const ID: MustBe = MustBe { what: "1 to 256 bytes", example: "req-17" };
/// What OFFSET says.
pub(super) const OFFSET: MustBe = MustBe { what: "a distance from UTC from -14:00 to +14:00", example: "+09:00" };
const ANCHOR: MustBe = MustBe { what: "a day of the month from 1 to 31", example: "15" };
/// What SETTLE says the call turned out to cost.
pub(super) const SETTLED: MustBe = MustBe { what: "a number from 0 to 1000000000000", example: "1200" };

/// The longest name of a limit among several, in bytes.
pub const MAX_NAME: usize = 32;

/// The longest id of a call, in bytes.
pub const MAX_ID: usize = name::MAX_NAME;

/// The error of an option that goes with no other.
pub(super) fn out_of_place(word: Word, since: &str) -> Error {
    Error::unexpected_where(word.name().as_bytes(), &format!(", since {since}"))
}

/// The error of an option of the whole call behind one of several specs.
pub(super) fn too_late(word: &str) -> Error {
    Error::unexpected_where(word.as_bytes(), ", which is for all specs and stands before the first")
}

/// The error of UPTO where several limits are to pass.
pub(super) fn upto_among_several() -> Error {
    out_of_place(Word::UpTo, "several limits grant all or nothing")
}

/// Whether a call that is admitted charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Take,
    Peek,
}

impl Verb {
    /// Whether a call counts once is nothing to one that does not charge.
    pub(super) fn counts(self, counts: Counts) -> Result<Counts, Error> {
        match (self, counts) {
            (Verb::Take, counts) => Ok(counts),
            (Verb::Peek, Counts::Settle { .. }) => Err(out_of_place(Word::Settle, "a look settles nothing")),
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
            Ask::Take(Amount::ZERO) | Ask::Force(Amount::ZERO) | Ask::Within(Amount::ZERO, _) => Purpose::Look,
            Ask::Take(_) | Ask::Force(_) | Ask::Within(..) | Ask::UpTo(_) => Purpose::Charge,
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
            let again = if option == Word::Block {
                block.replace(blocking(args.word()?)?).is_some()
            } else {
                self.options.get_or_insert(Options::NONE).take(option, args)?
            };
            if again {
                before.end()?;
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
            if self.take(read, args)? {
                before.end()?;
            }
            option = next(args, words);
        }
        Ok(())
    }

    /// Reads what follows the word of an option; whether there was one in its place already.
    fn take(&mut self, option: Word, args: &mut Args<'a>) -> Result<bool, Error> {
        Ok(match option {
            Word::Cost => self.cost.replace(cost(args.word()?)?).is_some(),
            Word::CostOfLease => self.cost.replace(cost_of_lease(args.word()?)?).is_some(),
            Word::UpTo => self.mode.replace(Mode::UpTo).is_some(),
            Word::Force => self.mode.replace(Mode::Force).is_some(),
            Word::MaxWait => {
                let patience = Span::parse(args.word()?).ok_or_else(|| Error::out_of_range("maxwait", PATIENCE))?;
                self.mode.replace(Mode::MaxWait(patience)).is_some()
            }
            Word::Keep => self.keep.replace(keep(args.word()?)?).is_some(),
            Word::As => self.name.replace(name(args.word()?)?).is_some(),
            Word::Offset => {
                let offset = Offset::parse(args.word()?).ok_or_else(|| Error::out_of_range("offset", OFFSET))?;
                self.alignment.offset.replace(offset).is_some()
            }
            Word::Anchor => {
                let anchor = Anchor::parse(args.word()?).ok_or_else(|| Error::out_of_range("anchor", ANCHOR))?;
                self.alignment.anchor.replace(anchor).is_some()
            }
            Word::Aligned | Word::Strict | Word::Nx => std::mem::replace(&mut self.flagged, true),
            Word::Once => {
                let id = id(args.word()?)?;
                let ttl = Period::parse(args.word()?).ok_or_else(|| Error::out_of_range("ttl", DURATION))?;
                self.counts(Counts::Once { id, ttl })
            }
            Word::Settle => {
                let id = id(args.word()?)?;
                let amount = Amount::parse_up(args.word()?).ok_or_else(|| Error::out_of_range("amount", SETTLED))?;
                self.counts(Counts::Settle { id, amount })
            }
            Word::Each => std::mem::replace(&mut self.each, true),
            Word::Shadow => std::mem::replace(&mut self.shadow, true),
            // Whoever takes it reads it elsewhere.
            Word::Block => return Err(blocks_elsewhere()),
        })
    }

    fn counts(&mut self, counts: Counts<'a>) -> bool {
        std::mem::replace(&mut self.counts, counts) != Counts::Every
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
        refuse_to_keep(self.keep, ask(self.cost, self.mode)?, purpose)?;
        let terms = Terms { options: self, purpose, are_any: true, own_cost: false };
        terms.refuse_once_beside(self.cost)?;
        Ok(terms)
    }

    /// Refuses what only the one spec of a call can have.
    pub(super) fn refuse_among_several(&self) -> Result<(), Error> {
        match (self.counts, self.mode) {
            (Counts::Once { .. }, _) => Err(too_late("ONCE")),
            (Counts::Settle { .. }, _) => Err(too_late("SETTLE")),
            (Counts::Every, Some(Mode::UpTo)) => Err(upto_among_several()),
            (Counts::Every, _) => Ok(()),
        }
    }

    /// Refuses what gives back to one of several limits of a key only.
    pub(super) fn refuse_give_back(&self, must_be: MustBe) -> Result<(), Error> {
        match self.cost {
            Some(Cost::GiveBack(_)) => Err(Error::out_of_range("cost", must_be)),
            _ => Ok(()),
        }
    }

    /// "In place of COST, UPTO, FORCE, MAXWAIT, KEEP."
    fn refuse_beside_settle(&self) -> Result<(), Error> {
        let beside = [self.cost.map(|_| Word::Cost), self.mode.map(Mode::word), self.keep.map(|_| Word::Keep)];
        beside
            .into_iter()
            .flatten()
            .next()
            .map_or(Ok(()), |word| Err(out_of_place(word, "SETTLE says what the call turned out to cost")))
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
        // What goes with the cost of all does not go with another; a share is kept of any.
        let (mode, keep) = match (own.cost, all.keep) {
            (Some(_), Some(Keep::Share(_))) => (own.mode, own.keep.or(all.keep)),
            (Some(_), _) => (own.mode, own.keep),
            (None, _) => (own.mode.or(all.mode), own.keep.or(all.keep)),
        };
        let options = Options { cost, mode, keep, counts, each: all.each || own.each, ..Options::NONE };
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
            return Err(out_of_place(word, "the call has an id already"));
        }
        Options { counts: spec.counts, ..self.options }.of_the_call().map(Some)
    }

    /// What is asked of one of several limits on one key.
    pub(super) fn spec_on_key(&self, numbers: &Numbers<'a>, behind: &Behind<'a>) -> Result<Spec<'a>, Error> {
        behind.options().refuse_give_back(COST_OF_SEVERAL)?;
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
        self.refuse_once_beside(own.cost)?;
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
            (Purpose::Settle, Some(mode)) if !apart => {
                Err(out_of_place(mode.word(), "SETTLE says what the call turned out to cost"))
            }
            (Purpose::Settle, _) => Ok(Ask::Take(Amount::ZERO)),
            (Purpose::Look | Purpose::GiveBack, _) if apart => Ok(Ask::Take(Amount::ZERO)),
            (_, mode) if apart => ask(own.cost, mode),
            (_, mode) => {
                let waits = matches!(limit, AnyLimit::Bucket(bucket) if bucket.discipline() == Discipline::Burst);
                let of_the_call = self.options.mode.filter(|mode| waits || !matches!(mode, Mode::MaxWait(_)));
                ask(self.options.cost, mode.or(of_the_call))
            }
        }
    }

    /// "Not with a negative cost."
    fn refuse_once_beside(&self, cost: Option<Cost>) -> Result<(), Error> {
        match (self.options.counts, cost) {
            (Counts::Once { .. }, Some(Cost::GiveBack(_))) => Err(Error::out_of_range("cost", COST_WITH_ONCE)),
            _ => Ok(()),
        }
    }
}

/// "Not with FORCE, SETTLE or a negative cost."
fn refuse_to_keep(keep: Option<Keep>, ask: Ask, purpose: Purpose) -> Result<(), Error> {
    let keeps_nothing = matches!(purpose, Purpose::Settle | Purpose::GiveBack);
    if keep.is_some() && (keeps_nothing || matches!(ask, Ask::Force(_) | Ask::GiveBack(_))) {
        return Err(out_of_place(Word::Keep, "FORCE, SETTLE and a negative cost keep nothing"));
    }
    Ok(())
}

/// What a cost, of 1 unless it is said, and a mode ask together.
fn ask(cost: Option<Cost>, mode: Option<Mode>) -> Result<Ask, Error> {
    let (cost, whole) = match (cost.unwrap_or(Cost::Charge { cost: Amount::ONE, whole: true }), mode) {
        (Cost::Charge { cost, whole }, _) => (cost, whole),
        (Cost::GiveBack(amount), None) => return Ok(Ask::GiveBack(amount)),
        (Cost::GiveBack(_), Some(Mode::UpTo)) => return Err(Error::out_of_range("cost", COST_UPTO)),
        (Cost::GiveBack(_), Some(_)) => return Err(Error::out_of_range("cost", COST_WITH_MODE)),
    };
    match mode {
        None => Ok(Ask::Take(cost)),
        Some(Mode::Force) => Ok(Ask::Force(cost)),
        Some(Mode::MaxWait(patience)) => Ok(Ask::Within(cost, patience)),
        Some(Mode::UpTo) if whole && cost != Amount::ZERO => Ok(Ask::UpTo(cost)),
        Some(Mode::UpTo) => Err(Error::out_of_range("cost", COST_UPTO)),
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

fn cost_of_lease(text: &[u8]) -> Result<Cost, Error> {
    let cost = Amount::parse_up(text).filter(|cost| *cost != Amount::ZERO);
    let cost = cost.ok_or_else(|| Error::out_of_range("cost", COST_OF_LEASE))?;
    Ok(Cost::Charge { cost, whole: false })
}

fn blocking(text: &[u8]) -> Result<Block, Error> {
    match Span::parse(text).ok_or_else(|| Error::out_of_range("block", BLOCK))? {
        Span::ZERO => Ok(Block::Forever),
        span => Ok(Block::For(span)),
    }
}

/// The error of BLOCK where no call can wait.
fn blocks_elsewhere() -> Error {
    Error::unexpected_where(Word::Block.name().as_bytes(), ", which only RL.ACQUIRE has")
}

/// The error of a word that has no place where it stands; `place` reads on from the word. Of BLOCK it is rather who has
/// it, wherever that stands.
#[cold]
pub(super) fn refused(word: &[u8], place: &str) -> Error {
    if Word::Block.is(word) { blocks_elsewhere() } else { Error::unexpected_where(word, place) }
}

fn keep(text: &[u8]) -> Result<Keep<'_>, Error> {
    let keep = if text.ends_with(b"%") {
        Amount::ONE.percent_up(text).map(|_| Keep::Share(text))
    } else {
        Amount::parse_up(text).map(Keep::Amount)
    };
    keep.ok_or_else(|| Error::out_of_range("keep", KEEP))
}

/// Whether a limit can have that name.
#[must_use]
pub fn is_name(text: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=MAX_NAME).contains(&text.len()) && text.iter().all(plain)
}

fn name(text: &[u8]) -> Result<&[u8], Error> {
    is_name(text).then_some(text).ok_or_else(|| Error::out_of_range("name", NAME))
}

fn id(text: &[u8]) -> Result<&[u8], Error> {
    let valid = (1..=MAX_ID).contains(&text.len());
    valid.then_some(text).ok_or_else(|| Error::out_of_range("id", ID))
}
