//! Slips that people make, and the exact answers: slips.txt, which `tests/test_slips.py` sends to a server too.

use crate::policy::{Condition, DeletionRequest, Scaling};
use crate::syntax::top_query::Query;
use crate::syntax::{
    ByPolicy, KeyRequest, ManyKeysRequest, Policy, Spec, SpecOptions, block, holders, name_of_policy, throttle,
};
use crate::wire::args::Args;
use crate::wire::error::Error;

/// Reads a call as its command does, up to where it asks the server.
fn read(args: &mut Args<'static>, command: &str) -> Result<(), Error> {
    match command {
        "RL.MTAKE" => return ManyKeysRequest::take(args).map(|_| ()),
        "RL.MPEEK" => return ManyKeysRequest::peek(args).map(|_| ()),
        "RL.TOP" => return Query::read(args).map(|_| ()),
        "RL.POLICYSET" => {
            name_of_policy(args)?;
            Condition::read(args)?;
            return Policy::read(args).map(|_| ());
        }
        "RL.POLICYSCALE" => {
            name_of_policy(args)?;
            return Scaling::read(args).map(|_| ());
        }
        "RL.POLICYDEL" => return DeletionRequest::read(args).map(|_| ()),
        _ => {}
    }
    args.key()?;
    match command {
        "RL.TAKE" => KeyRequest::take(args).map(|_| ()),
        "RL.PEEK" => KeyRequest::peek(args).map(|_| ()),
        "RL.SKETCH" => KeyRequest::one(args, Spec::sketch_of_item).map(|_| ()),
        "RL.THROTTLE" => throttle(args).map(|_| ()),
        "RL.BAN" => block(args).map(|_| ()),
        "RL.RELEASE" => holders(args).map(|_| ()),
        "RL.LIMIT" | "RL.DELAY" => {
            let name = name_of_policy(args)?;
            ByPolicy::after_first_name(name, args).map(|_| ())
        }
        "RL.ACQUIRE" => {
            let mut behind = SpecOptions::default();
            let (numbers, _) = Spec::acquire(args, &mut behind)?;
            KeyRequest::alone(args, &numbers, &behind).map(|_| ())
        }
        own => {
            let algorithm = own.strip_prefix("RL.").unwrap();
            KeyRequest::one(args, Spec::reader(algorithm.as_bytes()).unwrap()).map(|_| ())
        }
    }
}

#[test]
fn slips_that_people_make_are_answered_with_what_helps() {
    let mut lines = include_str!("../slips.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut count = 0;
    while let Some(call) = lines.next() {
        let call = call.strip_prefix("> ").unwrap_or_else(|| unreachable!("no call: {call}"));
        let answer = lines.next().unwrap();
        let words: &'static Vec<&[u8]> = Box::leak(Box::new(call.split(' ').map(str::as_bytes).collect()));
        let refused = read(&mut Args::new(words), call.split(' ').next().unwrap()).unwrap_err();
        assert_eq!(refused.to_string(), answer, "{call}");
        count += 1;
    }
    assert!(count >= 100, "{count}");
}
