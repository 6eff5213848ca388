//! Classification of the server's error replies by cause, with remedies. The packages for other languages have the same
//! table; `clients/replies.json` tests all of them.

use crate::error::Error;

/// Cause of an error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Outage,
    /// Malformed call.
    Caller,
    /// Misconfiguration.
    Operator,
    /// Lack of room on the server, or for the key.
    Full,
}

const PASSWORD: &str = "give the connection its user and password, as in redis://user:password@host";
const NO_PASSWORD: &str = "the server has no password for this user: leave it out of the URL";
const PERMISSION: &str = "let the connection's user run this command on these keys, by ACL SETUSER";
const PROTECTED: &str = "the server is in protected mode: give it a password";
const MODULE: &str = "the redis-ratelimit module is not loaded: start the server with \
    --loadmodule /path/to/libredis_ratelimit.so policies yes";
const TYPE: &str =
    "the key was made by something else or under another algorithm: give the limit another key, or delete this one";
const TAG: &str = "give the keys of one call one tag, as in {acme}:user and {acme}:all";
const CLUSTER: &str = "this server is a node of a cluster: use a client for clusters";
const NO_CLUSTER: &str = "this server is no cluster: use a client for one server";
const DATABASE: &str = "choose another database in the URL";

/// Prefixes of replies, with the cause and a remedy. The first prefix that matches applies.
const TABLE: &[(&str, Cause, &str)] = &[
    ("LOADING ", Cause::Outage, ""),
    ("BUSY ", Cause::Outage, ""),
    ("MASTERDOWN ", Cause::Outage, ""),
    ("CLUSTERDOWN ", Cause::Outage, ""),
    ("TRYAGAIN ", Cause::Outage, ""),
    ("READONLY ", Cause::Outage, ""),
    ("REDIRECT ", Cause::Outage, ""),
    ("NOREPLICAS ", Cause::Outage, ""),
    ("MISCONF ", Cause::Outage, ""),
    ("UNBLOCKED ", Cause::Outage, ""),
    ("ERR max number of clients", Cause::Outage, ""),
    ("ERR internal error in module", Cause::Outage, ""),
    ("NOAUTH ", Cause::Operator, PASSWORD),
    ("WRONGPASS ", Cause::Operator, PASSWORD),
    ("ERR invalid password", Cause::Operator, PASSWORD),
    ("ERR AUTH ", Cause::Operator, NO_PASSWORD),
    ("ERR Client sent AUTH", Cause::Operator, NO_PASSWORD),
    ("NOPERM ", Cause::Operator, PERMISSION),
    ("DENIED ", Cause::Operator, PROTECTED),
    ("ERR unknown command", Cause::Operator, MODULE),
    ("WRONGTYPE ", Cause::Operator, TYPE),
    ("CROSSSLOT ", Cause::Operator, TAG),
    ("NOPOLICY ", Cause::Operator, "set it, by RL.POLICYSET"),
    ("MOVED ", Cause::Operator, CLUSTER),
    ("ASK ", Cause::Operator, CLUSTER),
    ("ERR This instance has cluster support disabled", Cause::Operator, NO_CLUSTER),
    ("ERR DB index is out of range", Cause::Operator, DATABASE),
    ("ERR invalid DB index", Cause::Operator, DATABASE),
    ("ERR SELECT is not allowed in cluster mode", Cause::Operator, DATABASE),
    ("ERR this server keeps policies only if", Cause::Operator, ""),
    ("ERR the policy was set by a later version", Cause::Operator, "update the module of this server"),
    ("ERR the policy already has the highest", Cause::Operator, ""),
    ("OOM ", Cause::Full, "give the server more memory, by maxmemory"),
    ("ERR the key has ", Cause::Full, ""),
    ("ERR there are ", Cause::Full, ""),
];

pub(crate) fn cause_of(reply: &str) -> (Cause, &'static str) {
    let row = TABLE.iter().find(|(prefix, ..)| reply.starts_with(prefix));
    // The module's errors about malformed calls begin with ERR. Other codes are unknown.
    let unknown = if reply.starts_with("ERR ") { Cause::Caller } else { Cause::Operator };
    row.map_or((unknown, ""), |&(_, cause, remedy)| (cause, remedy))
}

/// Returns an error reply as an error of this crate, with its remedy.
pub(crate) fn to_error(reply: &str) -> Error {
    let (cause, remedy) = cause_of(reply);
    // The reply to an unknown command is left out, because it merely repeats the command.
    let text = if remedy == MODULE { "" } else { reply.trim_start_matches("ERR ").trim_end_matches('.') };
    let why = [text, remedy].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
    match cause {
        Cause::Outage => Error::Unavailable(why),
        Cause::Caller => Error::Call(why),
        Cause::Operator if reply.starts_with("NOPOLICY ") => Error::NoPolicy(why),
        Cause::Operator => Error::Setup(why),
        Cause::Full => Error::Full(why),
    }
}

/// Returns the server's error reply as it was sent, or `None` for an error of the connection.
pub(crate) fn reply_of(error: &redis::RedisError) -> Option<String> {
    let code = error.code()?;
    Some(error.detail().map_or_else(|| code.to_owned(), |detail| format!("{code} {detail}")))
}

/// Returns `true` if there was no room for the idempotency key, so that the call may pass without it.
pub(crate) fn may_pass_without_id(reply: &str) -> bool {
    reply.starts_with("OOM ")
        || (reply.starts_with("ERR the key has ") && reply.contains(" entries, as many as ratelimit.max-ids "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reply_has_the_cause_of_the_table() {
        let table: serde_json::Value = serde_json::from_str(include_str!("../../replies.json")).unwrap();
        let rows = table.as_array().unwrap();
        assert!(rows.len() > 30);
        for row in rows {
            let reply = row["reply"].as_str().unwrap();
            let cause = match row["kind"].as_str().unwrap() {
                "outage" => Cause::Outage,
                "operator" => Cause::Operator,
                "full" => Cause::Full,
                _ => Cause::Caller,
            };
            assert_eq!(cause_of(reply).0, cause, "{reply}");
            if let Some(passes) = row.get("passesWithoutId") {
                assert_eq!(may_pass_without_id(reply), passes.as_bool().unwrap(), "{reply}");
            }
        }
    }
}
