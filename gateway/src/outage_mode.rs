//! Mode of `--on-outage`.

use std::fmt;
use std::str::FromStr;

/// Answer to requests while the server is away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OutageMode {
    /// Requests pass.
    Open,
    /// Requests are denied.
    Closed,
    /// Requests are answered with an error, so that the proxy decides.
    Error,
    /// The gateway itself grants this share of each limit. Requests under limits that it does not know pass.
    Local(f64),
}

impl fmt::Display for OutageMode {
    /// Writes the mode as a value of `--on-outage`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutageMode::Open => f.write_str("open"),
            OutageMode::Closed => f.write_str("closed"),
            OutageMode::Error => f.write_str("error"),
            OutageMode::Local(share) => write!(f, "local={share}"),
        }
    }
}

impl FromStr for OutageMode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<OutageMode, &'static str> {
        let share = || text.strip_prefix("local=")?.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
        match text {
            "open" => Ok(OutageMode::Open),
            "closed" => Ok(OutageMode::Closed),
            "error" => Ok(OutageMode::Error),
            _ => share().map(OutageMode::Local).ok_or("must be open, closed, error, or local=0.25 (up to 1)"),
        }
    }
}
