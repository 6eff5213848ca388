//! The clock of fencing tokens: each token is larger than all that this server has made or seen.
//!
//! It is a hybrid clock: the microseconds that the server's clock shows, or one more than the last token if that is
//! later. What others made is seen in effects, in keys that are loaded or restored, and in the record of the last one,
//! which lasts beside the policies. So tokens grow over the deletion of a key, a restart and a failover.

use ratelimit_core::Timestamp;
use ratelimit_core::algorithm::leases::Token;
use ratelimit_core::policy::{Horizon, Stamp};
use std::cell::Cell;

/// What a record of the last token begins with: its kind, and its form.
const HEADING: &[u8] = b"rl-fence 1 ";

/// The last token that this server has made or seen.
#[derive(Debug, Default)]
pub struct Fencing {
    last: Cell<u64>,
}

impl Fencing {
    /// The next token.
    pub fn next(&self, now: Timestamp) -> Option<Token> {
        let next = now.micros().max(self.last.get().saturating_add(1)).min(Timestamp::MAX.micros());
        self.last.set(next);
        Token::new(next)
    }

    /// Sees a token that another server made. Of a client, one that is further ahead than a day is not believed: else
    /// whoever restores a key could move the clock of tokens to its end.
    pub fn see(&self, token: u64, is_trusted: bool, now: Timestamp) {
        if is_trusted || Horizon::of(now).covers(Stamp { at: token, node: 0 }) {
            self.last.set(self.last.get().max(token));
        }
    }

    /// The record of the last token, once there has been one.
    pub fn record(&self) -> Option<Vec<u8>> {
        let last = self.last.get();
        (last > 0).then(|| [HEADING, last.to_string().as_bytes()].concat())
    }

    /// The last token that a record tells, if it is one.
    pub fn read(record: &[u8]) -> Option<u64> {
        let digits = record.strip_prefix(HEADING)?;
        let last = ratelimit_core::wire::args::whole(digits, Timestamp::MAX.micros())?;
        (last > 0 && last.to_string().as_bytes() == digits).then_some(last)
    }
}
