//! Words of a call, parsed by every command: they are rejected with a short error, or the parsed request can be written
//! as words of the same meaning.
//!
//! The input is the text of a call. Words end at a space. A backslash escapes the next byte, so that a word can contain
//! any bytes. Every command parses all words after the first, which is not used.

mod policies;

use crate::laws::{assert_error_text, assert_lawful};
use ratelimit_core::queue::Claim;
use ratelimit_core::syntax::{
    self, AcquireOptions, Block, Idempotency, KeyRequest, LimitParser, MAX_ID, MAX_SPEC_NAME, MAX_SPECS,
    ManyKeysRequest, Purpose, Spec, SpecOptions,
};
use ratelimit_core::wire::args::{Args, KeyIndex};
use ratelimit_core::wire::error::Error;
use ratelimit_core::with_limit;
use ratelimit_core::{Amount, AnyLimit, Limit, Request, Timestamp};
use std::mem::discriminant;

pub fn run(data: &[u8]) {
    let words = words(data);
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    for (name, parser) in Spec::ALGORITHMS {
        let own = parse(&words, |args| one_algorithm(args, parser));
        assert_rejected_or_writable(&own);
        // RL.FIXED k ... is RL.TAKE k FIXED ..., which accepts further words.
        if words.len() > 1 {
            let mut generic = words.clone();
            generic.insert(2, name.as_bytes());
            let generic = parse(&generic, |args| KeyRequest::take(args, None));
            match (&own, &generic) {
                // RL.TAKE gives a hint if the word may be a key.
                (
                    Err(Error::OutOfRange { argument, must_be, .. }),
                    Err(Error::OutOfRange { argument: generic_argument, must_be: generic_must_be, .. }),
                ) => assert_eq!((generic_argument, generic_must_be), (argument, must_be)),
                (Err(Error::Unexpected { .. }), generic) if !matches!(generic, Ok(KeyRequest::One(_))) => {}
                (own, generic) => assert_eq!(format!("{generic:?}"), format!("{own:?}")),
            }
        }
    }
    assert_acquire(&words);
    let generic = parse(&words, |args| KeyRequest::take(args, None));
    assert_rejected_or_writable(&generic);
    let begins_with_a_spec = words.get(2).is_some_and(|word| is_algorithm(word));
    if matches!(generic, Ok(KeyRequest::One(_))) && begins_with_a_spec {
        // The first words of a valid call are a valid call, or lack a word. A calendar window may lack its ALIGNED.
        for length in 1..words.len() {
            let (words, removed) = words.split_at(length);
            let words = words.to_vec();
            let truncated = parse(&words, |args| KeyRequest::take(args, None));
            let lacks_aligned = match &truncated {
                Err(Error::OutOfRange { argument: "window", .. } | Error::Unexpected { .. }) => {
                    removed.iter().any(|word| word.eq_ignore_ascii_case(b"ALIGNED"))
                }
                _ => false,
            };
            assert!(
                lacks_aligned
                    || matches!(truncated, Ok(KeyRequest::One(_)) | Err(Error::WrongArity | Error::Missing { .. })),
                "{truncated:?}"
            );
        }
    }
    let peeked = parse(&words, |args| KeyRequest::peek(args, None));
    assert_rejected_or_writable(&peeked);
    if let (Ok(KeyRequest::One(spec)), Ok(peeked)) = (&generic, &peeked) {
        assert!(matches!(peeked, KeyRequest::One(peeked) if meaning(peeked) == meaning(spec)), "{peeked:?}");
    }
    match many_keys(&words) {
        Err(error) => assert_error_text(&error),
        Ok(ManyKeysRequest { keys, idempotency, purpose }) => {
            assert!(!keys.is_empty() && keys.len() < words.len());
            assert_idempotency(&idempotency, purpose);
            for (KeyIndex(index), request) in keys {
                assert!((2..words.len()).contains(&index), "a key is one of the words after numkeys");
                match request {
                    KeyRequest::One(spec) => {
                        assert!(!matches!(spec.request, Request::UpTo(_)));
                        assert_writable(&spec);
                    }
                    KeyRequest::Policy(request) => policies::assert_valid_request(&request),
                    KeyRequest::Composite(call) => panic!("{call:?}: policies have not been looked up yet"),
                }
            }
        }
    }
    policies::assert_policy_commands(&words);
    match throttle(&words) {
        Err(error) => assert_error_text(&error),
        Ok(spec) => assert_writable(&spec),
    }
    match holders(&words) {
        Err(error) => assert_error_text(&error),
        Ok(holders) => assert_eq!(holders, words[2..]),
    }
}

