//! Words of a call, parsed by every command: they are rejected with one line, or are a limit that can be written again.
//!
//! The input is a call as one would type it. Words end at a space. A backslash escapes the byte behind it, so that a
//! word can contain any bytes. Every command parses the same words, whatever the first one is.

mod policies;

use crate::laws::{assert_lawful, assert_wire};
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
    for (name, read) in Spec::ALGORITHMS {
        let own = parse(&words, |args| one_algorithm(args, read));
        assert_refused_or_sayable(&own);
        // RL.FIXED k ... is RL.TAKE k FIXED ..., which accepts further words.
        if words.len() > 1 {
            let mut generic = words.clone();
            generic.insert(2, name.as_bytes());
            let generic = parse(&generic, |args| KeyRequest::take(args, None));
            match (&own, &generic) {
                // What is said of it may be more where a key could stand in its place.
                (
                    Err(Error::OutOfRange { argument, must_be, .. }),
                    Err(Error::OutOfRange { argument: also, must_be: must_also_be, .. }),
                ) => assert_eq!((also, must_also_be), (argument, must_be)),
                (Err(Error::Unexpected { .. }), generic) if !matches!(generic, Ok(KeyRequest::One(_))) => {}
                (own, generic) => assert_eq!(format!("{generic:?}"), format!("{own:?}")),
            }
        }
    }
    assert_acquired(&words);
    let generic = parse(&words, |args| KeyRequest::take(args, None));
    assert_refused_or_sayable(&generic);
    let begins_with_a_spec = words.get(2).is_some_and(|word| is_algorithm(word));
    if matches!(generic, Ok(KeyRequest::One(_))) && begins_with_a_spec {
        // Up to anywhere, it is a call too or has too few words, or lacks the ALIGNED that some go with.
        for length in 1..words.len() {
            let (words, left) = words.split_at(length);
            let words = words.to_vec();
            let cut = parse(&words, |args| KeyRequest::take(args, None));
            let lacks = match &cut {
                Err(Error::OutOfRange { argument: "window", .. } | Error::Unexpected { .. }) => {
                    left.iter().any(|word| word.eq_ignore_ascii_case(b"ALIGNED"))
                }
                _ => false,
            };
            assert!(
                lacks || matches!(cut, Ok(KeyRequest::One(_)) | Err(Error::WrongArity | Error::Missing { .. })),
                "{cut:?}"
            );
        }
    }
    let peeked = parse(&words, |args| KeyRequest::peek(args, None));
    assert_refused_or_sayable(&peeked);
    if let (Ok(KeyRequest::One(spec)), Ok(peeked)) = (&generic, &peeked) {
        assert!(matches!(peeked, KeyRequest::One(peeked) if meaning(peeked) == meaning(spec)), "{peeked:?}");
    }
    match on_keys(&words) {
        Err(error) => assert_wire(&error),
        Ok(ManyKeysRequest { keys, idempotency, purpose }) => {
            assert!(!keys.is_empty() && keys.len() < words.len());
            assert_idempotency(&idempotency, purpose);
            for (KeyIndex(place), of_key) in keys {
                assert!((2..words.len()).contains(&place), "a key is one of the words behind numkeys");
                match of_key {
                    KeyRequest::One(spec) => {
                        assert!(!matches!(spec.request, Request::UpTo(_)));
                        assert_sayable(&spec);
                    }
                    KeyRequest::Policy(by) => policies::assert_valid_request(&by),
                    KeyRequest::Composite(call) => panic!("{call:?}: no policy was found yet"),
                }
            }
        }
    }
    policies::assert_read(&words);
    match throttle(&words) {
        Err(error) => assert_wire(&error),
        Ok(spec) => assert_sayable(&spec),
    }
    match holders(&words) {
        Err(error) => assert_wire(&error),
        Ok(holders) => assert_eq!(holders, words[2..]),
    }
}

