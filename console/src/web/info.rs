//! Parsing of INFO: the sections of the module, of replication and of the server.

use super::text;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Admitted, denied, shadow-denied and banned calls a second.
pub type Rates = [f64; 4];

/// Rounds a rate to the digits that the page shows.
#[must_use]
pub fn rounded(rate: f64) -> f64 {
    (rate * 100.0).round() / 100.0
}

/// Numbers of calls by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All calls.
    pub calls: u64,
    /// Admitted calls.
    pub admitted: u64,
    /// Denied calls.
    pub denied: u64,
    /// Admitted calls with at least 80 % of a limit used.
    pub near: u64,
    /// Calls that a limit with SHADOW would have denied.
    pub shadow_denied: u64,
    /// Calls denied by a ban.
    pub banned: u64,
    /// Calls that repeated an idempotency key.
    pub repeated: u64,
}

impl Counts {
    /// Creates counts from names and numbers. Unknown names are skipped.
    pub fn from_fields<'a>(fields: impl IntoIterator<Item = (&'a str, u64)>) -> Counts {
        let mut counts = Counts::default();
        for (name, count) in fields {
            match name {
                "calls" => counts.calls = count,
                "admitted" => counts.admitted = count,
                "denied" => counts.denied = count,
                "near" => counts.near = count,
                "shadow_denied" => counts.shadow_denied = count,
                "banned" => counts.banned = count,
                "repeated" => counts.repeated = count,
                _ => {}
            }
        }
        counts
    }

    /// Returns the sum of these counts and others.
    #[must_use]
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            calls: self.calls.saturating_add(other.calls),
            admitted: self.admitted.saturating_add(other.admitted),
            denied: self.denied.saturating_add(other.denied),
            near: self.near.saturating_add(other.near),
            shadow_denied: self.shadow_denied.saturating_add(other.shadow_denied),
            banned: self.banned.saturating_add(other.banned),
            repeated: self.repeated.saturating_add(other.repeated),
        }
    }

    /// Returns the difference from earlier counts, or all counts if they are lower because the server has restarted.
    #[must_use]
    pub fn since(self, before: Counts) -> Counts {
        if self.calls < before.calls {
            return self;
        }
        Counts {
            calls: self.calls.saturating_sub(before.calls),
            admitted: self.admitted.saturating_sub(before.admitted),
            denied: self.denied.saturating_sub(before.denied),
            near: self.near.saturating_sub(before.near),
            shadow_denied: self.shadow_denied.saturating_sub(before.shadow_denied),
            banned: self.banned.saturating_sub(before.banned),
            repeated: self.repeated.saturating_sub(before.repeated),
        }
    }

    /// Returns the calls a second.
    #[must_use]
    pub fn rates(self, seconds: f64) -> Rates {
        [self.admitted, self.denied, self.shadow_denied, self.banned].map(|count| per_second(count, seconds))
    }

    /// Returns the counts as JSON.
    #[must_use]
    pub fn json(self) -> Value {
        json!({
            "calls": self.calls, "admitted": self.admitted, "denied": self.denied, "near": self.near,
            "shadow_denied": self.shadow_denied, "banned": self.banned, "repeated": self.repeated,
        })
    }
}

/// Returns the rate a second of a count in some seconds, with two decimals.
#[must_use]
pub fn per_second(count: u64, seconds: f64) -> f64 {
    // Counts of a minute are far below 2^52.
    #[allow(clippy::cast_precision_loss)]
    let rate = count as f64 / seconds.max(0.001);
    rounded(rate)
}

/// Key with waiting calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingKey {
    /// Name of the key, as text.
    pub key: String,
    /// Number of the database.
    pub db: u64,
    /// Number of waiting calls.
    pub calls: u64,
    /// Time for which the first of the calls has waited, in milliseconds.
    pub longest_ms: u64,
}

/// Replica, according to its primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Host and port.
    pub name: String,
    /// State of the replication, `online` after the first synchronization.
    pub state: String,
    /// Seconds since the primary heard from the replica.
    pub lag: u64,
    /// Number of bytes that the replica has not acknowledged.
    pub behind: u64,
}

/// State of a server according to INFO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerState {
    /// Version of the module, or `None` if the server lacks it.
    pub module: Option<String>,
    /// Version of the server.
    pub version: String,
    /// Time of the server's clock, in milliseconds since the Unix epoch.
    pub time_ms: Option<u64>,
    /// `true` for a replica.
    pub is_replica: bool,
    /// Counts of all calls.
    pub all: Counts,
    /// Number of calls that failed with an error.
    pub errors: u64,
    /// Number of policies.
    pub policies: u64,
    /// Digest of all policies.
    pub digest: String,
    /// Number of other primaries whose policies differ.
    pub differing_peers: u64,
    /// Counts of the policies that INFO lists, the most called ones, by their names as text.
    pub policy_counts: BTreeMap<String, Counts>,
    /// Number of waiting calls.
    pub waiting_calls: u64,
    /// Number of keys with waiting calls.
    pub waiting_keys: u64,
    /// Keys with the calls that have waited longest.
    pub waiting: Vec<WaitingKey>,
    pub replicas: Vec<Replica>,
}

