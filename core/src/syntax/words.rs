//! Option words, and the places where each is allowed.

use crate::wire::error::{Error, Reason};

/// Declares the option words, each with its name and the places where it is allowed. Errors list words in this order.
macro_rules! words {
    ($($(#[doc = $doc:literal])* $word:ident = $name:literal, $places:expr;)+) => {
        /// Option word.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Word {
            $($(#[doc = $doc])* $word,)+
        }

        impl Word {
            /// Returns the word as text.
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Word::$word => $name,)+
                }
            }
        }

        /// Option words with the places where they are allowed.
        const TABLE: &[(Word, u16)] = &[$((Word::$word, $places)),+];
    };
}

/// Place before the first spec of RL.TAKE and RL.PEEK.
const CALL: u16 = 1;
/// Place before the first spec of RL.MTAKE and RL.MPEEK.
const KEYS: u16 = 1 << 1;
/// Place after the numbers of a rate limit without options of its own.
const PLAIN_RATE: u16 = 1 << 2;
/// Place after the numbers of TOKENBUCKET.
const TOKEN_BUCKET: u16 = 1 << 3;
/// Place after the numbers of FIXED.
const FIXED_WINDOW: u16 = 1 << 4;
/// Place after the numbers of SLIDING.
const SLIDING_WINDOW: u16 = 1 << 5;
/// Place after the numbers of CONCURRENCY.
const CONCURRENCY: u16 = 1 << 6;
/// Place after the numbers of RL.ACQUIRE.
const ACQUIRE: u16 = 1 << 7;
/// Flag of a word that is also allowed in the definition of a policy.
const POLICY: u16 = 1 << 8;
/// Flag of a word that is allowed only in the definition of a policy.
const ONLY_POLICY: u16 = 1 << 9;
/// Place after the numbers of a sketch.
const SKETCH: u16 = 1 << 10;
/// Place after the name of a policy, in a call on one key.
const POLICY_NAME: u16 = 1 << 11;
/// Place after the name of a policy, in a call on many keys.
const POLICY_NAME_OF_KEYS: u16 = 1 << 12;
/// Flag of a word that is also allowed in the definition of a policy, but only after the numbers of a rate limit.
const RATES_OF_POLICY: u16 = 1 << 13;

const RATES: u16 = PLAIN_RATE | TOKEN_BUCKET | FIXED_WINDOW | SLIDING_WINDOW;
const LEASES: u16 = CONCURRENCY | ACQUIRE;
/// Places of the options of a call, including those after the name of a policy.
const CALLS: u16 = CALL | KEYS | POLICY_NAME | POLICY_NAME_OF_KEYS;

words! {
    /// `COST cost`. A negative cost is a refund.
    Cost = "COST", CALLS | RATES | SKETCH | POLICY;
    /// `COST cost` of a lease. Never negative, because leases are released by holder.
    CostOfLease = "COST", LEASES | POLICY;
    UpTo = "UPTO", CALL | POLICY_NAME | RATES | SKETCH;
    Force = "FORCE", CALLS | RATES | SKETCH | RATES_OF_POLICY;
    /// `MAXWAIT duration`
    MaxWait = "MAXWAIT", CALLS | TOKEN_BUCKET;
    /// `KEEP amount`, `KEEP n%`
    Keep = "KEEP", CALLS | RATES | LEASES | SKETCH;
    /// `AS name`
    As = "AS", RATES | LEASES | POLICY;
    Aligned = "ALIGNED", FIXED_WINDOW | POLICY;
    /// `OFFSET +hh:mm`, `OFFSET -hh:mm`
    Offset = "OFFSET", FIXED_WINDOW | POLICY;
    /// `ANCHOR day`
    Anchor = "ANCHOR", FIXED_WINDOW | POLICY;
    Strict = "STRICT", SLIDING_WINDOW | POLICY;
    Nx = "NX", LEASES;
    /// `ONCE id ttl`
    Once = "ONCE", CALLS | RATES;
    /// `SETTLE id amount`
    Settle = "SETTLE", CALLS | RATES;
    Each = "EACH", CALL | POLICY_NAME;
    Shadow = "SHADOW", RATES | LEASES | SKETCH | ONLY_POLICY;
    /// `SIZE size` of a sketch.
    Size = "SIZE", SKETCH | POLICY;
    /// `ITEM item` of the policy's sketch.
    Item = "ITEM", POLICY_NAME | POLICY_NAME_OF_KEYS;
    /// `BLOCK duration`
    Block = "BLOCK", ACQUIRE;
    Fence = "FENCE", ACQUIRE;
}

/// Length of the longest option, in bytes.
const MAX_OPTION_LENGTH: usize = "ALIGNED".len();

