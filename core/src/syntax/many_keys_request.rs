//! Requests on several keys, with a spec or a policy for each.

use super::by_policy::ByPolicy;
use super::common_options::CommonOptions;
use super::key_request::KeyRequest;
use super::options::Options;
use super::purpose::{Idempotency, Purpose, Verb};
use super::refusal::{self, WordPlace};
use super::spec::Spec;
use super::spec_options::SpecOptions;
use super::words::{OF_KEYS, OF_POLICY_NAME_OF_KEYS, Word, is_policy, out_of_place};
use crate::wire::args::{Args, KeyName, duplicate};
use crate::wire::error::{Error, Hint, MustBe, NUMKEYS, Reason};

/// Parsed request on several keys: all are charged or none is.
#[derive(Clone, Debug)]
pub struct ManyKeysRequest<'a> {
    /// Keys with their requests. No key appears twice.
    pub keys: Vec<(KeyName, KeyRequest<'a>)>,
    /// Idempotency of the call (ONCE, SETTLE). Each key stores the id.
    pub idempotency: Idempotency<'a>,
    /// Purpose of the call as a whole.
    pub purpose: Purpose,
}

const KEYS: MustBe = MustBe::other("different from each other", "{alice}:minute {alice}:day");

impl<'a> ManyKeysRequest<'a> {
    /// Parses the arguments of RL.MTAKE: `numkeys key [key ...] [options] spec [spec ...]`.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    pub fn take(args: &mut Args<'a>) -> Result<ManyKeysRequest<'a>, Error> {
        ManyKeysRequest::read(args, Verb::Take)
    }

    /// Parses the arguments of RL.MPEEK: `numkeys key [key ...] [options] spec [spec ...]`. Rejects SETTLE and ignores
    /// ONCE, because a peek charges nothing.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    pub fn peek(args: &mut Args<'a>) -> Result<ManyKeysRequest<'a>, Error> {
        ManyKeysRequest::read(args, Verb::Peek)
    }

    fn read(args: &mut Args<'a>, verb: Verb) -> Result<ManyKeysRequest<'a>, Error> {
        let names = args.numbered_keys().ok_or_else(|| Error::out_of_range("numkeys", &NUMKEYS, args.before(0)))?;
        let mut keys = Vec::with_capacity(names.len());
        let (mut common, mut words) = (CommonOptions::NONE, OF_KEYS);
        for key in names.clone() {
            let mut read = args.peek().and_then(Spec::reader);
            if read.is_none() && keys.is_empty() {
                common = options_of_all(args)?;
                read = args.peek().and_then(Spec::reader);
            }
            if args.peek().is_some_and(is_policy) {
                args.skip();
                keys.push((key, KeyRequest::Policy(Box::new(ByPolicy::of_keys(args, verb, &common)?))));
                words = OF_POLICY_NAME_OF_KEYS;
                continue;
            }
            let Some(read) = read else {
                let place = if keys.is_empty() { WordPlace::FirstOfKeys } else { WordPlace::NextOfKeys };
                return Err(match args.peek() {
                    None => Error::TooFewSpecs { keys: names.len(), specs: keys.len() },
                    Some(word) => refusal::unknown(word, place, words, verb),
                });
            };
            args.skip();
            let mut options = SpecOptions::default();
            let parsed = read(args, &mut options)?;
            words = options.words;
            keys.push((key, KeyRequest::One(common.spec_among_several(&parsed, &options)?)));
        }
        if !args.is_empty() {
            return Err(refusal::refused(args.word()?, Reason::AfterLastSpec));
        }
        // Must come last: if numkeys is too large, words of specs are taken for keys and may be equal.
        if let Some(name) = duplicate(names.map(|key| args.name(key))) {
            return Err(Error::hinted("keys", &KEYS, name, Hint::Twice));
        }
        Ok(ManyKeysRequest { keys, idempotency: verb.idempotency(common.idempotency())?, purpose: common.purpose })
    }
}

impl ManyKeysRequest<'_> {
    /// Returns `true` if the call neither charges nor refunds any of its keys. Policies must have been resolved before.
    #[must_use]
    pub fn only_looks(&self) -> bool {
        self.purpose == Purpose::Check
            || self.keys.iter().all(|(_, request)| match request {
                KeyRequest::One(spec) => spec.request.is_look() && self.purpose == Purpose::Charge,
                KeyRequest::Composite(call) => call.purpose == Purpose::Check,
                KeyRequest::Policy(_) => false,
            })
    }
}

/// Parses the options before the first spec.
#[cold]
fn options_of_all<'a>(args: &mut Args<'a>) -> Result<CommonOptions<'a>, Error> {
    let options = Options::read(args, OF_KEYS)?;
    if args.peek().is_some_and(|word| word.eq_ignore_ascii_case(b"UPTO")) {
        return Err(out_of_place(Word::UpTo, Reason::UpToAmongSeveral));
    }
    CommonOptions::of(options)
}
