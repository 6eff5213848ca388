//! What can go wrong, by whose it is to mend.

use std::fmt;

/// Why there is no decision.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server cannot decide at the moment: it is away, is loading, or has no primary.
    Unavailable(String),
    /// There is no room for what the call would store. Nothing was charged.
    Full(String),
    /// Something is set up in a way that cannot work, such as a wrong password. It says what to do.
    Setup(String),
    /// The server has none of the policies that a call names: RL.POLICYSET sets one.
    NoPolicy(String),
    /// The call is wrong as it is.
    Call(String),
    /// There was no lease to be had, or it could not be renewed in time.
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
