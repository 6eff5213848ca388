//! Requests on several keys, with a spec or a policy for each.

use super::bucket_cache::BucketCache;
use super::common_options::CommonOptions;
use super::key_request::KeyRequest;
use super::options::Options;
use super::policy_request::PolicyRequest;
use super::purpose::{Idempotency, Purpose, Verb};
use super::spec::Spec;
use super::spec_options::SpecOptions;
use super::word_errors;
use super::words::{MULTI_KEY_OPTIONS, MULTI_KEY_POLICY_NAME_OPTIONS, Word, is_policy, out_of_place};
use crate::wire::args::{Args, KeyIndex, duplicate};
use crate::wire::error::{Error, Expected, Hint, MustBe, NUMKEYS, Reason};
use smallvec::SmallVec;

/// Parsed request on several keys: all are charged or none is.
#[derive(Clone, Debug)]
pub struct ManyKeysRequest<'a> {
    /// Keys with their requests. No key appears twice.
    pub keys: SmallVec<[(KeyIndex, KeyRequest<'a>); 8]>,
    /// Idempotency of the call (ONCE, SETTLE). Each key stores the id.
    pub idempotency: Idempotency<'a>,
    /// Purpose of the call as a whole.
    pub purpose: Purpose,
}

const KEYS: MustBe = MustBe::other("different from each other", "{alice}:minute {alice}:day");

impl Default for ManyKeysRequest<'_> {
    /// Creates a request without keys.
    #[inline(always)]
    fn default() -> Self {
        ManyKeysRequest { keys: SmallVec::new(), idempotency: Idempotency::Every, purpose: Purpose::Charge }
    }
}

impl<'a> ManyKeysRequest<'a> {
    /// Parses the arguments of RL.MTAKE, `numkeys key [key ...] [options] spec [spec ...]`, into an empty request. A
    /// returned request would be moved, which takes long for its size. Buckets that are in `cache` are not parsed
    /// again.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn take(&mut self, args: &mut Args<'a>, cache: Option<&'a BucketCache>) -> Result<(), Error> {
        self.parse(args, Verb::Take, cache)
    }

    /// Parses the arguments of RL.MPEEK, which are those of [`take`](ManyKeysRequest::take). Rejects SETTLE and ignores
    /// ONCE, because a peek charges nothing.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    pub fn peek(&mut self, args: &mut Args<'a>, cache: Option<&'a BucketCache>) -> Result<(), Error> {
        self.parse(args, Verb::Peek, cache)
    }

    fn parse(&mut self, args: &mut Args<'a>, verb: Verb, cache: Option<&'a BucketCache>) -> Result<(), Error> {
        let indexes =
            args.numbered_keys().ok_or_else(|| Error::out_of_range("numkeys", &NUMKEYS, args.recent_word(0)))?;
        let keys = &mut self.keys;
        keys.reserve_exact(indexes.len());
        let (mut common, mut words) = (CommonOptions::NONE, MULTI_KEY_OPTIONS);
        for index in indexes.clone() {
            let mut parse = args.peek().and_then(Spec::limit_parser);
            if parse.is_none() && keys.is_empty() {
                common = common_options(args)?;
                parse = args.peek().and_then(Spec::limit_parser);
            }
            let Some(parse) = parse else {
                let Some(word) = args.peek() else {
                    return Err(Error::TooFewSpecs { keys: indexes.len(), specs: keys.len() });
                };
                if !is_policy(word) {
                    let expected = if keys.is_empty() { Expected::FirstSpecOfKeys } else { Expected::NextSpecOfKeys };
                    return Err(word_errors::expected_instead(word, expected, words));
                }
                args.skip();
                keys.push((
                    index,
                    KeyRequest::Policy(Box::new(PolicyRequest::of_one_of_several_keys(args, verb, &common)?)),
                ));
                words = MULTI_KEY_POLICY_NAME_OPTIONS;
                continue;
            };
            args.skip();
            let mut options = SpecOptions::with_cache(cache);
            let parsed = parse(args, &mut options)?;
            words = options.words;
            let spec = match common.spec_with_options(&parsed, &options) {
                None => Spec::plain(parsed),
                Some(spec) => spec?,
            };
            keys.push((index, KeyRequest::One(spec)));
        }
        if !args.is_empty() {
            return Err(word_errors::unexpected(args.word()?, Reason::AfterLastSpec));
        }
        // Must come last: if numkeys is too large, words of specs are taken for keys and may be equal.
        if let Some(name) = duplicate(indexes.map(|index| args.name(index))) {
            return Err(Error::hinted("keys", &KEYS, name, Hint::Twice));
        }
        (self.idempotency, self.purpose) = (verb.idempotency(common.options.idempotency)?, common.purpose);
        Ok(())
    }
}

impl ManyKeysRequest<'_> {
    /// Returns `true` if the call neither charges nor refunds any of its keys. Each request by policy must already be
    /// replaced by its specs.
    #[must_use]
    pub fn is_peek(&self) -> bool {
        self.purpose == Purpose::Peek
            || self.keys.iter().all(|(_, request)| match request {
                KeyRequest::One(spec) => spec.request.is_peek() && self.purpose == Purpose::Charge,
                KeyRequest::Composite(call) => call.purpose == Purpose::Peek,
                KeyRequest::Policy(_) => false,
            })
    }
}

/// Parses the options before the first spec.
#[cold]
fn common_options<'a>(args: &mut Args<'a>) -> Result<CommonOptions<'a>, Error> {
    let options = Options::parse(args, MULTI_KEY_OPTIONS)?;
    if args.peek().is_some_and(|word| word.eq_ignore_ascii_case(b"UPTO")) {
        return Err(out_of_place(Word::UpTo, Reason::UpToAmongSeveral));
    }
    CommonOptions::of(options)
}
