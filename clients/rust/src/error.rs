//! Errors of this crate.

use std::fmt;

/// Reason why there is no decision.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Outage: the server is unreachable, loading, or without a primary.
    Unavailable(String),
    /// Lack of room for the data of the call. Nothing was charged.
    Full(String),
    /// Misconfiguration, such as a wrong password. The text says what to do.
    Setup(String),
    /// Missing policy: none of the names exists. RL.POLICYSET sets one.
    NoPolicy(String),
    /// Malformed call.
    Call(String),
    /// Denied lease: all leases of the limit are held.
    Denied(String),
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Unavailable(why)
        | Self::Full(why)
        | Self::Setup(why)
        | Self::NoPolicy(why)
        | Self::Call(why)
        | Self::Denied(why)) = self;
        out.write_str(why)
    }
}

impl std::error::Error for Error {}
