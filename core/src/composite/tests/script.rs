//! Random calls on one key, as text that `KeyRequest` accepts.

use crate::number::{Amount, Timestamp};
use crate::syntax::{KeyRequest, Policy};
use crate::testing::calls;
use crate::testing::calls::{When, scripts};
use crate::wire::args::Args;
use crate::wire::error::Error;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use std::fmt;

/// Command of a script.
#[derive(Clone)]
pub struct Step {
    pub when: When,
    pub command: Command,
    /// `true`: the server removes the key before the command if it has expired.
    pub key_may_expire: bool,
    /// Mutations of the effect: the index of a field and its new value.
    pub mutations: Vec<(Index, u64)>,
}

impl fmt::Debug for Step {
    /// Formats the step in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { when, command, key_may_expire, mutations } = self;
        let expires = if *key_may_expire { ", key may expire" } else { "" };
        write!(f, "{when:?}{expires}: {command:?}, {} mutations", mutations.len())
    }
}

#[derive(Clone, Debug)]
pub enum Command {
    Take(CallText),
    Peek(CallText),
    Release(String),
    Ban(u64),
}

/// Text of a call: the words after RL.TAKE and the key, and for a call by a policy the words and the scale of the
/// policy.
#[derive(Clone, Debug)]
pub struct CallText {
    pub text: String,
    pub policy: Option<(String, &'static str)>,
}

impl CallText {
    pub fn inline(text: &str) -> CallText {
        CallText { text: text.to_owned(), policy: None }
    }

    /// Creates a call by a policy, scaled by a factor.
    pub fn by_policy(options: &str, policy: &str, factor: &'static str) -> CallText {
        CallText {
            text: format!("{options} POLICY p").trim_start().to_owned(),
            policy: Some((policy.to_owned(), factor)),
        }
    }

    /// Parses the call and passes the request to `run`. Fails only for a call without an id if the policy has leases.
    pub fn with_request<T>(&self, peeks: bool, run: impl FnOnce(&KeyRequest) -> T) -> Result<T, Error> {
        let words = words(&self.text);
        let args = &mut Args::new(&words);
        let request = if peeks { KeyRequest::peek(args, None) } else { KeyRequest::take(args, None) }.unwrap();
        let KeyRequest::Policy(by) = request else { return Ok(run(&request)) };
        let (text, factor) = self.policy.as_ref().unwrap();
        let policy = policy(text).unwrap().scaled(Amount::parse_down(factor.as_bytes()).unwrap());
        by.request(&policy).map(|request| run(&request))
    }

    /// Returns `true` if the call or its policy contains the word.
    pub fn has(&self, word: &str) -> bool {
        self.text.contains(word) || self.policy.as_ref().is_some_and(|(text, _)| text.contains(word))
    }
}

/// Parses a policy.
pub fn policy(text: &str) -> Result<Policy, Error> {
    Policy::parse(&mut Args::new(&words(text)))
}

/// Features that scripts use.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// `true`: some calls have ids.
    ids: bool,
    /// `true`: some calls ban or have BAN.
    bans: bool,
}

pub const ALL: Features = Features { ids: true, bans: true };
pub const PLAIN: Features = Features { ids: false, bans: false };

/// Generates a start time and commands.
pub fn histories(features: Features) -> impl Strategy<Value = (Timestamp, Vec<Step>)> {
    let pool = vec(limits(), 1..=6);
    let call_text = pool.prop_flat_map(move |pool| {
        vec(policies(pool.clone(), features), 1..=3)
            .prop_flat_map(move |policies| vec(commands(&pool, policies, features), 20))
    });
    let mutations = vec(vec((any::<Index>(), values()), 3), 20);
    (scripts(), call_text, mutations).prop_map(move |((begin, calls), call_text, mutations)| {
        let steps = calls.into_iter().zip(call_text).zip(mutations).map(|((call, command), mutations)| {
            let calls::Call { when, key_may_expire, .. } = call;
            Step { when, command, key_may_expire, mutations }
        });
        (begin, steps.collect())
    })
}

/// Generates valid and invalid values of a field of an effect.
fn values() -> impl Strategy<Value = u64> {
    prop_oneof![0..=8u64, Just(u64::MAX), Just(1_700_000_000_000_000), any::<u64>()]
}

/// Generates an amount, common or extreme.
fn amounts() -> impl Strategy<Value = &'static str> + Clone {
    prop_oneof![
        8 => select(vec!["1", "2", "3", "5"]),
        1 => select(vec!["0.5", "0.000001", "1000", "1e12"]),
    ]
}

