//! Requests on one key: one or several specs with their common options.

use super::ban_words::ban_rule;
use super::bucket_cache::BucketCache;
use super::common_options::CommonOptions;
use super::options::Options;
use super::policy_request::PolicyRequest;
use super::purpose::{Idempotency, Purpose, Verb};
use super::spec::{MAX_SPECS, ParsedLimit, Spec};
use super::spec_options::SpecOptions;
use super::word_errors;
use super::words::{CALL_OPTIONS, is_ban, is_policy};
use crate::ban::BanRule;
use crate::evaluate::Request;
use crate::wire::args::Args;
use crate::wire::error::{Error, Expected, Reason};

/// Parsed request on one key.
///
/// ```
/// use ratelimit_core::wire::args::Args;
/// use ratelimit_core::syntax::{KeyRequest, Idempotency};
/// use ratelimit_core::{Amount, Request};
///
/// let text = "RL.TAKE COST 4000 ONCE req-17 5m TOKENBUCKET 60 60 1m COST 1 AS requests TOKENBUCKET 9000 9000 1m AS tokens";
/// let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
/// let KeyRequest::Composite(request) = KeyRequest::take(&mut Args::new(&words), None)? else { unreachable!() };
/// let requests: Vec<Request> = request.specs.iter().map(|spec| spec.request).collect();
/// assert_eq!(requests, [1, 4000].map(|units| Request::Take(Amount::saturating(units * 1_000_000))));
/// assert!(matches!(request.idempotency, Idempotency::Once { id: b"req-17", .. }));
/// # Ok::<(), ratelimit_core::wire::error::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum KeyRequest<'a> {
    /// Single spec that a plain key can serve: no id, name, ban or reply per limit.
    One(Spec<'a>),
    /// Request that needs a composite key.
    Composite(Box<CompositeRequest<'a>>),
    /// Request by policy; [`PolicyRequest::request`] turns it into specs.
    Policy(Box<PolicyRequest<'a>>),
}

/// Request on one key that needs a composite key: several specs, or one with a name, an id or a ban.
#[derive(Clone, Debug)]
pub struct CompositeRequest<'a> {
    /// Specs, 1 to [`MAX_SPECS`]. No two of one kind have the same identity.
    pub specs: Vec<Spec<'a>>,
    /// Idempotency of the call (ONCE, SETTLE).
    pub idempotency: Idempotency<'a>,
    /// Purpose of the call as a whole.
    pub purpose: Purpose,
    /// `true` if the reply lists the decision of each limit (EACH).
    pub each: bool,
    /// Rule by which denied calls ban the key.
    pub ban: Option<BanRule>,
}

impl<'a> CompositeRequest<'a> {
    /// Creates a request with a single spec and no options.
    #[must_use]
    pub fn of_one(spec: Spec<'a>) -> CompositeRequest<'a> {
        let purpose = Purpose::of(spec.request);
        CompositeRequest { specs: vec![spec], idempotency: Idempotency::Every, purpose, each: false, ban: None }
    }

    /// Returns the item if the request is on a sketch, which is always the only spec.
    #[must_use]
    pub fn item(&self) -> Option<&'a [u8]> {
        self.specs.first().and_then(Spec::item)
    }
}

impl<'a> KeyRequest<'a> {
    /// Parses the arguments of RL.TAKE: `[options] spec [spec ...] [BAN strikes window block [MAX longest]]`. Buckets
    /// that are in `cache` are not parsed again.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn take(args: &mut Args<'a>, cache: Option<&'a BucketCache>) -> Result<KeyRequest<'a>, Error> {
        KeyRequest::parse(args, Verb::Take, cache)
    }

    /// Parses the arguments of RL.PEEK, which are those of [`take`](KeyRequest::take). Rejects SETTLE and ignores ONCE,
    /// because a peek charges nothing.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn peek(args: &mut Args<'a>, cache: Option<&'a BucketCache>) -> Result<KeyRequest<'a>, Error> {
        KeyRequest::parse(args, Verb::Peek, cache)
    }

    /// Builds the request of a command for one algorithm from the parsed numbers and options. Rejects any remaining
    /// word.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    #[inline(always)]
    pub fn build_single_with_options(
        args: &mut Args<'a>,
        parsed: &ParsedLimit<'a>,
        options: &SpecOptions<'a>,
    ) -> Result<KeyRequest<'a>, Error> {
        // Copied: a reference to the caller's `parsed` would force it into memory, even for calls without options.
        let ParsedLimit { limit, holder_or_item } = *parsed;
        KeyRequest::build_single_out_of_line(args, &ParsedLimit { limit, holder_or_item }, options)
    }

    #[inline(never)]
    fn build_single_out_of_line(
        args: &mut Args<'a>,
        parsed: &ParsedLimit<'a>,
        options: &SpecOptions<'a>,
    ) -> Result<KeyRequest<'a>, Error> {
        if let Some(word) = args.peek() {
            return Err(word_errors::expected_instead(word, Expected::Option, options.words));
        }
        KeyRequest::build_single(Verb::Take, &CommonOptions::NONE, parsed, options, None)
    }

    #[inline(always)]
    fn parse(args: &mut Args<'a>, verb: Verb, cache: Option<&'a BucketCache>) -> Result<KeyRequest<'a>, Error> {
        let Some(parse) = args.peek().and_then(Spec::limit_parser) else {
            return KeyRequest::after_options(args, verb, cache);
        };
        args.skip();
        let mut options = SpecOptions::with_cache(cache);
        let parsed = parse(args, &mut options)?;
        if options.is_plain(args) {
            return Ok(KeyRequest::One(Spec::plain(parsed)));
        }
        KeyRequest::after_first_spec(args, verb, &CommonOptions::NONE, &parsed, &options)
    }

    /// Parses a call that does not begin with a spec.
    #[cold]
    fn after_options(args: &mut Args<'a>, verb: Verb, cache: Option<&'a BucketCache>) -> Result<KeyRequest<'a>, Error> {
        let common = CommonOptions::of(Options::parse(args, CALL_OPTIONS)?)?;
        let word = args.argument("a spec", verb.syntax())?;
        if is_ban(word) {
            return Err(Error::unexpected(word, Reason::BanBeforeSpecs));
        }
        if is_policy(word) {
            return PolicyRequest::of_only_key(args, verb, &common)
                .map(|request| KeyRequest::Policy(Box::new(request)));
        }
        let parse = Spec::limit_parser(word).ok_or_else(|| word_errors::unknown_first(word, CALL_OPTIONS, verb))?;
        let mut options = SpecOptions::with_cache(cache);
        let parsed = parse(args, &mut options)?;
        KeyRequest::after_first_spec(args, verb, &common, &parsed, &options)
    }

    /// Parses the words after the first spec, which is `parsed` with its `options`.
    #[inline(never)]
    fn after_first_spec(
        args: &mut Args<'a>,
        verb: Verb,
        common: &CommonOptions<'a>,
        parsed: &ParsedLimit<'a>,
        options: &SpecOptions<'a>,
    ) -> Result<KeyRequest<'a>, Error> {
        // A request that a plain key can serve allocates nothing.
        if args.is_empty() {
            return KeyRequest::build_single(verb, common, parsed, options, None);
        }
        let (cache, in_policy) = (options.cache, false);
        let (mut specs, mut words, mut ban): (Vec<Spec>, _, _) = (Vec::new(), options.words, None);
        while let (Some(word), None) = (args.peek(), ban) {
            args.skip();
            if is_ban(word) {
                Spec::plain(*parsed).check_bannable()?;
                ban = Some(ban_rule(args)?);
                continue;
            }
            if specs.is_empty() {
                // Allocates once, for the maximum number of specs.
                specs.reserve_exact(MAX_SPECS);
                specs.push(common.spec_on_key(parsed, options)?);
            }
            let parse = word_errors::next_limit_parser(word, words, specs.len(), in_policy)?;
            let mut options = SpecOptions::with_cache(cache);
            let parsed = parse(args, &mut options)?;
            words = options.words;
            let spec = common.spec_on_key(&parsed, &options)?;
            specs.iter().try_for_each(|other| spec.check_conflict(other))?;
            specs.push(spec);
        }
        if let Some(word) = args.peek() {
            return Err(word_errors::unexpected(word, Reason::AfterBan));
        }
        if specs.is_empty() {
            return KeyRequest::build_single(verb, common, parsed, options, ban);
        }
        let idempotency = verb.idempotency(common.options.idempotency)?;
        let (purpose, each) = (common.purpose, common.options.each);
        Ok(KeyRequest::Composite(Box::new(CompositeRequest { specs, idempotency, purpose, each, ban })))
    }

    /// Builds the request of a call with one spec.
    #[inline(always)]
    fn build_single(
        verb: Verb,
        common: &CommonOptions<'a>,
        parsed: &ParsedLimit<'a>,
        options: &SpecOptions<'a>,
        ban: Option<BanRule>,
    ) -> Result<KeyRequest<'a>, Error> {
        let own = options.options();
        let merged = common.with_idempotency_of(own)?;
        let common = merged.as_ref().unwrap_or(common);
        let idempotency = verb.idempotency(common.options.idempotency)?;
        let spec = common.spec(parsed, own)?;
        let purpose = if common.purpose == Purpose::Charge { Purpose::of(spec.request) } else { common.purpose };
        // In a refund (a negative common COST), a spec with a COST of its own is a peek. A plain key could deny it, but
        // a refund is never denied.
        let is_peek_in_refund = purpose == Purpose::Refund && !matches!(spec.request, Request::Refund(_));
        let fits_plain_key = idempotency == Idempotency::Every
            && spec.name.is_none()
            && !common.options.each
            && ban.is_none()
            && !is_peek_in_refund;
        if fits_plain_key {
            return Ok(KeyRequest::One(spec));
        }
        let (specs, each) = (vec![spec], common.options.each);
        Ok(KeyRequest::Composite(Box::new(CompositeRequest { specs, idempotency, purpose, each, ban })))
    }
}
