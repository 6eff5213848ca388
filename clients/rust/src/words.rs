//! Words of calls: the charge, its cost, and its idempotency key.

use std::borrow::Cow;

use redis::Cmd;
use uuid::Uuid;

use crate::error::Error;
use crate::limits::{Amount, Limit, Time};
use crate::options::Take;

/// Builds the command of redis-rs with these words.
pub(crate) fn command(words: &[String]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}

/// Idempotency key, with its lifetime on the server.
pub(crate) struct Id {
    pub(crate) name: String,
    pub(crate) ttl: Time,
}

impl Id {
    pub(crate) fn new(ttl: Time) -> Self {
        Self { name: Uuid::new_v4().simple().to_string(), ttl }
    }
}

/// Error text for operations that a sketch does not support.
const MERGED: &str =
    "a sketch cannot tell apart again what it has merged: no item is settled, given back, reset or charged once";

/// Returns a random number from 0 to 1.
pub(crate) fn random() -> f64 {
    let (bits, _) = Uuid::new_v4().as_u64_pair();
    f64::from(u16::from_le_bytes([bits.to_le_bytes()[0], bits.to_le_bytes()[1]])) / f64::from(u16::MAX)
}

/// Returns an error if a sketch is among the limits.
pub(crate) fn refuse_sketches(limits: &[Limit]) -> Result<(), Error> {
    if limits.iter().any(|limit| limit.sketch.is_some()) { Err(Error::Call(MERGED.to_owned())) } else { Ok(()) }
}

/// Keys and limits of one call: several limits on one key, or a limit on each of several keys.
#[derive(Clone)]
pub(crate) struct Charge {
    keys: Vec<String>,
    limits: Vec<Limit>,
    /// Item of each limit that is a sketch.
    items: Vec<Option<String>>,
    has_several_keys: bool,
}

impl Charge {
    /// Creates a charge of one key. `key_of` returns the key on the server for the caller's key.
    pub(crate) fn of_key(key_of: impl Fn(&str) -> String, key: &str, limits: &[Limit]) -> Self {
        let sketch = limits.iter().find_map(|limit| limit.sketch.as_deref());
        let items = limits.iter().map(|limit| limit.sketch.is_some().then(|| key.to_owned())).collect();
        Self { keys: vec![key_of(sketch.unwrap_or(key))], limits: limits.to_vec(), items, has_several_keys: false }
    }

    pub(crate) fn of_keys(key_of: impl Fn(&str) -> String, limits_by_key: &[(&str, Limit)]) -> Self {
        let charges = limits_by_key.iter().map(|(key, limit)| Self::of_key(&key_of, key, std::slice::from_ref(limit)));
        let mut charge = Self { keys: Vec::new(), limits: Vec::new(), items: Vec::new(), has_several_keys: true };
        for single in charges {
            charge.keys.extend(single.keys);
            charge.limits.extend(single.limits);
            charge.items.extend(single.items);
        }
        charge
    }

    /// Returns the key that selects the node of a cluster.
    pub(crate) fn key(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }

