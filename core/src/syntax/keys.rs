//! A call on several keys, with a spec for each.

use super::by_policy::ByPolicy;
use super::call::Call;
use super::common_options::CommonOptions;
use super::options::Options;
use super::purpose::{Idempotency, Purpose, Verb};
use super::refusal::{self, WordPlace};
use super::spec::Spec;
use super::spec_options::SpecOptions;
use super::words::{OF_KEYS, OF_POLICY_NAME_OF_KEYS, Word, is_policy, out_of_place};
use crate::wire::args::{Args, KeyName, twin};
use crate::wire::error::{Error, Hint, MustBe, NUMKEYS, Reason};

/// A key, and what is asked of it.
pub type KeySpec<'a> = (KeyName, OnKey<'a>);

/// What a call asks of one key of several.
#[derive(Clone, Debug)]
pub enum OnKey<'a> {
    /// A spec.
    Spec(Spec<'a>),
    /// The specs of a policy, which [`ByPolicy::asked`] reads: one decision.
    Policy(Box<ByPolicy<'a>>),
    /// What it has read.
    Call(Box<Call<'a>>),
}

/// A call on several keys: all pass or none does.
#[derive(Clone, Debug)]
pub struct CallOnKeys<'a> {
    /// No key comes twice.
    pub specs: Vec<KeySpec<'a>>,
    /// How often it counts: each key remembers for itself.
    pub counts: Idempotency<'a>,
    /// What it is for as a whole.
    pub purpose: Purpose,
}

const KEYS: MustBe = MustBe::other("different from each other", "{alice}:minute {alice}:day");

impl<'a> CallOnKeys<'a> {
    /// `numkeys key [key ...] [options] spec [spec ...]`, and no more: of RL.MTAKE.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn take(args: &mut Args<'a>) -> Result<CallOnKeys<'a>, Error> {
        CallOnKeys::read(args, Verb::Take)
    }

    /// `numkeys key [key ...] [options] spec [spec ...]`, and no more: of RL.MPEEK. It refuses SETTLE and disregards
    /// ONCE, since it charges nothing.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn peek(args: &mut Args<'a>) -> Result<CallOnKeys<'a>, Error> {
        CallOnKeys::read(args, Verb::Peek)
    }

    fn read(args: &mut Args<'a>, verb: Verb) -> Result<CallOnKeys<'a>, Error> {
        let keys = args.numbered_keys().ok_or_else(|| Error::out_of_range("numkeys", &NUMKEYS, args.before(0)))?;
        let mut specs = Vec::with_capacity(keys.len());
        let (mut common, mut words) = (CommonOptions::NONE, OF_KEYS);
        for key in keys.clone() {
            let mut read = args.peek().and_then(Spec::reader);
            if read.is_none() && specs.is_empty() {
                common = options_of_all(args)?;
                read = args.peek().and_then(Spec::reader);
            }
            if args.peek().is_some_and(is_policy) {
                args.skip();
                specs.push((key, OnKey::Policy(Box::new(ByPolicy::of_keys(args, verb, &common)?))));
                words = OF_POLICY_NAME_OF_KEYS;
                continue;
            }
            let Some(read) = read else {
                let place = if specs.is_empty() { WordPlace::FirstOfKeys } else { WordPlace::NextOfKeys };
                return Err(match args.peek() {
                    None => Error::TooFewSpecs { keys: keys.len(), specs: specs.len() },
                    Some(word) => refusal::unknown(word, place, words, verb),
                });
            };
            args.skip();
            let mut behind = SpecOptions::default();
            let numbers = read(args, &mut behind)?;
            words = behind.words;
            specs.push((key, OnKey::Spec(common.spec_among_several(&numbers, &behind)?)));
        }
        if !args.is_empty() {
            return Err(refusal::refused(args.word()?, Reason::BehindLastSpec));
        }
        // Not before: a numkeys that is too large makes keys of the specs, in which words come twice.
        if let Some(twin) = twin(keys.map(|key| args.name(key))) {
            return Err(Error::hinted("keys", &KEYS, twin, Hint::Twice));
        }
        Ok(CallOnKeys { specs, counts: verb.counts(common.counts())?, purpose: common.purpose })
    }
}

impl CallOnKeys<'_> {
    /// Whether the call charges nothing and gives nothing back, on any of its keys, once the policies have been read.
    #[must_use]
    pub fn only_looks(&self) -> bool {
        self.purpose == Purpose::Check
            || self.specs.iter().all(|(_, on_key)| match on_key {
                OnKey::Spec(spec) => spec.request.is_look() && self.purpose == Purpose::Charge,
                OnKey::Call(call) => call.purpose == Purpose::Check,
                OnKey::Policy(_) => false,
            })
    }
}

/// The options before the first spec.
#[cold]
fn options_of_all<'a>(args: &mut Args<'a>) -> Result<CommonOptions<'a>, Error> {
    let options = Options::read(args, OF_KEYS)?;
    if args.peek().is_some_and(|word| word.eq_ignore_ascii_case(b"UPTO")) {
        return Err(out_of_place(Word::UpTo, Reason::UpToAmongSeveral));
    }
    CommonOptions::of(options)
}