/// Asserts that RL.ACQUIRE parses the arguments of CONCURRENCY with BLOCK and FENCE among them, and that a waiter's
/// retry makes the same request.
fn assert_acquire(words: &Vec<&[u8]>) {
    let mut acquire_options = AcquireOptions::default();
    let acquired = parse(words, |args| {
        let mut options = SpecOptions::default();
        let parsed;
        (parsed, acquire_options) = Spec::acquire(args, &mut options)?;
        KeyRequest::build_single_with_options(args, &parsed, &options)
    });
    assert_rejected_or_writable(&acquired);
    if let Ok(acquired) = &acquired {
        let [spec] = (match acquired {
            KeyRequest::One(spec) => std::slice::from_ref(spec),
            KeyRequest::Composite(call) => &call.specs,
            KeyRequest::Policy(request) => panic!("{request:?}"),
        }) else {
            panic!("{acquired:?}: more than one lease")
        };
        let claim = Claim::of(spec).expect("a lease");
        let retry = claim.request(spec.limit.raised_by(spec.keep).limit(), false);
        // Only settlements distinguish a cost of the spec itself.
        let shown = |request: &KeyRequest| format!("{request:?}").replace("has_own_cost: true", "has_own_cost: false");
        assert_eq!(shown(&retry), shown(acquired));
    }
    let has = |option: &[u8]| words.iter().any(|word| word.eq_ignore_ascii_case(option));
    if !has(b"BLOCK") && !has(b"FENCE") {
        assert_eq!(acquire_options, AcquireOptions { block: Block::No, fence: false });
        let concurrency = parse(words, |args| one_algorithm(args, Spec::concurrency));
        match (acquired, concurrency) {
            (Ok(acquired), Ok(concurrency)) => assert_eq!(format!("{acquired:?}"), format!("{concurrency:?}")),
            (Err(acquired), Err(concurrency)) => assert_eq!(discriminant(&acquired), discriminant(&concurrency)),
            (acquired, concurrency) => panic!("{acquired:?}, but {concurrency:?}"),
        }
    }
}

fn is_algorithm(word: &[u8]) -> bool {
    Spec::ALGORITHMS.iter().any(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()))
}

/// Splits the input into words.
fn words(data: &[u8]) -> Vec<Vec<u8>> {
    let mut words = vec![Vec::new()];
    let mut bytes = data.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, words.last_mut()) {
            (b'\\', Some(word)) => word.extend(bytes.next()),
            (byte, Some(word)) if byte != b' ' => word.push(byte),
            _ => words.push(Vec::new()),
        }
    }
    words
}

/// Parses `name key ...`, the words of a command on one key. `parse_rest` parses the words after the key.
fn parse<'a>(
    words: &'a Vec<&'a [u8]>,
    parse_rest: impl FnOnce(&mut Args<'a>) -> Result<KeyRequest<'a>, Error>,
) -> Result<KeyRequest<'a>, Error> {
    let mut args = Args::new(words);
    args.key()?;
    let request = parse_rest(&mut args)?;
    args.end().map(|()| request)
}

/// Parses the arguments of a command for one algorithm.
fn one_algorithm<'a>(args: &mut Args<'a>, parser: LimitParser<'a>) -> Result<KeyRequest<'a>, Error> {
    let mut options = SpecOptions::default();
    let parsed = parser(args, &mut options)?;
    KeyRequest::build_single_with_options(args, &parsed, &options)
}

/// Parses `RL.MTAKE numkeys key [key ...] [options] spec [spec ...]`.
fn many_keys<'a>(words: &'a Vec<&'a [u8]>) -> Result<ManyKeysRequest<'a>, Error> {
    let mut args = Args::new(words);
    let mut call = ManyKeysRequest::default();
    call.take(&mut args, None)?;
    args.end().map(|()| call)
}

/// Parses `RL.THROTTLE key max_burst count period [quantity]`.
fn throttle<'a>(words: &'a Vec<&'a [u8]>) -> Result<Spec<'a>, Error> {
    let mut args = Args::new(words);
    args.key()?;
    let (bucket, request) = syntax::throttle(&mut args)?;
    Ok(Spec::of(AnyLimit::Bucket(bucket), request))
}

/// Parses `RL.RELEASE key holder [holder ...]`.
fn holders<'a>(words: &'a Vec<&'a [u8]>) -> Result<Vec<&'a [u8]>, Error> {
    let mut args = Args::new(words);
    args.key()?;
    syntax::holders(&mut args)
}

/// Asserts that a request was rejected with a short error, or that its specs are [writable](assert_writable).
fn assert_rejected_or_writable(request: &Result<KeyRequest, Error>) {
    let call = match request {
        Err(error) => return assert_error_text(error),
        Ok(KeyRequest::One(spec)) => return assert_writable(spec),
        Ok(KeyRequest::Composite(call)) => call,
        Ok(KeyRequest::Policy(request)) => return policies::assert_valid_request(request),
    };
    assert!((1..=MAX_SPECS).contains(&call.specs.len()));
    assert_idempotency(&call.idempotency, call.purpose);
    for (index, spec) in call.specs.iter().enumerate() {
        assert_writable(spec);
        assert!(call.specs.len() == 1 || !matches!(spec.request, Request::UpTo(_)) || !spec.has_own_cost);
        assert!(spec.name.is_none_or(|name| (1..=MAX_SPEC_NAME).contains(&name.len()) && name.is_ascii()));
        for other in &call.specs[..index] {
            let kind_and_name = |spec: &Spec| (spec.limit.kind(), spec.name.map(<[u8]>::to_vec));
            let has_other_identity = spec.name.is_none() && spec.limit.identity() != other.limit.identity();
            assert!(kind_and_name(spec) != kind_and_name(other) || has_other_identity, "two specs have one component");
        }
    }
}