fn lengths() -> impl Strategy<Value = &'static str> + Clone {
    prop_oneof![
        8 => select(vec!["1s", "3s", "1m"]),
        1 => select(vec!["1us", "7us", "1h", "3650d"]),
    ]
}

/// Generates an algorithm with its arguments.
pub fn limits() -> impl Strategy<Value = String> + Clone {
    let windows = (prop_oneof![8 => amounts().boxed(), 1 => Just("0").boxed()], lengths());
    let calendar = select(vec!["1w", "1mo", "3mo", "1y", "1mo OFFSET +09:00", "1mo ANCHOR 31"]);
    prop_oneof![
        3 => (amounts(), lengths()).prop_map(|(amount, length)| format!("TOKENBUCKET {amount} {amount} {length}")),
        1 => (amounts(), lengths()).prop_map(|(amount, length)| format!("LEAKYBUCKET {amount} {amount} {length}")),
        2 => windows.clone().prop_map(|(limit, window)| format!("FIXED {limit} {window}")),
        1 => windows.clone().prop_map(|(limit, window)| format!("FIXED {limit} {window} ALIGNED")),
        1 => (amounts(), calendar).prop_map(|(limit, window)| {
            let (window, options) = window.split_once(' ').unwrap_or((window, ""));
            format!("FIXED {limit} {window} ALIGNED {options}").trim_end().to_owned()
        }),
        2 => windows.clone().prop_map(|(limit, window)| format!("SLIDING {limit} {window}")),
        2 => windows.clone().prop_map(|(limit, window)| format!("SLIDING {limit} {window} STRICT")),
        2 => windows.clone().prop_map(|(limit, window)| format!("SLIDINGLOG {limit} {window}")),
        2 => (windows, 0..3u32).prop_map(|((limit, ttl), holder)| format!("CONCURRENCY {limit} {ttl} h{holder}")),
    ]
}

fn commands(pool: &[String], policies: Vec<String>, features: Features) -> impl Strategy<Value = Command> + use<> {
    let call = prop_oneof![
        1 => inline_calls(pool.to_vec(), features).prop_map(|text| CallText { text, policy: None }).boxed(),
        1 => calls_by_policy(policies, features).boxed(),
    ];
    prop_oneof![
        20 => call.clone().prop_map(Command::Take),
        2 => call.prop_map(|call_text| Command::Peek(if call_text.has("SETTLE") { CallText::inline("FIXED 1 1s") } else { call_text })),
        1 => (0..3u32).prop_map(|holder| Command::Release(format!("h{holder}"))),
        1 => (0..4u32).prop_map(|id| Command::Release(format!("r{id}"))),
        u32::from(features.bans) => prop_oneof![Just(0), 1..=5_000_000u64].prop_map(Command::Ban),
    ]
}

/// Generates a call by one of these policies.
fn calls_by_policy(policies: Vec<String>, features: Features) -> impl Strategy<Value = CallText> + Clone {
    let factor = prop_oneof![
        6 => Just("1"),
        4 => select(vec!["0", "0.5", "2", "10"]),
        1 => select(vec!["0.000001", "0.333333", "1000"]),
    ];
    let each = prop_oneof![3 => Just(""), 1 => Just("EACH")];
    let call_text = (call_options(features), each, select(policies), factor);
    call_text.prop_map(|(options, each, policy, factor)| {
        CallText::by_policy(&in_one_line(&format!("{options} {each}")), &policy, factor)
    })
}

/// Generates a policy with some of these limits.
fn policies(pool: Vec<String>, features: Features) -> impl Strategy<Value = String> {
    let max_specs = pool.len().min(4);
    let specs = subsequence(pool, 1..=max_specs).prop_shuffle();
    let spec_options = vec(
        (
            prop_oneof![3 => Just(""), 1 => select(vec!["AS a", "AS b"])],
            prop_oneof![6 => Just(""), 1 => select(vec!["COST 0", "COST 1", "COST 2"])],
            prop_oneof![4 => Just(""), 2 => Just("SHADOW"), 2 => Just("FORCE")],
        ),
        4,
    );
    let policy_text = (specs, spec_options, bans(features)).prop_map(|(specs, spec_options, ban)| {
        let specs = specs.iter().zip(spec_options).map(|(spec, (name, cost, mode))| {
            // The lease of a policy is held by the id of the call.
            let (spec, cost, mode) = match spec.split_once(" h") {
                Some((lease, _)) => (lease, cost.replace("COST 0", ""), mode.replace("FORCE", "")),
                None => (spec.as_str(), cost.to_owned(), mode.to_owned()),
            };
            format!("{spec} {name} {cost} {mode}")
        });
        in_one_line(&format!("{} {ban}", specs.collect::<Vec<_>>().join(" ")))
    });
    policy_text.prop_filter("valid policy", |text| policy(text).is_ok())
}

