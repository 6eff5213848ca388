//! Values of the environment variables of envoyproxy/ratelimit, in the syntax of Go.

use crate::environment::Environment;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

/// Units of durations in nanoseconds, the longer names first.
const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
];

impl Environment {
    /// Returns `true` if the variable `RATELIMIT_GATEWAY_*` for this option is set.
    pub fn has_option(&self, option: &str) -> bool {
        let name = option.trim_start_matches('-').replace('-', "_").to_ascii_uppercase();
        self.text(&format!("RATELIMIT_GATEWAY_{name}")).is_some()
    }

    /// Returns `true` if a variable is set to a value other than false or zero.
    pub fn is_on(&self, variable: &str) -> bool {
        self.text(variable).is_some_and(|value| parse_flag(value) != Some(false))
    }

    /// Returns the value of a flag, which is off unless it is set.
    ///
    /// # Errors
    /// If the value is neither true nor false.
    pub fn flag(&self, variable: &str) -> Result<bool, String> {
        let Some(value) = self.text(variable) else { return Ok(false) };
        parse_flag(value).ok_or_else(|| format!("{variable}={}: must be true or false", value.escape_debug()))
    }

    /// Returns the address of a listener from the variables of its host and its port.
    ///
    /// # Errors
    /// If the host is not an IP address, or the port is not a number.
    pub fn address(&self, host: &str, port: &str, default: u16) -> Result<SocketAddr, String> {
        let number = self.text(port).map_or(Ok(default), str::parse);
        let number = number.map_err(|_| format!("{port}: must be a number up to 65535"))?;
        Ok(SocketAddr::new(listen_ip(host, self.text(host).unwrap_or("0.0.0.0"))?, number))
    }

    /// Returns a duration such as `1m30s` in the syntax of the gateway's options.
    ///
    /// # Errors
    /// If the duration is malformed.
    pub fn duration(&self, variable: &str) -> Result<Option<String>, String> {
        let Some(text) = self.text(variable) else { return Ok(None) };
        let nanoseconds = parse_duration(text).filter(|nanoseconds| *nanoseconds > 0);
        let nanoseconds = nanoseconds
            .ok_or_else(|| format!("{variable}={}: must be a duration such as 100ms or 10s", text.escape_debug()))?;
        Ok(Some(format!("{}us", nanoseconds.div_ceil(1000))))
    }

    /// Returns the level of log lines.
    ///
    /// # Errors
    /// If the level is unknown.
    pub fn log_level(&self) -> Result<Option<&'static str>, String> {
        let Some(text) = self.text("LOG_LEVEL") else { return Ok(None) };
        let level = match text.to_ascii_lowercase().as_str() {
            "panic" | "fatal" | "error" => "error",
            "warn" | "warning" => "warn",
            "info" => "info",
            "debug" => "debug",
            "trace" => "trace",
            _ => return Err(format!("LOG_LEVEL={}: must be such as info or warn", text.escape_debug())),
        };
        Ok(Some(level))
    }

    /// Returns `true` if a variable sets the folder with the files of limits, or a part of its path.
    pub fn has_configuration_folder(&self) -> bool {
        ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"].iter().any(|name| self.text(name).is_some())
    }

    /// Returns the folder with the files of limits.
    pub fn configuration_folder(&self) -> PathBuf {
        let root = PathBuf::from(self.text("RUNTIME_ROOT").unwrap_or("/srv/runtime_data/current"));
        let folder = self.text("RUNTIME_SUBDIRECTORY").map_or(root.clone(), |name| root.join(relative(name)));
        folder.join(relative(self.text("RUNTIME_APPDIRECTORY").unwrap_or("config")))
    }
}

/// Removes leading slashes, so that joining the name to a folder results in a path below the folder.
fn relative(name: &str) -> &str {
    name.trim_start_matches('/')
}

/// Parses the host of an address to listen at. An empty host means every address of the machine. Errors name the
/// variable.
pub fn listen_ip(variable: &str, host: &str) -> Result<IpAddr, String> {
    let unspecified = || match TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)) {
        Ok(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        Err(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
    };
    match host {
        "" => Ok(unspecified()),
        "localhost" => Ok(IpAddr::from(Ipv4Addr::LOCALHOST)),
        host => host.parse().map_err(|_| format!("{variable}: must be an IP address, such as 0.0.0.0")),
    }
}

fn parse_flag(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a sum of decimals with units, such as `1m30s` or `1.5s`. Returns nanoseconds.
fn parse_duration(text: &str) -> Option<u64> {
    let mut total = 0_u64;
    let mut rest = text;
    while !rest.is_empty() {
        let number_length = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, after) = rest.split_at(number_length);
        let (unit, nanoseconds) = UNITS.iter().find(|(unit, _)| {
            let end = after.strip_prefix(unit);
            end.is_some_and(|end| end.chars().next().is_none_or(|next| next.is_ascii_digit() || next == '.'))
        })?;
        total = total.checked_add(multiply(number, *nanoseconds)?)?;
        rest = after.strip_prefix(unit)?;
    }
    Some(total)
}

/// Multiplies a decimal by a unit in nanoseconds. Fractions of a nanosecond are dropped.
fn multiply(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut total = whole.checked_mul(unit)?;
    let mut digit_value = unit;
    for digit in fraction.chars() {
        digit_value /= 10;
        total = total.checked_add(digit_value.checked_mul(digit.to_digit(10)?.into())?)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::{parse_duration, parse_flag};

    #[test]
    fn durations_are_sums_of_decimals_with_units() {
        let cases = [("10s", 10_000_000_000), ("1m30s", 90_000_000_000), ("1.5s", 1_500_000_000), ("150us", 150_000)];
        for (text, nanoseconds) in cases {
            assert_eq!(parse_duration(text), Some(nanoseconds), "{text}");
        }
        for (text, nanoseconds) in [("2µs", 2000), (".5ms", 500_000), ("1h0.5m", 3_630_000_000_000), ("7ns", 7)] {
            assert_eq!(parse_duration(text), Some(nanoseconds), "{text}");
        }
        for text in ["10", "s", "1x", "1.2.3s", ".s", "-1s", "99999999999999h"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn flags_have_the_words_of_go() {
        assert_eq!(["1", "T", "true", "TRUE"].map(parse_flag), [Some(true); 4]);
        assert_eq!(["0", "f", "False"].map(parse_flag), [Some(false); 3]);
        assert_eq!(["yes", "tRUE", "2"].map(parse_flag), [None; 3]);
    }
}