fn assert_idempotency(idempotency: &Idempotency, purpose: Purpose) {
    match idempotency {
        Idempotency::Every => assert!(purpose != Purpose::Settle),
        Idempotency::Once { id, .. } => {
            assert!((1..=MAX_ID).contains(&id.len()) && matches!(purpose, Purpose::Charge | Purpose::Peek));
        }
        Idempotency::Settle { id, amount } => {
            assert!((1..=MAX_ID).contains(&id.len()) && *amount <= Amount::MAX_ARGUMENT && purpose == Purpose::Settle);
        }
    }
}

/// Asserts that the spec has the same meaning after it is written as words and parsed again, and that calls on its
/// limit keep the laws.
fn assert_writable(spec: &Spec) {
    // A peek on a policy has no holder, but the words of a lease need one.
    let lacks_holder = spec.is_held_by_id() && spec.holder_or_item.is_empty();
    let spec = &if lacks_holder { Spec { holder_or_item: b"holder", ..*spec } } else { *spec };
    let spec_words = words_of(spec);
    let words: Vec<&[u8]> = [&b"RL.TAKE"[..], b"key"].into_iter().chain(spec_words.iter().map(Vec::as_slice)).collect();
    match parse(&words, |args| KeyRequest::take(args, None)) {
        Ok(KeyRequest::One(parsed)) => assert_eq!(meaning(&parsed), meaning(spec), "{spec_words:?}"),
        other => panic!("{spec_words:?} is parsed to {other:?}"),
    }
    with_limit!(spec, limit => {
        for now in [Timestamp::EPOCH, Timestamp::from_clock(1_700_000_000_000_000), Timestamp::MAX] {
            assert_lawful(limit, &mut unused(limit), now, spec.request);
        }
    });
}

fn unused<L: Limit>(_: &L) -> L::Usage {
    L::Usage::default()
}

/// Returns the parts of a spec that decide a call, as text. The limit is prepared, because precomputed values do not
/// change decisions.
fn meaning(spec: &Spec) -> String {
    let limit = match spec.limit {
        // The unlowered capacity, which a sketch also stores, does not change decisions.
        AnyLimit::Sketch(_) => spec.limit.to_string(),
        limit => format!("{:?}", limit.prepared()),
    };
    let request = match spec.request {
        // Only a policy can request ForceUpTo, which has the decision of FORCE and replies the granted amount.
        Request::ForceUpTo(cost) => Request::Force(cost),
        request => request,
    };
    format!("{limit} {request:?} {:?} {}", spec.holder_or_item, spec.nx)
}

/// Returns the words of KEEP for a peek that keeps more than its limit. Its limit is lowered to 0.
fn keep_words(spec: &Spec) -> Vec<Vec<u8>> {
    if spec.request == Request::PeekPastLimit { vec![b"KEEP".to_vec(), b"1".to_vec()] } else { Vec::new() }
}

/// Returns the words of a spec. Its limit is already lowered by the amount to keep.
fn words_of(spec: &Spec) -> Vec<Vec<u8>> {
    let limit = spec.limit.to_string();
    let mut words: Vec<Vec<u8>> = limit.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    if let AnyLimit::Sketch(_) = spec.limit {
        // The item stands after the numbers and before SIZE.
        words.insert(4, spec.holder_or_item.to_vec());
    }
    if let AnyLimit::Concurrency(_) = spec.limit {
        words.push(spec.holder_or_item.to_vec());
        words.extend(spec.nx.then(|| b"NX".to_vec()));
        if spec.request.is_peek() {
            words.extend(keep_words(spec));
            // The cost of a lease cannot be 0, but that of the call can.
            return [b"COST".to_vec(), b"0".to_vec()].into_iter().chain(words).collect();
        }
    }
    let options = match spec.request {
        Request::Take(cost) => vec!["COST".into(), cost.to_string()],
        Request::UpTo(cost) => vec!["COST".into(), cost.to_string(), "UPTO".into()],
        Request::Force(cost) | Request::ForceUpTo(cost) => vec!["FORCE".into(), "COST".into(), cost.to_string()],
        Request::Within(cost, max_wait) => {
            vec!["MAXWAIT".into(), max_wait.to_string(), "COST".into(), cost.to_string()]
        }
        // -0 is not a refund, but an amount that is rounded down to zero is.
        Request::Refund(Amount::ZERO) => vec!["COST".into(), "-0.0000001".into()],
        Request::Refund(amount) => vec!["COST".into(), format!("-{amount}")],
        Request::PeekPastLimit => vec!["COST".into(), "0".into()],
    };
    words.extend(keep_words(spec));
    words.extend(options.into_iter().map(String::into_bytes));
    words
}