fn bans(features: Features) -> impl Strategy<Value = &'static str> + Clone {
    prop_oneof![
        4 => Just(""),
        u32::from(features.bans) => select(vec!["BAN 1 1m 2s", "BAN 2 3s 1m", "BAN 3 1h 1us", "BAN 1 1m 1s MAX 3s", "BAN 2 3s 1us MAX 1m"]),
    ]
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Generates the options that apply to all limits of a call.
fn call_options(features: Features) -> impl Strategy<Value = String> + Clone {
    let cost = select(vec!["0", "1", "1", "2", "3", "0.5", "7", "1e12"]);
    let id =
        (0..4u32, select(vec!["1us", "1s", "5s", "1m", "3650d"])).prop_map(|(id, ttl)| format!("ONCE r{id} {ttl}"));
    let settled = (0..4u32, select(vec!["0", "0.5", "1", "2", "4", "1e12"]));
    let charges = prop_oneof![
        4 => Just(String::new()),
        4 => cost.clone().prop_map(|cost| format!("COST {cost}")),
        1 => cost.clone().prop_map(|cost| format!("COST {cost} FORCE")),
        1 => select(vec!["1", "3", "9"]).prop_map(|cost| format!("COST {cost} UPTO")),
        1 => (cost, lengths()).prop_map(|(cost, timeout)| format!("COST {cost} MAXWAIT {timeout}")),
    ];
    let keep = prop_oneof![8 => Just(""), 1 => select(vec!["KEEP 1", "KEEP 50%", "KEEP 100%", "KEEP 0.000001"])];
    let keep = keep.prop_map(str::to_owned);
    let once = prop_oneof![1 => Just(String::new()), u32::from(features.ids) * 2 => id];
    let options = prop_oneof![
        8 => (charges, keep, once).prop_map(|(charges, keep, once)| format!("{charges} {keep} {once}")),
        1 => select(vec!["0.5", "1", "2", "1e12"]).prop_map(|amount| format!("COST -{amount}")),
        u32::from(features.ids) * 3 => settled.prop_map(|(id, amount)| format!("SETTLE r{id} {amount}")),
    ];
    options.prop_filter("compatible options", |options| {
        let call_text = in_one_line(&format!("{options} POLICY p"));
        KeyRequest::take(&mut Args::new(&words(&call_text)), None).is_ok()
    })
}

/// Generates valid calls with inline limits.
fn inline_calls(pool: Vec<String>, features: Features) -> impl Strategy<Value = String> + Clone {
    let max_specs = pool.len().min(4);
    let specs = subsequence(pool, 1..=max_specs).prop_shuffle();
    let spec_options = vec(
        (
            prop_oneof![3 => Just(""), 1 => select(vec!["AS a", "AS b"])],
            prop_oneof![5 => Just(""), 1 => select(vec!["COST 0", "COST 1", "COST 2"])],
            prop_oneof![7 => Just(""), 1 => select(vec!["FORCE", "MAXWAIT 1s"])],
            prop_oneof![9 => Just(""), 1 => select(vec!["KEEP 1", "KEEP 50%", "NX"])],
        ),
        4,
    );
    let call_text = (call_options(features), specs, spec_options, bans(features));
    let call_text = call_text.prop_map(|(options, specs, spec_options, ban)| {
        let specs = specs.iter().zip(spec_options);
        let specs = specs.map(|(spec, (name, cost, mode, keep))| format!("{spec} {name} {cost} {mode} {keep}"));
        in_one_line(&format!("{options} {} {ban}", specs.collect::<Vec<_>>().join(" ")))
    });
    call_text.prop_filter("valid call", |text| {
        let words = words(text);
        KeyRequest::take(&mut Args::new(&words), None).is_ok()
    })
}

/// Returns the words of a call, with the command name.
pub fn words(text: &str) -> Vec<&[u8]> {
    std::iter::once("RL.TAKE").chain(text.split(' ')).map(str::as_bytes).collect()
}
