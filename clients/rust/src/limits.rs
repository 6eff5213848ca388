//! Limits, and the words of a command that describe them.

use std::cmp::Ordering;
use std::time::Duration;

/// Number of units, whole or decimal, from 0 to 10^12. The server counts in millionths.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Amount(f64);

impl Amount {
    pub(crate) fn units(self) -> f64 {
        self.0
    }

    pub(crate) fn word(self) -> String {
        // `Display` writes no exponent.
        format!("{}", self.0)
    }

    /// Returns `true` if the server accepts the amount.
    pub(crate) fn is_valid(self) -> bool {
        (0.0..=1e12).contains(&self.0)
    }
}

impl From<f64> for Amount {
    fn from(units: f64) -> Self {
        Self(units)
    }
}

impl From<u32> for Amount {
    fn from(units: u32) -> Self {
        Self(f64::from(units))
    }
}

impl From<i32> for Amount {
    fn from(units: i32) -> Self {
        Self(f64::from(units))
    }
}

/// Duration as a [`Duration`], or as text in the server's syntax, such as `"100ms"`, `"1m"` or `"1.5h"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Time(String);

impl Time {
    pub(crate) fn word(&self) -> String {
        self.0.clone()
    }

    /// Returns the time in milliseconds, for keys; calendar windows stay as they are written.
    pub(crate) fn canonical(&self) -> String {
        let Some(micros) = self.micros() else { return self.0.clone() };
        let (whole, rest) = (micros / 1000, micros % 1000);
        if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:03}").trim_end_matches('0').to_owned() }
    }

    /// Returns the time in microseconds, rounded up as on the server; `None` unless it is a number with a unit.
    fn micros(&self) -> Option<u128> {
        let digits = self.0.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit: u128 = match self.0.strip_prefix(digits)? {
            "us" => 1,
            "ms" => 1_000,
            "" | "s" => 1_000_000,
            "m" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            _ => return None,
        };
        let (whole, rest) = digits.split_once('.').unwrap_or((digits, "0"));
        let scale = 10_u128.checked_pow(u32::try_from(rest.len()).ok()?)?;
        let part = rest.parse::<u128>().ok()?.checked_mul(unit)?.div_ceil(scale);
        whole.parse::<u128>().ok()?.checked_mul(unit)?.checked_add(part)
    }

    /// Returns the time as a [`Duration`]; `None` for a text such as `"1mo"`.
    pub(crate) fn duration(&self) -> Option<Duration> {
        u64::try_from(self.micros()?).ok().map(Duration::from_micros)
    }
}

impl From<&str> for Time {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Time {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<Duration> for Time {
    fn from(duration: Duration) -> Self {
        Self(format!("{}us", duration.as_micros()))
    }
}

/// Limit, such as 100 calls a minute.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    pub(crate) algorithm: &'static str,
    /// Parameters of the algorithm, or the names of policies.
    pub(crate) words: Vec<String>,
    /// Units that the limit grants in a window. `None` for a policy, whose limits only the server knows.
    pub(crate) quota: Option<Amount>,
    /// Time in which the quota recovers. `None` for a policy, and for a window that is not a number with a unit.
    pub(crate) window: Option<Duration>,
    pub(crate) name: Option<String>,
    /// Cost that takes precedence over that of the call.
    pub(crate) cost: Option<Amount>,
    /// Key of a sketch. The keys of calls are its items.
    pub(crate) sketch: Option<String>,
}

impl Limit {
    /// Creates a token bucket: bursts of up to `capacity`, refilled by `refill` per `period`, continuously.
    pub fn token_bucket(capacity: impl Into<Amount>, refill: impl Into<Amount>, period: impl Into<Time>) -> Self {
        Self::bucket("TOKENBUCKET", capacity.into(), refill.into(), &period.into())
    }

    /// Creates a leaky bucket: a queue of up to `capacity` that drains at `leak` per `period`. Hold an allowed call for
    /// its [`Decision::wait`](crate::Decision::wait).
    pub fn leaky_bucket(capacity: impl Into<Amount>, leak: impl Into<Amount>, period: impl Into<Time>) -> Self {
        Self::bucket("LEAKYBUCKET", capacity.into(), leak.into(), &period.into())
    }

    /// Creates a fixed window: at most `limit` in each window, which begins with the first call.
    pub fn fixed(limit: impl Into<Amount>, window: impl Into<Time>) -> Self {
        Self::windowed("FIXED", limit.into(), &window.into(), &[])
    }

    /// Creates a sliding window: approximately `limit` in the trailing window, in constant memory.
    pub fn sliding(limit: impl Into<Amount>, window: impl Into<Time>) -> Self {
        Self::windowed("SLIDING", limit.into(), &window.into(), &[])
    }

    /// Creates a strict sliding window: at most `limit` in any window, in constant memory.
    pub fn sliding_strict(limit: impl Into<Amount>, window: impl Into<Time>) -> Self {
        Self::windowed("SLIDING", limit.into(), &window.into(), &["STRICT"])
    }

    /// Creates a sliding log: at most `limit` in the trailing window, to the microsecond; the server stores each call.
    pub fn sliding_log(limit: impl Into<Amount>, window: impl Into<Time>) -> Self {
        Self::windowed("SLIDINGLOG", limit.into(), &window.into(), &[])
    }

    /// Creates a concurrency limit: at most `limit` leases at the same time, each for `ttl` unless it is renewed.
    pub fn concurrency(limit: impl Into<Amount>, ttl: impl Into<Time>) -> Self {
        Self::windowed("CONCURRENCY", limit.into(), &ttl.into(), &[])
    }

