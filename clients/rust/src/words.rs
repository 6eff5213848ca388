//! The words of calls: what is charged, how much, and under which idempotency key.

use redis::Cmd;
use uuid::Uuid;

use crate::error::Error;
use crate::limits::{Amount, Limit, Time};
use crate::options::Take;

/// As redis-rs sends it.
pub(crate) fn command(words: &[String]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}

/// An idempotency key, and for how long the server remembers it.
pub(crate) struct Id {
    pub(crate) name: String,
    pub(crate) ttl: Time,
}

impl Id {
    pub(crate) fn new(ttl: Time) -> Self {
        Self { name: Uuid::new_v4().simple().to_string(), ttl }
    }
}

/// What one call charges: limits of one key, or a limit of each of several.
#[derive(Clone)]
pub(crate) struct Charge {
    keys: Vec<String>,
    limits: Vec<Limit>,
    is_of_several: bool,
}

impl Charge {
    pub(crate) fn of_key(key: String, limits: &[Limit]) -> Self {
        Self { keys: vec![key], limits: limits.to_vec(), is_of_several: false }
    }

    pub(crate) fn of_keys(keyed: impl Iterator<Item = (String, Limit)>) -> Self {
        let (keys, limits) = keyed.unzip();
        Self { keys, limits, is_of_several: true }
    }

    /// The one that chooses the node of a cluster.
    pub(crate) fn key(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }

    pub(crate) fn limits(&self) -> &[Limit] {
        &self.limits
    }

    pub(crate) fn is_of_several(&self) -> bool {
        self.is_of_several
    }

    /// What a call of this cost charges of each limit.
    pub(crate) fn costs(&self, cost: Amount) -> Vec<f64> {
        self.limits.iter().map(|limit| limit.cost.unwrap_or(cost).units()).collect()
    }

    /// Before anything is sent.
    pub(crate) fn check(&self, cost: Amount) -> Result<(), Error> {
        if self.limits.is_empty() {
            return Err(Error::Call("a call needs a limit, such as Limit::fixed(100, \"1m\")".to_owned()));
        }
        if self.limits.iter().any(Limit::is_held) {
            return Err(Error::Call("a concurrency limit is held by a lease: Limiter::lease".to_owned()));
        }
        if !cost.is_valid() {
            return Err(Error::Call(format!("cost must be a number from 0 to 10^12, not {}", cost.units())));
        }
        Ok(())
    }

    pub(crate) fn take(&self, take: &Take, id: Option<&Id>) -> Vec<String> {
        let mut options = options(take);
        if let Some(id) = id {
            options.extend(["ONCE".to_owned(), id.name.clone(), id.ttl.word()]);
        }
        self.words(options)
    }

    pub(crate) fn words(&self, options: Vec<String>) -> Vec<String> {
        if self.is_of_several {
            return self.several("RL.MTAKE", options);
        }
        match self.limits.as_slice() {
            // The form of its own that needs no permission to choose limits.
            [limit] if limit.is_policy() => {
                [vec!["RL.LIMIT".to_owned(), self.key().to_owned()], limit.names(), options].concat()
            }
            _ => self.one("RL.TAKE", options),
        }
    }

    /// What the take would answer.
    pub(crate) fn look(&self, take: &Take) -> Vec<String> {
        if self.is_of_several { self.several("RL.MPEEK", options(take)) } else { self.one("RL.PEEK", options(take)) }
    }

    fn one(&self, command: &str, options: Vec<String>) -> Vec<String> {
        [vec![command.to_owned(), self.key().to_owned()], options, self.specs()].concat()
    }

    fn several(&self, command: &str, options: Vec<String>) -> Vec<String> {
        let first = vec![command.to_owned(), self.keys.len().to_string()];
        [first, self.keys.clone(), options, self.specs()].concat()
    }

    fn specs(&self) -> Vec<String> {
        self.limits.iter().flat_map(Limit::spec).collect()
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
    options
}
