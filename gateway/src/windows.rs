//! What the words of limits say about their windows. It only describes decisions: the server makes them.

use ratelimit_core::wire::args::Args;
use ratelimit_core::{Amount, Period, syntax};

/// A limit as an answer tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the words of a limit")]
pub struct Window {
    /// What it is called: its name (AS), or the algorithm and its first two numbers.
    pub label: String,
    /// How much may be used at once.
    pub quota: Amount,
    /// How long all of it takes to come back, in whole seconds, rounded up. Calendar windows count 30 days a month,
    /// 91 a quarter and 365 a year.
    pub seconds: u64,
    /// Whether all of it comes back within the window: not so in a bucket whose refill is less than its capacity.
    pub whole: bool,
    /// What a call costs of it, whatever the call says.
    pub cost: Option<Amount>,
    /// Whether it only counts what it would deny.
    pub shadow: bool,
    /// Whether it limits how much is held at once.
    pub held: bool,
    /// The limit is charged even past its end.
    pub forced: bool,
}

const DAY: u64 = 86_400;

/// The limits that the words of a policy or of RL.TAKE say, in their order; what is no limit is passed over.
#[must_use]
pub fn windows(words: &str) -> Vec<Window> {
    let words: Vec<&str> = words.split_ascii_whitespace().collect();
    let mut found: Vec<Window> = vec![];
    let mut rest = words.as_slice();
    while let [word, behind @ ..] = rest {
        rest = match (word.to_ascii_uppercase().as_str(), behind) {
            (name @ ("TOKENBUCKET" | "LEAKYBUCKET" | "SKETCH"), [capacity, refill, period, behind @ ..]) => {
                let label = label(name, [capacity, refill]);
                let (capacity, refill) = (amount(capacity), amount(refill));
                let seconds = drained(if capacity == Amount::ZERO { Amount::ONE } else { capacity }, refill, period);
                found.push(Window { whole: capacity == refill, ..Window::new(label, capacity, seconds) });
                behind
            }
            (name @ ("FIXED" | "SLIDING" | "SLIDINGLOG" | "CONCURRENCY"), [limit, window, behind @ ..]) => {
                let window = Window::new(label(name, [limit, window]), amount(limit), seconds(window));
                found.push(Window { held: name == "CONCURRENCY", ..window });
                behind
            }
            ("BAN", _) => break,
            (option, behind) => described(found.last_mut(), option, behind),
        };
    }
    found
}

/// Takes note of an option of the last limit; what is behind it.
fn described<'a>(limit: Option<&mut Window>, option: &str, behind: &'a [&'a str]) -> &'a [&'a str] {
    match (option, behind, limit) {
        ("COST", [cost, behind @ ..], Some(limit)) => {
            limit.cost = Some(amount(cost));
            behind
        }
        ("AS", [name, behind @ ..], Some(limit)) => {
            (*name).clone_into(&mut limit.label);
            behind
        }
        ("SHADOW", _, Some(limit)) => {
            limit.shadow = true;
            behind
        }
        ("FORCE", _, Some(limit)) => {
            limit.forced = true;
            behind
        }
        _ => behind,
    }
}

/// Refuses words that are no limits that a policy could have.
///
/// # Errors
/// What the server would say of them.
pub fn checked(words: &str) -> Result<(), String> {
    let words: Vec<&[u8]> =
        ["RL.POLICYSET"].into_iter().chain(words.split_ascii_whitespace()).map(str::as_bytes).collect();
    syntax::Policy::read(&mut Args::new(&words)).map(|_| ()).map_err(|error| error.to_string())
}

impl Window {
    fn new(label: String, quota: Amount, seconds: u64) -> Window {
        Window { label, quota, seconds, whole: true, cost: None, shadow: false, held: false, forced: false }
    }
}

fn label(algorithm: &str, numbers: [&str; 2]) -> String {
    let words: Vec<String> = std::iter::once(algorithm).chain(numbers).map(str::to_ascii_lowercase).collect();
    words.join("-")
}

fn amount(word: &str) -> Amount {
    Amount::parse_down(word.as_bytes()).unwrap_or(Amount::ZERO)
}

fn seconds(word: &str) -> u64 {
    match word {
        "1w" => 7 * DAY,
        "1mo" => 30 * DAY,
        "3mo" => 91 * DAY,
        "1y" => 365 * DAY,
        _ => micros(word).div_ceil(1_000_000),
    }
}

fn micros(word: &str) -> u64 {
    Period::parse(word.as_bytes()).map_or(0, |period| period.micros().get())
}

/// How long this much takes to drain, in seconds.
fn drained(capacity: Amount, refill: Amount, period: &str) -> u64 {
    let micros = u128::from(capacity.millionths()) * u128::from(micros(period));
    let micros = micros.checked_div(u128::from(refill.millionths())).unwrap_or_default();
    u64::try_from(micros.div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