impl ServerState {
    /// Parses the text of INFO.
    #[must_use]
    pub fn parse(info: &str) -> ServerState {
        let mut state = ServerState::default();
        let mut offset = 0;
        for line in info.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            let count = || value.parse().unwrap_or_default();
            match name {
                "ratelimit_version" => state.module = Some(value.to_owned()),
                "valkey_version" => value.clone_into(&mut state.version),
                "redis_version" if state.version.is_empty() => value.clone_into(&mut state.version),
                "server_time_usec" => state.time_ms = value.parse().ok().map(|micros: u64| micros / 1000),
                "role" => state.is_replica = value == "slave",
                "ratelimit_calls" => state.all.calls = count(),
                "ratelimit_admitted" => state.all.admitted = count(),
                "ratelimit_denied" => state.all.denied = count(),
                "ratelimit_errors" => state.errors = count(),
                "ratelimit_policies" => state.policies = count(),
                "ratelimit_policies_digest" => value.clone_into(&mut state.digest),
                "ratelimit_policy_peers_differ" => state.differing_peers = count(),
                "ratelimit_blocked_clients" => state.waiting_calls = count(),
                "ratelimit_blocked_keys" => state.waiting_keys = count(),
                "master_repl_offset" => offset = count(),
                _ if is_numbered(name, "ratelimit_policy_") => {
                    let fields = fields(value);
                    let numbers = fields.iter().filter_map(|(name, value)| Some((*name, value.parse().ok()?)));
                    state.policy_counts.insert(text_of(&fields, "name"), Counts::from_fields(numbers));
                }
                _ if is_numbered(name, "ratelimit_blocked_") => state.waiting.push(parse_waiting(&fields(value))),
                _ if is_numbered(name, "slave") => state.replicas.push(parse_replica(&fields(value))),
                _ => {}
            }
        }
        for replica in &mut state.replicas {
            // Until here, `behind` has the acknowledged offset.
            replica.behind = u64::saturating_sub(offset, replica.behind);
        }
        state
    }
}

/// Returns `true` if a name consists of a prefix and a number.
fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

fn fields(value: &str) -> BTreeMap<&str, &str> {
    value.split(',').filter_map(|field| field.split_once('=')).collect()
}

fn number(fields: &BTreeMap<&str, &str>, name: &str) -> u64 {
    fields.get(name).and_then(|value| value.parse().ok()).unwrap_or_default()
}

fn text_of(fields: &BTreeMap<&str, &str>, name: &str) -> String {
    let escaped = fields.get(name).copied().unwrap_or_default();
    text::from_bytes(&percent_encoding::percent_decode_str(escaped).collect::<Vec<u8>>())
}

fn parse_waiting(fields: &BTreeMap<&str, &str>) -> WaitingKey {
    WaitingKey {
        key: text_of(fields, "key"),
        db: number(fields, "db"),
        calls: number(fields, "waiting"),
        longest_ms: number(fields, "longest_ms"),
    }
}

fn parse_replica(fields: &BTreeMap<&str, &str>) -> Replica {
    let text = |name| fields.get(name).copied().unwrap_or_default();
    Replica {
        name: format!("{}:{}", text("ip"), text("port")),
        state: text("state").to_owned(),
        lag: number(fields, "lag"),
        behind: number(fields, "offset"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, Replica, ServerState, WaitingKey};

    #[test]
    fn info_is_parsed() {
        let state = ServerState::parse(
            "# ratelimit_module\r\nratelimit_version:0.1.0\r\nratelimit_calls:9\r\nratelimit_admitted:5\r\n\
             ratelimit_denied:3\r\nratelimit_errors:1\r\nratelimit_blocked_clients:2\r\nratelimit_blocked_keys:1\r\n\
             ratelimit_blocked_0:key=a%FF,db=3,waiting=2,longest_ms=70\r\nratelimit_policies:7\r\n\
             ratelimit_policies_digest:00ff\r\nratelimit_policy_peers_differ:1\r\nratelimit_policies_shown:1\r\n\
             ratelimit_policy_0:name=web%7Cuser,version=5,scale=0.5,scale_ms=-1,calls=8,admitted=4,denied=3,near=2\r\n\
             redis_version:7.2.4\r\nvalkey_version:9.1.2\r\nserver_time_usec:1700000000123999\r\nrole:master\r\nmaster_repl_offset:100\r\n\
             slave0:ip=::1,port=7001,state=online,offset=90,lag=1\r\nslave_read_only:1\r\n",
        );
        let counts = Counts { calls: 8, admitted: 4, denied: 3, near: 2, ..Counts::default() };
        assert_eq!(state.policy_counts.into_iter().collect::<Vec<_>>(), [("web|user".to_owned(), counts)]);
        assert_eq!(state.all, Counts { calls: 9, admitted: 5, denied: 3, ..Counts::default() });
        let waiting = WaitingKey { key: "a\\xff".to_owned(), db: 3, calls: 2, longest_ms: 70 };
        assert_eq!(state.waiting, [waiting]);
        let replica = Replica { name: "::1:7001".to_owned(), state: "online".to_owned(), lag: 1, behind: 10 };
        assert_eq!(state.replicas, [replica]);
        assert_eq!((state.version.as_str(), state.digest.as_str(), state.differing_peers), ("9.1.2", "00ff", 1));
        assert_eq!(state.time_ms, Some(1_700_000_000_123));
        assert_eq!((state.errors, state.policies, state.waiting_calls, state.waiting_keys), (1, 7, 2, 1));
    }

    #[test]
    fn counts_after_a_restart_are_not_subtracted() {
        let counts = |calls, admitted| Counts { calls, admitted, ..Counts::default() };
        assert_eq!(counts(9, 7).since(counts(4, 3)), counts(5, 4));
        assert_eq!(counts(2, 1).since(counts(4, 3)), counts(2, 1));
    }
}
