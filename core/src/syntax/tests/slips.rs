//! Common mistakes of users with the exact error messages. The file slips.txt is also sent to a server by
//! `tests/test_slips.py`.

use crate::policy::{Condition, DeletionRequest, Scaling};
use crate::syntax::top_query::Query;
use crate::syntax::{
    KeyRequest, Policy, PolicyRequest, Spec, SpecOptions, ban_duration, holders, name_of_policy, throttle,
};
use crate::testing::calls::{parse_one_algorithm, peek_keys, take_keys};
use crate::wire::args::Args;
use crate::wire::error::Error;

/// Parses a call as its command does.
fn parse_call(args: &mut Args<'static>, command: &str) -> Result<(), Error> {
    match command {
        "RL.MTAKE" => return take_keys(args).map(|_| ()),
        "RL.MPEEK" => return peek_keys(args).map(|_| ()),
        "RL.TOP" => return Query::parse(args).map(|_| ()),
        "RL.POLICYSET" => {
            name_of_policy(args)?;
            Condition::parse(args)?;
            return Policy::parse(args).map(|_| ());
        }
        "RL.POLICYSCALE" => {
            name_of_policy(args)?;
            return Scaling::parse(args).map(|_| ());
        }
        "RL.POLICYDEL" => return DeletionRequest::parse(args).map(|_| ()),
        _ => {}
    }
    args.key()?;
    match command {
        "RL.TAKE" => KeyRequest::take(args, None).map(|_| ()),
        "RL.PEEK" => KeyRequest::peek(args, None).map(|_| ()),
        "RL.SKETCH" => parse_one_algorithm(args, Spec::sketch_of_item).map(|_| ()),
        "RL.THROTTLE" => throttle(args).map(|_| ()),
        "RL.BAN" => ban_duration(args).map(|_| ()),
        "RL.RELEASE" => holders(args).map(|_| ()),
        "RL.LIMIT" | "RL.DELAY" => {
            let name = name_of_policy(args)?;
            PolicyRequest::after_first_name(name, args).map(|_| ())
        }
        "RL.ACQUIRE" => {
            let mut options = SpecOptions::default();
            let (parsed, _) = Spec::acquire(args, &mut options)?;
            KeyRequest::build_single_with_options(args, &parsed, &options).map(|_| ())
        }
        command => {
            let algorithm = command.strip_prefix("RL.").unwrap();
            parse_one_algorithm(args, Spec::limit_parser(algorithm.as_bytes()).unwrap()).map(|_| ())
        }
    }
}

#[test]
fn common_mistakes_get_the_expected_errors() {
    let mut lines = include_str!("../slips.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut count = 0;
    while let Some(call) = lines.next() {
        let call = call
            .strip_prefix("> ")
            .unwrap_or_else(|| unreachable!("a line without '>' where a call is needed: {call}"));
        let expected = lines.next().unwrap();
        let words: &'static Vec<&[u8]> = Box::leak(Box::new(call.split(' ').map(str::as_bytes).collect()));
        let refused = parse_call(&mut Args::new(words), call.split(' ').next().unwrap()).unwrap_err();
        assert_eq!(refused.to_string(), expected, "{call}");
        count += 1;
    }
    assert!(count >= 100, "slips.txt has only {count} calls");
}
