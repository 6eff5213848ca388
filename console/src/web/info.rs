//! What INFO of the module and of replication says, read.

use super::text;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What calls under a policy came to, on one server since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub calls: u64,
    /// Those that were charged.
    pub admitted: u64,
    /// Those that were denied.
    pub denied: u64,
    /// Those that were admitted with 80 % used.
    pub near: u64,
    /// Those that a limit with SHADOW would have denied.
    pub shadow_denied: u64,
    /// Those that a ban denied.
    pub banned: u64,
    /// Those that had been charged before.
    pub repeated: u64,
}

impl Counts {
    /// Of names and numbers; names that are none of them are passed over.
    pub fn of<'a>(fields: impl IntoIterator<Item = (&'a str, u64)>) -> Counts {
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

    /// Both together.
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

    /// What has come since `before`. Counts that are less than then have begun anew: the server has.
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

    /// As JSON.
    #[must_use]
    pub fn json(self) -> Value {
        json!({
            "calls": self.calls, "admitted": self.admitted, "denied": self.denied, "near": self.near,
            "shadow_denied": self.shadow_denied, "banned": self.banned, "repeated": self.repeated,
        })
    }
}

/// A key that calls wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its name, as text.
    pub key: String,
    /// Its database.
    pub db: u64,
    /// How many calls wait.
    pub calls: u64,
    /// How long the first of them has waited, in milliseconds.
    pub longest_ms: u64,
}

/// A replica, as its primary knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its host and port.
    pub name: String,
    /// Whether it is up to date but for its lag, `online`.
    pub state: String,
    /// Seconds since the primary heard from it.
    pub lag: u64,
    /// The bytes that it has not confirmed.
    pub behind: u64,
}

/// What a server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerState {
    /// The version of the module; none if the server has none.
    pub module: Option<String>,
    /// The version of the server.
    pub version: String,
    /// What its clock shows, in milliseconds since 1970.
    pub time_ms: Option<u64>,
    /// Whether it is a replica.
    pub is_replica: bool,
    /// All calls, admitted, denied.
    pub all: Counts,
    /// Calls that got an error.
    pub errors: u64,
    /// How many policies there are.
    pub policies: u64,
    /// Of all policies.
    pub digest: String,
    /// How many of the other primaries have others.
    pub differ: u64,
    /// The policies that were called most, by their names as text.
    pub shown: BTreeMap<String, Counts>,
    /// How many calls wait.
    pub waiting_calls: u64,
    /// For how many keys.
    pub waiting_keys: u64,
    /// Those of them that waited longest.
    pub waiting: Vec<Waiting>,
    /// Its replicas.
    pub replicas: Vec<Replica>,
}

impl ServerState {
    /// Of INFO's text.
    #[must_use]
    pub fn read(info: &str) -> ServerState {
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
                "ratelimit_policy_peers_differ" => state.differ = count(),
                "ratelimit_blocked_clients" => state.waiting_calls = count(),
                "ratelimit_blocked_keys" => state.waiting_keys = count(),
                "master_repl_offset" => offset = count(),
                _ if numbered(name, "ratelimit_policy_") => {
                    let fields = fields(value);
                    let numbers = fields.iter().filter_map(|(name, value)| Some((*name, value.parse().ok()?)));
                    state.shown.insert(text_of(&fields, "name"), Counts::of(numbers));
                }
                _ if numbered(name, "ratelimit_blocked_") => state.waiting.push(waiting(&fields(value))),
                _ if numbered(name, "slave") => state.replicas.push(replica(&fields(value))),
                _ => {}
            }
        }
        for replica in &mut state.replicas {
            // Until here it held what was confirmed.
            replica.behind = u64::saturating_sub(offset, replica.behind);
        }
        state
    }
}

fn numbered(name: &str, start: &str) -> bool {
    name.strip_prefix(start).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

fn fields(value: &str) -> BTreeMap<&str, &str> {
    value.split(',').filter_map(|field| field.split_once('=')).collect()
}

fn number(fields: &BTreeMap<&str, &str>, name: &str) -> u64 {
    fields.get(name).and_then(|value| value.parse().ok()).unwrap_or_default()
}

fn text_of(fields: &BTreeMap<&str, &str>, name: &str) -> String {
    let escaped = fields.get(name).copied().unwrap_or_default();
    text::shown(&percent_encoding::percent_decode_str(escaped).collect::<Vec<u8>>())
}

fn waiting(fields: &BTreeMap<&str, &str>) -> Waiting {
    Waiting {
        key: text_of(fields, "key"),
        db: number(fields, "db"),
        calls: number(fields, "waiting"),
        longest_ms: number(fields, "longest_ms"),
    }
}

fn replica(fields: &BTreeMap<&str, &str>) -> Replica {
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
    use super::{Counts, Replica, ServerState, Waiting};

    #[test]
    fn what_a_server_says_is_read() {
        let state = ServerState::read(
            "# ratelimit_module\r\nratelimit_version:0.1.0\r\nratelimit_calls:9\r\nratelimit_admitted:5\r\n\
             ratelimit_denied:3\r\nratelimit_errors:1\r\nratelimit_blocked_clients:2\r\nratelimit_blocked_keys:1\r\n\
             ratelimit_blocked_0:key=a%FF,db=3,waiting=2,longest_ms=70\r\nratelimit_policies:7\r\n\
             ratelimit_policies_digest:00ff\r\nratelimit_policy_peers_differ:1\r\nratelimit_policies_shown:1\r\n\
             ratelimit_policy_0:name=web%7Cuser,version=5,scale=0.5,scale_ms=-1,calls=8,admitted=4,denied=3,near=2\r\n\
             redis_version:7.2.4\r\nvalkey_version:9.1.2\r\nserver_time_usec:1700000000123999\r\nrole:master\r\nmaster_repl_offset:100\r\n\
             slave0:ip=::1,port=7001,state=online,offset=90,lag=1\r\nslave_read_only:1\r\n",
        );
        let counts = Counts { calls: 8, admitted: 4, denied: 3, near: 2, ..Counts::default() };
        assert_eq!(state.shown.into_iter().collect::<Vec<_>>(), [("web|user".to_owned(), counts)]);
        assert_eq!(state.all, Counts { calls: 9, admitted: 5, denied: 3, ..Counts::default() });
        let waiting = Waiting { key: "a\\xff".to_owned(), db: 3, calls: 2, longest_ms: 70 };
        assert_eq!(state.waiting, [waiting]);
        let replica = Replica { name: "::1:7001".to_owned(), state: "online".to_owned(), lag: 1, behind: 10 };
        assert_eq!(state.replicas, [replica]);
        assert_eq!((state.version.as_str(), state.digest.as_str(), state.differ), ("9.1.2", "00ff", 1));
        assert_eq!(state.time_ms, Some(1_700_000_000_123));
        assert_eq!((state.errors, state.policies, state.waiting_calls, state.waiting_keys), (1, 7, 2, 1));
    }

    #[test]
    fn counts_that_begin_anew_count_from_there() {
        let counts = |calls, admitted| Counts { calls, admitted, ..Counts::default() };
        assert_eq!(counts(9, 7).since(counts(4, 3)), counts(5, 4));
        assert_eq!(counts(2, 1).since(counts(4, 3)), counts(2, 1));
    }
}
