//! Limits that are tried: the words of a policy, read by the core, and the same words with their numbers scaled.

use ratelimit_core::Amount;
use ratelimit_core::syntax::{CompositeRequest, Policy, Spec};
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::Error;

/// The limits of a policy, with the words that they were read from.
#[derive(Clone, Debug)]
pub struct Limits {
    words: Vec<String>,
    policy: Policy,
}

/// What a call that costs 1 asks of limits.
#[derive(Clone, Debug)]
pub enum TrialRequest<'l> {
    /// A limit that a key of its own kind remembers.
    One(Spec<'static>),
    /// Anything more.
    Several(CompositeRequest<'l>),
}

impl Limits {
    /// The limits that the words of a policy say.
    ///
    /// # Errors
    /// What the server would say of the words.
    pub fn read(text: &str) -> Result<Limits, String> {
        Limits::of(text.split_ascii_whitespace().map(str::to_owned).collect())
    }

    fn of(words: Vec<String>) -> Result<Limits, String> {
        let command = std::iter::once("RL.POLICYSET");
        let said: Vec<&[u8]> = command.chain(words.iter().map(String::as_str)).map(str::as_bytes).collect();
        let policy = Policy::read(&mut Args::new(&said)).map_err(|error| error.to_string())?;
        Ok(Limits { words, policy })
    }

    /// What a call that costs 1 asks of them.
    ///
    /// # Errors
    /// Limits that a log does not tell enough for.
    pub fn asked(&self) -> Result<TrialRequest<'_>, String> {
        if let Some(spec) = self.policy.plain() {
            return Ok(TrialRequest::One(spec));
        }
        match self.policy.composite() {
            Ok(call) => Ok(TrialRequest::Several(call.into_owned())),
            Err(Error::NoHolder) => Err("CONCURRENCY cannot be replayed: a log does not tell when a call ends".into()),
            Err(Error::NoItem) => {
                let numbers = self.words.get(1..4).unwrap_or_default().join(" ");
                Err(format!(
                    "SKETCH cannot be replayed, since what it denies too early differs each time: replay TOKENBUCKET {numbers}, the bucket of each of its items"
                ))
            }
            Err(other) => Err(other.to_string()),
        }
    }

    /// How many limits there are, those in the shadow too.
    #[must_use]
    pub fn count(&self) -> usize {
        numbers(&self.words).1
    }

    /// The scale on which these limits can be made smaller and larger together; `None` if all of them are 0, or in the
    /// shadow, where they deny nothing.
    #[must_use]
    pub fn scale(&self) -> Option<Scale> {
        self.scale_of(numbers(&self.words).0)
    }

    /// The scale of one of these limits, by its place among them.
    #[must_use]
    pub fn scale_alone(&self, limit: usize) -> Option<Scale> {
        let (numbers, _) = numbers(&self.words);
        self.scale_of(numbers.into_iter().filter(|number| number.limit == limit).collect())
    }

    fn scale_of(&self, numbers: Vec<ScalableNumber>) -> Option<Scale> {
        let leading = numbers.iter().filter(|number| number.leads).max_by_key(|number| number.amount)?;
        // The steps are those of the number as it is written: of 10 they are 1, of 0.5 they are 0.1.
        let mut step = Amount::ONE.millionths();
        while !leading.amount.millionths().is_multiple_of(step) {
            step /= 10;
        }
        let steps = leading.amount.millionths() / step;
        (steps > 0).then_some(Scale { words: self.words.clone(), numbers, steps })
    }
}

impl std::fmt::Display for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.policy.fmt(f)
    }
}

/// A number that can be scaled.
#[derive(Clone, Copy, Debug)]
struct ScalableNumber {
    /// Which of the words it is.
    place: usize,
    /// Which of the limits it is of.
    limit: usize,
    amount: Amount,
    /// Whether it is how much may be used at once: a limit or a capacity, and no refill.
    leads: bool,
    /// Whether it stays a whole number: a limit that is one. A refill may become a fraction.
    whole: bool,
}

/// Limits of which some numbers go up and down together, in the steps of the largest.
#[derive(Clone, Debug)]
pub struct Scale {
    words: Vec<String>,
    numbers: Vec<ScalableNumber>,
    /// How many steps the largest number is as it was given.
    pub steps: u64,
}

impl Scale {
    /// The limits whose largest number is so many steps; `None` above what a limit can be. The others are rounded up.
    #[must_use]
    pub fn at(&self, steps: u64) -> Option<Limits> {
        let mut words = self.words.clone();
        for number in &self.numbers {
            let scaled = u128::from(number.amount.millionths()) * u128::from(steps);
            let unit = if number.whole { Amount::ONE.millionths() } else { 1 };
            let scaled = scaled.div_ceil(u128::from(self.steps) * u128::from(unit)) * u128::from(unit);
            let amount = u64::try_from(scaled).ok().and_then(Amount::from_millionths)?;
            if let Some(word) = words.get_mut(number.place) {
                *word = amount.to_string();
            }
        }
        Limits::of(words).ok()
    }
}

/// The numbers among the words of a policy that are scaled: limits, capacities, refills and leaks, but none of a limit in
/// the shadow. And how many limits there are.
fn numbers(words: &[String]) -> (Vec<ScalableNumber>, usize) {
    let (mut found, mut limits, mut place): (Vec<ScalableNumber>, usize, usize) = (vec![], 0, 0);
    while let Some(word) = words.get(place) {
        // How many words it takes behind it, and how many of these are scaled.
        let (arguments, scaled) = match word.to_ascii_uppercase().as_str() {
            "TOKENBUCKET" | "LEAKYBUCKET" => (3, 2),
            "FIXED" | "SLIDING" | "SLIDINGLOG" => (2, 1),
            "AS" | "COST" | "OFFSET" | "ANCHOR" => (1, 0),
            "BAN" => break,
            "SHADOW" => {
                found.retain(|number| number.limit + 1 != limits);
                (0, 0)
            }
            _ => (0, 0),
        };
        let limit = limits;
        found.extend((1..=scaled).filter_map(|nth| {
            let amount = Amount::parse_down(words.get(place + nth)?.as_bytes())?;
            let whole = nth == 1 && amount.floor() == amount;
            Some(ScalableNumber { place: place + nth, limit, amount, leads: nth == 1, whole })
        }));
        limits += usize::from(scaled > 0);
        place += 1 + arguments;
    }
    (found, limits)
}

#[cfg(test)]
mod tests;