/// Asserts that RL.ACQUIRE reads the numbers and options of its algorithm, with BLOCK and FENCE among them, and that a
/// waiter's retry makes the same request.
fn assert_acquired(words: &Vec<&[u8]>) {
    let (mut blocks, mut fenced) = (Block::No, false);
    let acquired = parse(words, |args| {
        let mut behind = SpecOptions::default();
        let (numbers, AcquireOptions { block, fence }) = Spec::acquire(args, &mut behind)?;
        (blocks, fenced) = (block, fence);
        KeyRequest::build_single_with_options(args, &numbers, &behind)
    });
    assert_refused_or_sayable(&acquired);
    if let Ok(acquired) = &acquired {
        let [spec] = (match acquired {
            KeyRequest::One(spec) => std::slice::from_ref(spec),
            KeyRequest::Composite(call) => &call.specs,
            KeyRequest::Policy(by) => panic!("{by:?}"),
        }) else {
            panic!("{acquired:?}: more than one lease")
        };
        let claim = Claim::of(spec).expect("a lease");
        let again = claim.request(spec.limit.raised_by(spec.keep).limit(), false);
        let said = |request: &KeyRequest| format!("{request:?}").replace("own_cost: true", "own_cost: false");
        assert_eq!(said(&again), said(acquired));
    }
    let has = |option: &[u8]| words.iter().any(|word| word.eq_ignore_ascii_case(option));
    if !has(b"BLOCK") && !has(b"FENCE") {
        assert_eq!((blocks, fenced), (Block::No, false));
        let same = parse(words, |args| one_algorithm(args, Spec::concurrency));
        match (acquired, same) {
            (Ok(acquired), Ok(same)) => assert_eq!(format!("{acquired:?}"), format!("{same:?}")),
            (Err(acquired), Err(same)) => assert_eq!(discriminant(&acquired), discriminant(&same)),
            (acquired, same) => panic!("{acquired:?} or {same:?}"),
        }
    }
}

fn is_algorithm(word: &[u8]) -> bool {
    Spec::ALGORITHMS.iter().any(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()))
}

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

/// Parses `name key ...`, as the commands of one key do.
fn parse<'a>(
    words: &'a Vec<&'a [u8]>,
    read: impl FnOnce(&mut Args<'a>) -> Result<KeyRequest<'a>, Error>,
) -> Result<KeyRequest<'a>, Error> {
    let mut args = Args::new(words);
    args.key()?;
    let request = read(&mut args)?;
    args.end().map(|()| request)
}

/// Parses the arguments of a command for one algorithm.
fn one_algorithm<'a>(args: &mut Args<'a>, read: LimitParser<'a>) -> Result<KeyRequest<'a>, Error> {
    let mut options = SpecOptions::default();
    let parsed = read(args, &mut options)?;
    KeyRequest::build_single_with_options(args, &parsed, &options)
}

/// `RL.MTAKE numkeys key [key ...] [options] spec [spec ...]`
fn on_keys<'a>(words: &'a Vec<&'a [u8]>) -> Result<ManyKeysRequest<'a>, Error> {
    let mut args = Args::new(words);
    let mut call = ManyKeysRequest::default();
    call.take(&mut args, None)?;
    args.end().map(|()| call)
}

/// `RL.THROTTLE key max_burst count period [quantity]`
fn throttle<'a>(words: &'a Vec<&'a [u8]>) -> Result<Spec<'a>, Error> {
    let mut args = Args::new(words);
    args.key()?;
    let (bucket, request) = syntax::throttle(&mut args)?;
    Ok(Spec::of(AnyLimit::Bucket(bucket), request))
}

/// `RL.RELEASE key holder [holder ...]`
fn holders<'a>(words: &'a Vec<&'a [u8]>) -> Result<Vec<&'a [u8]>, Error> {
    let mut args = Args::new(words);
    args.key()?;
    syntax::holders(&mut args)
}