    /// Returns the key under which denials are remembered.
    pub(crate) fn denial_key(&self) -> Cow<'_, str> {
        match self.items.as_slice() {
            [Some(item)] => format!("{} {item}", self.key()).into(),
            _ => self.key().into(),
        }
    }

    /// Returns `true` if units of all limits can be reserved.
    pub(crate) fn is_reservable(&self) -> bool {
        self.limits.iter().all(|limit| limit.algorithm == "TOKENBUCKET")
    }

    /// Returns `true` if a sketch is among the limits.
    pub(crate) fn has_items(&self) -> bool {
        self.items.iter().any(Option::is_some)
    }

    pub(crate) fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Returns the limits that are policies, each with its key. Policies of items are sketches, which have no FORCE.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (&str, &Limit)> {
        let limits = self.limits.iter().zip(&self.items).enumerate();
        limits.filter(|(_, (limit, item))| limit.is_policy() && item.is_none()).map(|(index, (limit, _))| {
            let key = if self.has_several_keys { self.keys.get(index) } else { self.keys.first() };
            (key.map_or("", String::as_str), limit)
        })
    }

    /// Returns the words of a call that charges nothing. The reply says if the policy has FORCE.
    pub(crate) fn policy_query(key: &str, policy: &Limit) -> Vec<String> {
        let options = ["COST", "0", "EACH"].map(str::to_owned).to_vec();
        [vec!["RL.LIMIT".to_owned(), key.to_owned()], policy.policy_words(None), options].concat()
    }

    pub(crate) fn has_several_keys(&self) -> bool {
        self.has_several_keys
    }

    /// Returns the units that a call of this cost charges to each limit.
    pub(crate) fn costs(&self, cost: Amount) -> Vec<f64> {
        self.limits.iter().map(|limit| limit.cost.unwrap_or(cost).units()).collect()
    }

    /// Validates the call before anything is sent.
    pub(crate) fn check(&self, cost: Amount) -> Result<(), Error> {
        if self.limits.is_empty() {
            return Err(Error::Call("a call needs a limit, such as Limit::fixed(100, \"1m\")".to_owned()));
        }
        if self.has_items() && !self.has_several_keys && self.limits.len() > 1 {
            return Err(Error::Call("a sketch is alone in its key: take_all has several keys".to_owned()));
        }
        if self.limits.iter().any(Limit::has_invalid_sketch) {
            return Err(Error::Call("only a sketch or a policy is of items, and a sketch has no name".to_owned()));
        }
        if self.limits.iter().any(Limit::is_concurrency) {
            return Err(Error::Call("a concurrency limit is held by a lease: Limiter::lease".to_owned()));
        }
        if !cost.is_valid() {
            return Err(Error::Call(format!("cost must be a number from 0 to 10^12, not {}", cost.units())));
        }
        Ok(())
    }

    pub(crate) fn take_words(&self, take: &Take, id: Option<&Id>) -> Vec<String> {
        let mut options = options(take);
        if let Some(id) = id {
            options.extend(["ONCE".to_owned(), id.name.clone(), id.ttl.word()]);
        }
        self.words(options)
    }

    pub(crate) fn words(&self, options: Vec<String>) -> Vec<String> {
        if self.has_several_keys {
            return self.words_for_several_keys("RL.MTAKE", options);
        }
        match self.limits.as_slice() {
            // RL.LIMIT, unlike RL.TAKE, needs no permission to choose limits.
            [limit] if limit.is_policy() => {
                let names = limit.policy_words(self.items.first().and_then(Option::as_deref));
                [vec!["RL.LIMIT".to_owned(), self.key().to_owned()], names, options].concat()
            }
            _ => self.words_for_one_key("RL.TAKE", options),
        }
    }

    /// Returns the words of a peek whose reply is the decision that `take_words` would get.
    pub(crate) fn peek_words(&self, take: &Take) -> Vec<String> {
        if self.has_several_keys {
            self.words_for_several_keys("RL.MPEEK", options(take))
        } else {
            self.words_for_one_key("RL.PEEK", options(take))
        }
    }

    fn words_for_one_key(&self, command: &str, options: Vec<String>) -> Vec<String> {
        [vec![command.to_owned(), self.key().to_owned()], options, self.specs()].concat()
    }

    fn words_for_several_keys(&self, command: &str, options: Vec<String>) -> Vec<String> {
        let command_and_count = vec![command.to_owned(), self.keys.len().to_string()];
        [command_and_count, self.keys.clone(), options, self.specs()].concat()
    }

    fn specs(&self) -> Vec<String> {
        self.limits.iter().zip(&self.items).flat_map(|(limit, item)| limit.spec(item.as_deref())).collect()
    }
}

fn options(take: &Take) -> Vec<String> {
    let mut options = Vec::new();
    if take.cost != Amount::from(1) {
        options.extend(["COST".to_owned(), take.cost.word()]);
    }
    if take.up_to {
        options.push("UPTO".to_owned());
    }
    if take.force {
        options.push("FORCE".to_owned());
    }
    if let Some(max_wait) = take.max_wait {
        options.extend(["MAXWAIT".to_owned(), format!("{}us", max_wait.as_micros())]);
    }
    options
}
