//! Random calls on one key, as text: what `Asked` reads, nothing that no client could say.

use crate::calls::{self, When, scripts};
use crate::spec::Asked;
use crate::{Timestamp, args::Args};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use std::fmt;

/// One command of a script.
#[derive(Clone)]
pub struct Step {
    pub when: When,
    pub command: Command,
    /// The server has removed the key if it may by now.
    pub key_may_expire: bool,
    /// How the effect of it is mutated: at which field, and to what.
    pub mutations: Vec<(Index, u64)>,
}

impl fmt::Debug for Step {
    /// In one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { when, command, key_may_expire, mutations } = self;
        let gone = if *key_may_expire { ", perhaps gone" } else { "" };
        write!(f, "{when:?}{gone}: {command:?}, {} mutations", mutations.len())
    }
}

#[derive(Clone, Debug)]
pub enum Command {
    Take(String),
    Peek(String),
    Release(String),
    Ban(u64),
}

/// Whether there are calls with ids, and bans.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    ids: bool,
    bans: bool,
}

pub const ALL: Terms = Terms { ids: true, bans: true };
pub const PLAIN: Terms = Terms { ids: false, bans: false };

/// A moment to begin at, and commands.
pub fn histories(terms: Terms) -> impl Strategy<Value = (Timestamp, Vec<Step>)> {
    let pool = vec(limits(), 1..=6);
    let said = pool.prop_flat_map(move |pool| vec(commands(pool, terms), 20));
    let mutations = vec(vec((any::<Index>(), values()), 3), 20);
    (scripts(), said, mutations).prop_map(move |((begin, calls), said, mutations)| {
        let steps = calls.into_iter().zip(said).zip(mutations).map(|((call, command), mutations)| {
            let calls::Call { when, key_may_expire, .. } = call;
            Step { when, command, key_may_expire, mutations }
        });
        (begin, steps.collect())
    })
}

/// Numbers that a field of an effect may be, or may not.
fn values() -> impl Strategy<Value = u64> {
    prop_oneof![0..=8u64, Just(u64::MAX), Just(1_700_000_000_000_000), any::<u64>()]
}

/// An amount, everyday or extreme.
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

/// An algorithm and its numbers.
fn limits() -> impl Strategy<Value = String> + Clone {
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

fn commands(pool: Vec<String>, terms: Terms) -> impl Strategy<Value = Command> {
    let call = calls(pool, terms);
    prop_oneof![
        20 => call.clone().prop_map(Command::Take),
        2 => call.prop_map(|call| Command::Peek(if call.contains("SETTLE") { "FIXED 1 1s".into() } else { call })),
        1 => (0..3u32).prop_map(|holder| Command::Release(format!("h{holder}"))),
        u32::from(terms.bans) => prop_oneof![Just(0), 1..=5_000_000u64].prop_map(Command::Ban),
    ]
}

/// Calls that are read: of others nothing is to be said here.
fn calls(pool: Vec<String>, terms: Terms) -> impl Strategy<Value = String> + Clone {
    let most = pool.len().min(4);
    let specs = subsequence(pool, 1..=most).prop_shuffle();
    let cost = select(vec!["0", "1", "1", "2", "3", "0.5", "7", "1e12"]);
    let id =
        (0..4u32, select(vec!["1us", "1s", "5s", "1m", "3650d"])).prop_map(|(id, ttl)| format!("ONCE r{id} {ttl}"));
    let settled = (0..4u32, select(vec!["0", "0.5", "1", "2", "4", "1e12"]));
    let charges = prop_oneof![
        4 => Just(String::new()),
        4 => cost.clone().prop_map(|cost| format!("COST {cost}")),
        1 => cost.clone().prop_map(|cost| format!("COST {cost} FORCE")),
        1 => select(vec!["1", "3", "9"]).prop_map(|cost| format!("COST {cost} UPTO")),
        1 => (cost, lengths()).prop_map(|(cost, patience)| format!("COST {cost} MAXWAIT {patience}")),
    ];
    let keep = prop_oneof![8 => Just(""), 1 => select(vec!["KEEP 1", "KEEP 50%", "KEEP 100%", "KEEP 0.000001"])];
    let keep = keep.prop_map(str::to_owned);
    let once = prop_oneof![1 => Just(String::new()), u32::from(terms.ids) * 2 => id];
    let asks = prop_oneof![
        8 => (charges, keep, once).prop_map(|(charges, keep, once)| format!("{charges} {keep} {once}")),
        1 => select(vec!["0.5", "1", "2", "1e12"]).prop_map(|amount| format!("COST -{amount}")),
        u32::from(terms.ids) * 3 => settled.prop_map(|(id, amount)| format!("SETTLE r{id} {amount}")),
    ];
    let own = vec(
        (
            prop_oneof![3 => Just(""), 1 => select(vec!["AS a", "AS b"])],
            prop_oneof![5 => Just(""), 1 => select(vec!["COST 0", "COST 1", "COST 2"])],
            prop_oneof![9 => Just(""), 1 => select(vec!["KEEP 1", "KEEP 50%", "NX"])],
        ),
        4,
    );
    let ban = prop_oneof![
        4 => Just(""),
        u32::from(terms.bans) => select(vec!["BAN 1 1m 2s", "BAN 2 3s 1m", "BAN 3 1h 1us"]),
    ];
    let said = (asks, specs, own, ban).prop_map(|(asks, specs, own, ban)| {
        let specs = specs.iter().zip(own).map(|(spec, (name, cost, keep))| format!("{spec} {name} {cost} {keep}"));
        let text = format!("{asks} {} {ban}", specs.collect::<Vec<_>>().join(" "));
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    });
    said.prop_filter("a call that is read", |text| {
        let words = words(text);
        Asked::take(&mut Args::new(&words)).is_ok()
    })
}

/// The words of a call.
pub fn words(text: &str) -> Vec<&[u8]> {
    std::iter::once("RL.TAKE").chain(text.split(' ')).map(str::as_bytes).collect()
}
