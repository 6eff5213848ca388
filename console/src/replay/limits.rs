//! Limits of a replay, which are parsed from the words of a policy, and can be scaled.

use ratelimit_core::Amount;
use ratelimit_core::syntax::{CompositeRequest, Policy, Spec};
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::Error;

/// Limits of a policy, with the words that they were parsed from.
#[derive(Clone, Debug)]
pub struct Limits {
    words: Vec<String>,
    policy: Policy,
}

/// Request of a call with a cost of 1.
#[derive(Clone, Debug)]
pub enum TrialRequest<'l> {
    /// Single limit with a usage of its own.
    One(Spec<'static>),
    /// Several limits, or a limit with further options.
    Several(CompositeRequest<'l>),
}

impl Limits {
    /// Parses the limits of a policy.
    ///
    /// # Errors
    /// Returns the error of the server if the server would reject the limits.
    pub fn parse(text: &str) -> Result<Limits, String> {
        Limits::from_words(text.split_ascii_whitespace().map(str::to_owned).collect())
    }

    fn from_words(words: Vec<String>) -> Result<Limits, String> {
        let command = std::iter::once("RL.POLICYSET");
        let arguments: Vec<&[u8]> = command.chain(words.iter().map(String::as_str)).map(str::as_bytes).collect();
        let policy = Policy::parse(&mut Args::new(&arguments)).map_err(|error| error.to_string())?;
        Ok(Limits { words, policy })
    }

    /// Returns the request of a call with a cost of 1.
    ///
    /// # Errors
    /// If the limits need data that a log does not have, such as the holder of a lease.
    pub fn request(&self) -> Result<TrialRequest<'_>, String> {
        if let Some(spec) = self.policy.plain() {
            return Ok(TrialRequest::One(*spec));
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

    /// Returns the number of limits, including those in shadow mode.
    #[must_use]
    pub fn count(&self) -> usize {
        scalable_numbers(&self.words).1
    }

    /// Returns the scale that makes all limits smaller or larger together, or `None` if all of them are 0 or in shadow
    /// mode.
    #[must_use]
    pub fn scale(&self) -> Option<Scale> {
        self.scale_of(scalable_numbers(&self.words).0)
    }

    /// Returns the scale of one limit, by its index.
    #[must_use]
    pub fn scale_of_limit(&self, limit: usize) -> Option<Scale> {
        let (numbers, _) = scalable_numbers(&self.words);
        self.scale_of(numbers.into_iter().filter(|number| number.limit == limit).collect())
    }

    fn scale_of(&self, numbers: Vec<ScalableNumber>) -> Option<Scale> {
        let leading = numbers.iter().filter(|number| number.is_capacity).max_by_key(|number| number.amount)?;
        // A step is a unit of the last decimal: 1 for 10, 0.1 for 0.5.
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

/// Number among the words of limits that can be scaled.
#[derive(Clone, Copy, Debug)]
struct ScalableNumber {
    /// Index of the word.
    word: usize,
    /// Index of the limit.
    limit: usize,
    amount: Amount,
    /// `true` for a limit or a capacity, `false` for a refill or a leak.
    is_capacity: bool,
    /// `true` if the scaled number must be whole, like the original. A refill may become a fraction.
    is_whole: bool,
}

/// Limits whose numbers are scaled together, in steps of the largest number.
#[derive(Clone, Debug)]
pub struct Scale {
    words: Vec<String>,
    numbers: Vec<ScalableNumber>,
    /// Largest number of the unscaled limits, in steps.
    pub steps: u64,
}

impl Scale {
    /// Returns the limits with their largest number scaled to `steps`. Other numbers are scaled alike and rounded up.
    /// Returns `None` if a number is out of range.
    #[must_use]
    pub fn at(&self, steps: u64) -> Option<Limits> {
        let mut words = self.words.clone();
        for number in &self.numbers {
            let scaled = u128::from(number.amount.millionths()) * u128::from(steps);
            let unit = if number.is_whole { Amount::ONE.millionths() } else { 1 };
            let scaled = scaled.div_ceil(u128::from(self.steps) * u128::from(unit)) * u128::from(unit);
            let amount = u64::try_from(scaled).ok().and_then(Amount::from_millionths)?;
            if let Some(word) = words.get_mut(number.word) {
                *word = amount.to_string();
            }
        }
        Limits::from_words(words).ok()
    }
}

/// Returns the numbers in the words of a policy that are scaled (limits, capacities, refills and leaks, except those of
/// limits in shadow mode), and the number of limits.
fn scalable_numbers(words: &[String]) -> (Vec<ScalableNumber>, usize) {
    let (mut numbers, mut limits, mut index): (Vec<ScalableNumber>, usize, usize) = (vec![], 0, 0);
    while let Some(word) = words.get(index) {
        // Number of arguments of the word, and how many of them are scaled.
        let (arguments, scaled) = match word.to_ascii_uppercase().as_str() {
            "TOKENBUCKET" | "LEAKYBUCKET" => (3, 2),
            "FIXED" | "SLIDING" | "SLIDINGLOG" => (2, 1),
            "AS" | "COST" | "OFFSET" | "ANCHOR" => (1, 0),
            "BAN" => break,
            "SHADOW" => {
                numbers.retain(|number| number.limit + 1 != limits);
                (0, 0)
            }
            _ => (0, 0),
        };
        let limit = limits;
        numbers.extend((1..=scaled).filter_map(|nth| {
            let amount = Amount::parse_down(words.get(index + nth)?.as_bytes())?;
            let is_whole = nth == 1 && amount.floor() == amount;
            Some(ScalableNumber { word: index + nth, limit, amount, is_capacity: nth == 1, is_whole })
        }));
        limits += usize::from(scaled > 0);
        index += 1 + arguments;
    }
    (numbers, limits)
}

#[cfg(test)]
mod tests;
