//! Descriptions of limits, parsed from the arguments of `RL.POLICYSET` and `RL.TAKE`. The gateway needs them to
//! describe decisions of the server, and to decide itself while the server is away.

use ratelimit_core::wire::args::Args;
use ratelimit_core::{Amount, Period, syntax};

/// Description of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the options of a limit")]
pub struct Limit {
    /// Name from the option AS, or the algorithm and its first two numbers.
    pub name: String,
    /// Units that may be used at once.
    pub capacity: Amount,
    /// Seconds until a full limit has recovered, rounded up. Windows of the calendar count 30 days a month, 91 a
    /// quarter and 365 a year.
    pub recovery_seconds: u64,
    /// `true` unless the limit is a bucket whose refill differs from its capacity.
    pub is_window: bool,
    /// Cost of each call from the option COST, which takes precedence over the cost of the call.
    pub cost: Option<Amount>,
    /// Option SHADOW: denials are counted but not enforced.
    pub shadow: bool,
    /// `true` if the limit bounds leases (CONCURRENCY).
    pub is_concurrency: bool,
    /// Option FORCE: the limit is charged even beyond its capacity.
    pub is_forced: bool,
    /// Option ALIGNED: the limit is a window of the calendar.
    pub is_aligned: bool,
    /// Option BAN: denied calls on the key are strikes, which lead to a ban.
    pub has_ban: bool,
}

/// Seconds in a day.
const DAY: u64 = 86_400;

/// Parses the limits of a policy or of `RL.TAKE`, in order. Other words are skipped.
#[must_use]
pub fn parse_limits(words: &str) -> Vec<Limit> {
    let words: Vec<&str> = words.split_ascii_whitespace().collect();
    let mut limits: Vec<Limit> = vec![];
    let mut rest = words.as_slice();
    while let [word, after @ ..] = rest {
        rest = match (word.to_ascii_uppercase().as_str(), after) {
            (name @ ("TOKENBUCKET" | "LEAKYBUCKET" | "SKETCH"), [capacity, refill, period, after @ ..]) => {
                let name = default_name(name, [capacity, refill]);
                let (capacity, refill) = (amount(capacity), amount(refill));
                let seconds =
                    refill_seconds(if capacity == Amount::ZERO { Amount::ONE } else { capacity }, refill, period);
                limits.push(Limit { is_window: capacity == refill, ..Limit::new(name, capacity, seconds) });
                after
            }
            (algorithm @ ("FIXED" | "SLIDING" | "SLIDINGLOG" | "CONCURRENCY"), [capacity, window, after @ ..]) => {
                let name = default_name(algorithm, [capacity, window]);
                let is_concurrency = algorithm == "CONCURRENCY";
                limits.push(Limit { is_concurrency, ..Limit::new(name, amount(capacity), window_seconds(window)) });
                after
            }
            ("BAN", _) => {
                for limit in &mut limits {
                    limit.has_ban = true;
                }
                break;
            }
            (option, after) => apply_option(limits.last_mut(), option, after),
        };
    }
    limits
}

/// Applies an option to the last limit and returns the words after it.
fn apply_option<'a>(limit: Option<&mut Limit>, option: &str, after: &'a [&'a str]) -> &'a [&'a str] {
    match (option, after, limit) {
        ("COST", [cost, after @ ..], Some(limit)) => {
            limit.cost = Some(amount(cost));
            after
        }
        ("AS", [name, after @ ..], Some(limit)) => {
            (*name).clone_into(&mut limit.name);
            after
        }
        ("SHADOW", _, Some(limit)) => {
            limit.shadow = true;
            after
        }
        ("FORCE", _, Some(limit)) => {
            limit.is_forced = true;
            after
        }
        ("ALIGNED", _, Some(limit)) => {
            limit.is_aligned = true;
            after
        }
        _ => after,
    }
}

/// Checks that words are the limits of a valid policy.
///
/// # Errors
/// If the server would reject the limits: the error of the server.
pub fn check_limits(words: &str) -> Result<(), String> {
    let words: Vec<&[u8]> =
        ["RL.POLICYSET"].into_iter().chain(words.split_ascii_whitespace()).map(str::as_bytes).collect();
    syntax::Policy::parse(&mut Args::new(&words)).map(|_| ()).map_err(|error| error.to_string())
}

impl Limit {
    fn new(name: String, capacity: Amount, recovery_seconds: u64) -> Limit {
        Limit {
            name,
            capacity,
            recovery_seconds,
            is_window: true,
            cost: None,
            shadow: false,
            is_concurrency: false,
            is_forced: false,
            is_aligned: false,
            has_ban: false,
        }
    }
}

fn default_name(algorithm: &str, numbers: [&str; 2]) -> String {
    let words: Vec<String> = std::iter::once(algorithm).chain(numbers).map(str::to_ascii_lowercase).collect();
    words.join("-")
}

fn amount(word: &str) -> Amount {
    Amount::parse_down(word.as_bytes()).unwrap_or(Amount::ZERO)
}

fn window_seconds(word: &str) -> u64 {
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

/// Returns the seconds in which a bucket refills from empty, rounded up.
fn refill_seconds(capacity: Amount, refill: Amount, period: &str) -> u64 {
    let micros = u128::from(capacity.millionths()) * u128::from(micros(period));
    let micros = micros.checked_div(u128::from(refill.millionths())).unwrap_or_default();
    u64::try_from(micros.div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