/// Asserts that a request was rejected with one line, or that it decides calls and means the same when its values are
/// written as words and parsed again.
fn assert_refused_or_sayable(read: &Result<KeyRequest, Error>) {
    let call = match read {
        Err(error) => return assert_wire(error),
        Ok(KeyRequest::One(spec)) => return assert_sayable(spec),
        Ok(KeyRequest::Composite(call)) => call,
        Ok(KeyRequest::Policy(by)) => return policies::assert_valid_request(by),
    };
    assert!((1..=MAX_SPECS).contains(&call.specs.len()));
    assert_idempotency(&call.idempotency, call.purpose);
    for (place, spec) in call.specs.iter().enumerate() {
        assert_sayable(spec);
        assert!(call.specs.len() == 1 || !matches!(spec.request, Request::UpTo(_)) || !spec.own_cost);
        assert!(spec.name.is_none_or(|name| (1..=MAX_SPEC_NAME).contains(&name.len()) && name.is_ascii()));
        for other in &call.specs[..place] {
            let known = |spec: &Spec| (spec.limit.kind(), spec.name.map(<[u8]>::to_vec));
            let unnamed_apart = spec.name.is_none() && spec.limit.identity() != other.limit.identity();
            assert!(known(spec) != known(other) || unnamed_apart, "both find one component");
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

fn assert_sayable(spec: &Spec) {
    // A policy's lease that no id holds is only peeked at. As words, it needs a holder.
    let unheld = spec.is_held_by_id() && spec.holder_or_item.is_empty();
    let spec = &if unheld { Spec { holder_or_item: b"holder", ..*spec } } else { *spec };
    let said = said(spec);
    let words: Vec<&[u8]> = [&b"RL.TAKE"[..], b"key"].into_iter().chain(said.iter().map(Vec::as_slice)).collect();
    match parse(&words, |args| KeyRequest::take(args, None)) {
        Ok(KeyRequest::One(again)) => assert_eq!(meaning(&again), meaning(spec), "{said:?}"),
        other => panic!("{other:?} of {said:?}"),
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

/// Returns the parts of a spec that decide a call, as text. The numbers of a limit are private, but displayed. A step
/// that was computed beforehand changes no decision.
fn meaning(spec: &Spec) -> String {
    let limit = match spec.limit {
        // The whole capacity, which it also keeps, decides nothing.
        AnyLimit::Sketch(_) => spec.limit.to_string(),
        limit => format!("{:?}", limit.prepared()),
    };
    let request = match spec.request {
        // Only a policy can request it. It decides like FORCE and returns the granted amount.
        Request::ForceUpTo(cost) => Request::Force(cost),
        request => request,
    };
    format!("{limit} {request:?} {:?} {}", spec.holder_or_item, spec.nx)
}

/// Returns the words of a peek that keeps more than its limit, which lowers the limit to nothing.
fn past_limit(spec: &Spec) -> Vec<Vec<u8>> {
    if spec.request == Request::PeekPastLimit { vec![b"KEEP".to_vec(), b"1".to_vec()] } else { Vec::new() }
}

/// Returns the words of a spec, from its values. Its limit is already lowered by the kept amount.
fn said(spec: &Spec) -> Vec<Vec<u8>> {
    let limit = spec.limit.to_string();
    let mut words: Vec<Vec<u8>> = limit.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    if let AnyLimit::Sketch(_) = spec.limit {
        // Behind its numbers, and before its size.
        words.insert(4, spec.holder_or_item.to_vec());
    }
    if let AnyLimit::Concurrency(_) = spec.limit {
        words.push(spec.holder_or_item.to_vec());
        words.extend(spec.nx.then(|| b"NX".to_vec()));
        if spec.request.is_peek() {
            words.extend(past_limit(spec));
            // A lease of nothing is none: only a call as a whole can look at it.
            return [b"COST".to_vec(), b"0".to_vec()].into_iter().chain(words).collect();
        }
    }
    let options = match spec.request {
        Request::Take(cost) => vec!["COST".into(), cost.to_string()],
        Request::UpTo(cost) => vec!["COST".into(), cost.to_string(), "UPTO".into()],
        Request::Force(cost) | Request::ForceUpTo(cost) => vec!["FORCE".into(), "COST".into(), cost.to_string()],
        Request::Within(cost, patience) => {
            vec!["MAXWAIT".into(), patience.to_string(), "COST".into(), cost.to_string()]
        }
        // -0 is not a refund, but an amount that is rounded down to zero is.
        Request::Refund(Amount::ZERO) => vec!["COST".into(), "-0.0000001".into()],
        Request::Refund(amount) => vec!["COST".into(), format!("-{amount}")],
        Request::PeekPastLimit => vec!["COST".into(), "0".into()],
    };
    words.extend(past_limit(spec));
    words.extend(options.into_iter().map(String::into_bytes));
    words
}
