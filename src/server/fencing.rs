//! Clock of fencing tokens: each token is larger than all that this server has issued or seen.
//!
//! It is a hybrid clock: a token is the server's time in microseconds, or the last token plus one if that is larger.
//! Tokens of other servers are seen in effects, in keys that are loaded or restored, and in the record of the last
//! token, which is stored with the policies. So tokens increase across the deletion of a key, a restart and a failover.

use ratelimit_core::Timestamp;
use ratelimit_core::algorithm::leases::Token;
use ratelimit_core::policy::{Horizon, Stamp};
use std::cell::Cell;

/// Prefix of a record of the last token: its kind and format version.
const HEADING: &[u8] = b"rl-fence 1 ";

/// Last token that this server has issued or seen.
#[derive(Debug, Default)]
pub struct Fencing {
    last: Cell<u64>,
}

impl Fencing {
    /// Returns the next token.
    pub fn next(&self, now: Timestamp) -> Option<Token> {
        let next = now.micros().max(self.last.get().saturating_add(1)).min(Timestamp::MAX.micros());
        self.last.set(next);
        Token::new(next)
    }

    /// Records a token of another server. An untrusted token that is more than a day ahead is ignored: otherwise a
    /// client that restores a key could advance the clock of tokens to its maximum.
    pub fn observe(&self, token: u64, is_trusted: bool, now: Timestamp) {
        if is_trusted || Horizon::of(now).covers(Stamp { at: token, node: 0 }) {
            self.last.set(self.last.get().max(token));
        }
    }

    /// Returns the record of the last token; `None` before the first.
    pub fn record(&self) -> Option<Vec<u8>> {
        let last = self.last.get();
        (last > 0).then(|| [HEADING, last.to_string().as_bytes()].concat())
    }

    /// Parses a record of the last token; returns `None` for any other record.
    pub fn parse(record: &[u8]) -> Option<u64> {
        let digits = record.strip_prefix(HEADING)?;
        let last = ratelimit_core::wire::args::whole(digits, Timestamp::MAX.micros())?;
        (last > 0 && last.to_string().as_bytes() == digits).then_some(last)
    }
}
