//! The words of a call, as every command reads them: refused in one line, or a limit that can be said again.
//!
//! The input is a call as one would type it. Words end at a space; a backslash takes the byte behind it as it is, so
//! that a word can hold any bytes. Every command reads the same words, whatever the first one says.

use ratelimit_core::args::{Args, KeyName};
use ratelimit_core::error::Error;
use crate::laws::{assert_lawful, assert_wire};
use ratelimit_core::{Amount, Ask, Limit, Timestamp};
use ratelimit_core::spec::{self, AnyLimit, Part, Reader, Spec};
use ratelimit_core::with_limit;

pub fn run(data: &[u8]) {
    let words = words(data);
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    for (name, read) in Spec::ALGORITHMS {
        let own = one(&words, read);
        assert_refused_or_sayable(&own);
        // RL.FIXED k ... is RL.TAKE k FIXED ...
        if words.len() > 1 {
            let mut generic = words.clone();
            generic.insert(2, name.as_bytes());
            assert_eq!(meaning(&one(&generic, Spec::any)), meaning(&own));
        }
    }
    let generic = one(&words, Spec::any);
    assert_refused_or_sayable(&generic);
    if generic.is_ok() {
        // Up to anywhere, it is a call too or has too few words.
        for length in 1..words.len() {
            let words = words[..length].to_vec();
            let cut = one(&words, Spec::any);
            assert!(matches!(cut, Ok(_) | Err(Error::WrongArity)), "{cut:?}");
        }
    }
    match several(&words) {
        Err(error) => assert_wire(&error),
        Ok(calls) => {
            assert!(!calls.is_empty() && calls.len() < words.len());
            for (KeyName(place), spec) in calls {
                assert!((2..words.len()).contains(&place), "a key is one of the words behind numkeys");
                assert!(!matches!(spec.ask, Ask::UpTo(_)));
                assert_refused_or_sayable(&Ok(spec));
            }
        }
    }
    assert_refused_or_sayable(&throttle(&words));
    match holders(&words) {
        Err(error) => assert_wire(&error),
        Ok(holders) => assert_eq!(holders, words[2..]),
    }
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

/// `name key spec`, as the commands of one key read it.
fn one<'a>(words: &'a Vec<&'a [u8]>, read: Reader<'a>) -> Result<Spec<'a>, Error> {
    let mut args = Args::new(words);
    args.key()?;
    let spec = read(&mut args)?;
    args.end()?;
    Ok(spec)
}

/// `RL.MTAKE numkeys key [key ...] spec [spec ...]`
fn several<'a>(words: &'a Vec<&'a [u8]>) -> Result<Vec<Part<'a>>, Error> {
    let mut args = Args::new(words);
    let parts = spec::several(&mut args)?;
    args.end()?;
    Ok(parts)
}

/// `RL.THROTTLE key max_burst count period [quantity]`
fn throttle<'a>(words: &'a Vec<&'a [u8]>) -> Result<Spec<'a>, Error> {
    let mut args = Args::new(words);
    args.key()?;
    let (bucket, ask) = spec::throttle(&mut args)?;
    Ok(Spec { limit: AnyLimit::Bucket(bucket), ask, holder: &[] })
}

/// `RL.RELEASE key holder [holder ...]`
fn holders<'a>(words: &'a Vec<&'a [u8]>) -> Result<Vec<&'a [u8]>, Error> {
    let mut args = Args::new(words);
    args.key()?;
    spec::holders(&mut args)
}

/// What was read is refused in one line, or decides calls, and means the same when it is said by its own numbers.
fn assert_refused_or_sayable(read: &Result<Spec, Error>) {
    let spec = match read {
        Ok(spec) => spec,
        Err(error) => return assert_wire(error),
    };
    let said = said(spec);
    let words: Vec<&[u8]> = [&b"RL.TAKE"[..], b"key"].into_iter().chain(said.iter().map(Vec::as_slice)).collect();
    let again = one(&words, Spec::any);
    assert_eq!(meaning(&again), meaning(read), "{said:?}");
    with_limit!(spec, limit => {
        for now in [Timestamp::EPOCH, Timestamp::from_clock(1_700_000_000_000_000), Timestamp::MAX] {
            assert_lawful(limit, &mut unused(limit), now, spec.ask);
        }
    });
}

fn unused<L: Limit>(_: &L) -> L::Usage {
    L::Usage::default()
}

/// A limit keeps its numbers to itself, but shows them to people.
fn meaning(read: &Result<Spec, Error>) -> String {
    format!("{read:?}")
}

/// The spec in words, by what it holds.
fn said(spec: &Spec) -> Vec<Vec<u8>> {
    let limit = spec.limit.to_string();
    let mut words: Vec<Vec<u8>> = limit.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    if let AnyLimit::Concurrency(_) = spec.limit {
        words.push(spec.holder.to_vec());
    }
    let options = match spec.ask {
        Ask::Take(cost) => vec!["COST".into(), cost.to_string()],
        Ask::UpTo(cost) => vec!["COST".into(), cost.to_string(), "UPTO".into()],
        Ask::Force(cost) => vec!["FORCE".into(), "COST".into(), cost.to_string()],
        Ask::Within(cost, patience) => {
            vec!["MAXWAIT".into(), patience.to_string(), "COST".into(), cost.to_string()]
        }
        // -0 gives nothing back and is no give-back either; what is rounded down to nothing is one.
        Ask::GiveBack(Amount::ZERO) => vec!["COST".into(), "-0.0000001".into()],
        Ask::GiveBack(amount) => vec!["COST".into(), format!("-{amount}")],
    };
    words.extend(options.into_iter().map(String::into_bytes));
    words
}
