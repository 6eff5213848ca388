//! Rates as text, such as `100/minute`.

use crate::error::Error;
use crate::limits::{Amount, Limit};

/// Longest window, in days.
const MAX_DAYS: u64 = 3650;

impl Limit {
    /// Parses a rate such as `"100/minute"` or `"5 per 15 minutes"` into a fixed window.
    ///
    /// # Errors
    /// [`Error::Call`] if the text is not a rate.
    pub fn rate(text: &str) -> Result<Self, Error> {
        let malformed = || Error::Call(format!("not a rate, such as \"100/minute\": {text:?}"));
        let (amount, window) = parse_rate(text).ok_or_else(malformed)?;
        Ok(Self::fixed(Amount::from(amount), window.as_str()))
    }
}

impl TryFrom<&str> for Limit {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        Self::rate(text)
    }
}

fn parse_rate(text: &str) -> Option<(f64, String)> {
    let text = text.to_ascii_lowercase();
    let (amount, window) = match text.split_once('/') {
        Some(parts) => parts,
        None => text.split_once(" per ")?,
    };
    let amount = amount.trim();
    let is_decimal = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !amount.split_once('.').map_or(is_decimal(amount), |(whole, rest)| is_decimal(whole) && is_decimal(rest)) {
        return None;
    }
    let window = window.trim();
    let digits = window.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = window.split_at_checked(digits)?;
    let count: u64 = if count.is_empty() { 1 } else { count.parse().ok()? };
    let (unit, multiple, seconds) = match unit.trim_start() {
        "s" | "sec" | "secs" | "second" | "seconds" => ("s", 1, 1),
        "m" | "min" | "mins" | "minute" | "minutes" => ("m", 1, 60),
        "h" | "hr" | "hrs" | "hour" | "hours" => ("h", 1, 3600),
        "d" | "day" | "days" => ("d", 1, 86_400),
        "w" | "week" | "weeks" => ("d", 7, 86_400),
        _ => return None,
    };
    let count = count.checked_mul(multiple)?;
    let is_valid = (1..=MAX_DAYS * 86_400).contains(&count.checked_mul(seconds)?);
    is_valid.then_some((amount.parse().ok()?, format!("{count}{unit}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_match_the_table_of_all_packages() {
        let table: serde_json::Value = serde_json::from_str(include_str!("../../rates.json")).unwrap();
        for row in table["rates"].as_array().unwrap() {
            let limit = Limit::rate(row["text"].as_str().unwrap()).unwrap();
            let expected = &row["limit"];
            assert_eq!(
                limit.spec(None),
                ["FIXED".to_owned(), expected[1].to_string(), expected[2].as_str().unwrap().to_owned()],
                "{row}"
            );
        }
        for text in table["refused"].as_array().unwrap() {
            let error = Limit::rate(text.as_str().unwrap()).unwrap_err();
            assert!(error.to_string().contains("100/minute"), "{text}");
        }
    }
}