    /// Creates a sketch: a token bucket for each of any number of items, such as addresses, in one `key` of a fixed
    /// size. The key of a call is the item. An item never gets more than its limit, and may be denied too early if the
    /// sketch is too small. Charges can be neither settled nor given back.
    pub fn sketch(
        capacity: impl Into<Amount>,
        refill: impl Into<Amount>,
        period: impl Into<Time>,
        key: impl Into<String>,
    ) -> Self {
        Self::bucket("SKETCH", capacity.into(), refill.into(), &period.into()).of_items(key)
    }

    /// Creates a limit by policy: the first policy of these names that exists on the server applies.
    pub fn policy<Name: Into<String>>(names: impl IntoIterator<Item = Name>) -> Self {
        let words = names.into_iter().map(Into::into).collect();
        Self { algorithm: "POLICY", words, quota: None, window: None, name: None, cost: None, sketch: None }
    }

    /// Sets the name, which distinguishes the limit from others on its key and appears in header fields: 1 to 32 of
    /// A-Z, a-z, 0-9, _ and -.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Sets the key of the sketch, for a policy that is a sketch. The key of a call is the item.
    pub fn of_items(self, key: impl Into<String>) -> Self {
        Self { sketch: Some(key.into()), ..self }
    }

    /// Sets the units that a call charges to this limit, in place of the cost of the call.
    pub fn costing(self, units: impl Into<Amount>) -> Self {
        Self { cost: Some(units.into()), ..self }
    }

    pub(crate) fn is_policy(&self) -> bool {
        self.algorithm == "POLICY"
    }

    /// Returns `true` if the limit has the key of a sketch, but is neither an unnamed sketch nor a policy.
    pub(crate) fn has_invalid_sketch(&self) -> bool {
        self.sketch.is_some() && !self.is_policy() && (self.algorithm != "SKETCH" || self.name.is_some())
    }

    pub(crate) fn is_concurrency(&self) -> bool {
        self.algorithm == "CONCURRENCY"
    }

    /// Returns the words of the limit in a call. `item` is the item of a sketch.
    pub(crate) fn spec(&self, item: Option<&str>) -> Vec<String> {
        if self.is_policy() {
            let mut words = vec![self.algorithm.to_owned()];
            words.extend(self.policy_words(item));
            return words;
        }
        let mut words = vec![self.algorithm.to_owned()];
        words.extend(self.words.iter().cloned());
        words.extend(item.map(str::to_owned));
        if let Some(cost) = self.cost {
            words.extend(["COST".to_owned(), cost.word()]);
        }
        if let Some(name) = &self.name {
            words.extend(["AS".to_owned(), name.clone()]);
        }
        words
    }

    /// Returns the canonical words of the limit for keys without a name: times in milliseconds, and neither the cost
    /// nor the key of a sketch. For a policy, its names.
    pub(crate) fn canonical(&self) -> String {
        if self.is_policy() {
            return self.words.join("+");
        }
        self.description(true)
    }

    /// Returns the algorithm, the window and the name, which must not change while a name is bound to the limit.
    pub(crate) fn shape(&self) -> String {
        if self.is_policy() { self.algorithm.to_owned() } else { self.description(false) }
    }

    /// Returns the algorithm, its parameters and the name. Without amounts, only the window and options are parameters.
    fn description(&self, with_amounts: bool) -> String {
        let amount_count = self.amount_count();
        let mut words = vec![self.algorithm.to_owned()];
        for (index, word) in self.words.iter().enumerate() {
            match index.cmp(&amount_count) {
                Ordering::Less if !with_amounts => {}
                Ordering::Equal => words.push(Time(word.clone()).canonical()),
                _ => words.push(word.clone()),
            }
        }
        if let Some(name) = &self.name {
            words.extend(["AS".to_owned(), name.clone()]);
        }
        words.join(" ")
    }

    /// Returns the number of amounts at the beginning of the parameters. A time follows the amounts.
    fn amount_count(&self) -> usize {
        if matches!(self.algorithm, "TOKENBUCKET" | "LEAKYBUCKET" | "SKETCH") { 2 } else { 1 }
    }

    /// Returns the names of policies with OR between them, and the item of a sketch.
    pub(crate) fn policy_words(&self, item: Option<&str>) -> Vec<String> {
        let mut words: Vec<_> = self.words.iter().flat_map(|name| ["OR".to_owned(), name.clone()]).collect();
        words.drain(..1.min(words.len()));
        words.extend(item.iter().flat_map(|item| ["ITEM".to_owned(), (*item).to_owned()]));
        words
    }

    fn bucket(algorithm: &'static str, capacity: Amount, refill: Amount, period: &Time) -> Self {
        let window =
            period.duration().map(|period| period.mul_f64((capacity.units() / refill.units()).clamp(0.0, 1e9)));
        let words = vec![capacity.word(), refill.word(), period.word()];
        Self { algorithm, words, quota: Some(capacity), window, name: None, cost: None, sketch: None }
    }

    fn windowed(algorithm: &'static str, limit: Amount, window: &Time, options: &[&str]) -> Self {
        let mut words = vec![limit.word(), window.word()];
        words.extend(options.iter().map(|&word| word.to_owned()));
        Self { algorithm, words, quota: Some(limit), window: window.duration(), name: None, cost: None, sketch: None }
    }
}