impl Word {
    /// Returns `true` if `word` is this option, in any case.
    pub(super) fn is(self, word: &[u8]) -> bool {
        word.eq_ignore_ascii_case(self.name().as_bytes())
    }

    /// Returns the option of `words` that `word` begins.
    pub(super) fn among(words: OptionSet, word: &[u8]) -> Option<Word> {
        // Often the word is the name of the next algorithm, such as TOKENBUCKET.
        if word.len() > MAX_OPTION_LENGTH {
            return None;
        }
        words.iter().copied().find(|option| option.is(word))
    }
}

/// Returns the names of options, for an error message.
pub(super) fn names(words: OptionSet) -> Vec<&'static str> {
    words.iter().copied().map(Word::name).collect()
}

/// Returns the error for an option that is not allowed, for `reason`.
#[cold]
pub(super) fn out_of_place(word: Word, reason: Reason) -> Error {
    Error::unexpected(word.name().as_bytes(), reason)
}

/// Options that are allowed in one place.
pub(super) type OptionSet = &'static [Word];

/// Options that are allowed after the numbers of an algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpecOptionSets {
    /// Options allowed in a call.
    pub(super) of_call: OptionSet,
    /// Options allowed in the definition of a policy.
    pub(super) of_policy: OptionSet,
}

/// Returns `true` if a word with the flags `places` is allowed in `place`, in a call or in the definition of a policy.
const fn is_allowed(places: u16, place: u16, in_policy: bool) -> bool {
    let policy_flags = if place & RATES == 0 { POLICY | ONLY_POLICY } else { POLICY | ONLY_POLICY | RATES_OF_POLICY };
    let is_in_scope = if in_policy { places & policy_flags != 0 } else { places & ONLY_POLICY == 0 };
    places & place != 0 && is_in_scope
}

/// Lists the words allowed in `place`, in the order of the table. Returns the list with its length: the rest is unused.
const fn list(place: u16, in_policy: bool) -> ([Word; TABLE.len()], usize) {
    let (mut table, mut list, mut count) = (TABLE, [Word::Cost; TABLE.len()], 0_usize);
    while let [(word, places), rest @ ..] = table {
        if is_allowed(*places, place, in_policy)
            && let [next, ..] = list.split_at_mut(count).1
        {
            *next = *word;
            count = count.saturating_add(1);
        }
        table = rest;
    }
    (list, count)
}

/// Lists the options allowed in a place, in the order of the table.
macro_rules! options_at {
    ($place:expr, $in_policy:expr) => {{
        const LIST: &([Word; TABLE.len()], usize) = &list($place, $in_policy);
        LIST.0.split_at(LIST.1).0
    }};
    ($place:expr) => {
        SpecOptionSets { of_call: options_at!($place, false), of_policy: options_at!($place, true) }
    };
}

/// Options before the first spec of RL.TAKE and RL.PEEK.
pub(super) const CALL_OPTIONS: OptionSet = options_at!(CALL, false);
/// Options before the first spec of RL.MTAKE and RL.MPEEK.
pub(super) const MULTI_KEY_OPTIONS: OptionSet = options_at!(KEYS, false);
/// Options after the name of a policy, in a call on one key.
pub(super) const POLICY_NAME_OPTIONS: OptionSet = options_at!(POLICY_NAME, false);
/// Options after the name of a policy, in a call on many keys.
pub(super) const MULTI_KEY_POLICY_NAME_OPTIONS: OptionSet = options_at!(POLICY_NAME_OF_KEYS, false);
/// Options of RL.ACQUIRE.
pub(super) const ACQUIRE_OPTIONS: OptionSet = options_at!(ACQUIRE, false);
/// Options of rate limits without options of their own.
pub(super) const RATE_OPTIONS: SpecOptionSets = options_at!(PLAIN_RATE);
/// Options of TOKENBUCKET.
pub(super) const TOKEN_BUCKET_OPTIONS: SpecOptionSets = options_at!(TOKEN_BUCKET);
/// Options of FIXED.
pub(super) const FIXED_WINDOW_OPTIONS: SpecOptionSets = options_at!(FIXED_WINDOW);
/// Options of SLIDING.
pub(super) const SLIDING_WINDOW_OPTIONS: SpecOptionSets = options_at!(SLIDING_WINDOW);
/// Options of CONCURRENCY.
pub(super) const CONCURRENCY_OPTIONS: SpecOptionSets = options_at!(CONCURRENCY);
/// Options of SKETCH.
pub(super) const SKETCH_OPTIONS: SpecOptionSets = options_at!(SKETCH);

/// Returns `true` if `word` is POLICY, which replaces specs.
pub(super) fn is_policy(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"POLICY")
}

/// Returns `true` if `word` is BAN, which begins a ban rule.
pub(super) fn is_ban(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"BAN")
}
