//! What an error reply of the server means: whose it is to mend, and what to do. The packages for Python and Node.js
//! have this table too, and `clients/replies.json` holds all of them to it.

use crate::error::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Outage,
    Caller,
    Operator,
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

/// The first row that the reply begins with rules.
const TABLE: &[(&str, Kind, &str)] = &[
    ("LOADING ", Kind::Outage, ""),
    ("BUSY ", Kind::Outage, ""),
    ("MASTERDOWN ", Kind::Outage, ""),
    ("CLUSTERDOWN ", Kind::Outage, ""),
    ("TRYAGAIN ", Kind::Outage, ""),
    ("READONLY ", Kind::Outage, ""),
    ("REDIRECT ", Kind::Outage, ""),
    ("NOREPLICAS ", Kind::Outage, ""),
    ("MISCONF ", Kind::Outage, ""),
    ("UNBLOCKED ", Kind::Outage, ""),
    ("ERR max number of clients", Kind::Outage, ""),
    ("ERR internal error in module", Kind::Outage, ""),
    ("NOAUTH ", Kind::Operator, PASSWORD),
    ("WRONGPASS ", Kind::Operator, PASSWORD),
    ("ERR invalid password", Kind::Operator, PASSWORD),
    ("ERR AUTH ", Kind::Operator, NO_PASSWORD),
    ("ERR Client sent AUTH", Kind::Operator, NO_PASSWORD),
    ("NOPERM ", Kind::Operator, PERMISSION),
    ("DENIED ", Kind::Operator, PROTECTED),
    ("ERR unknown command", Kind::Operator, MODULE),
    ("WRONGTYPE ", Kind::Operator, TYPE),
    ("CROSSSLOT ", Kind::Operator, TAG),
    ("NOPOLICY ", Kind::Operator, "set it, by RL.POLICYSET"),
    ("MOVED ", Kind::Operator, CLUSTER),
    ("ASK ", Kind::Operator, CLUSTER),
    ("ERR This instance has cluster support disabled", Kind::Operator, NO_CLUSTER),
    ("ERR DB index is out of range", Kind::Operator, DATABASE),
    ("ERR invalid DB index", Kind::Operator, DATABASE),
    ("ERR SELECT is not allowed in cluster mode", Kind::Operator, DATABASE),
    ("ERR this server keeps policies only if", Kind::Operator, ""),
    ("ERR the policy was set by a later version", Kind::Operator, "update the module of this server"),
    ("ERR the policy already has the highest", Kind::Operator, ""),
    ("OOM ", Kind::Full, "give the server more memory, by maxmemory"),
    ("ERR the key has ", Kind::Full, ""),
    ("ERR there are ", Kind::Full, ""),
];

pub(crate) fn kind_of(reply: &str) -> (Kind, &'static str) {
    let row = TABLE.iter().find(|(begins, ..)| reply.starts_with(begins));
    // The module's own, of the words of a call; or a code that nobody has told us of.
    let unknown = if reply.starts_with("ERR ") { Kind::Caller } else { Kind::Operator };
    row.map_or((unknown, ""), |&(_, kind, remedy)| (kind, remedy))
}

/// In the words of whoever has to do something about it.
pub(crate) fn explained(reply: &str) -> Error {
    let (kind, remedy) = kind_of(reply);
    // What was sent is in the reply to an unknown command, and is of no help.
    let said = if remedy == MODULE { "" } else { reply.trim_start_matches("ERR ").trim_end_matches('.') };
    let why = [said, remedy].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
    match kind {
        Kind::Outage => Error::Unavailable(why),
        Kind::Caller => Error::Call(why),
        Kind::Operator if reply.starts_with("NOPOLICY ") => Error::NoPolicy(why),
        Kind::Operator => Error::Setup(why),
        Kind::Full => Error::Full(why),
    }
}

/// The server's reply, as it was sent; None if the error is of the connection.
pub(crate) fn reply_of(error: &redis::RedisError) -> Option<String> {
    let code = error.code()?;
    Some(error.detail().map_or_else(|| code.to_owned(), |detail| format!("{code} {detail}")))
}

/// Whether a call that there is no room for may be in order but for its idempotency key.
pub(crate) fn may_pass_without_id(reply: &str) -> bool {
    reply.starts_with("OOM ")
        || (reply.starts_with("ERR the key has ") && reply.contains(" entries, as many as ratelimit.max-ids "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reply_means_what_it_means_to_the_other_packages() {
        let table: serde_json::Value = serde_json::from_str(include_str!("../../replies.json")).unwrap();
        let rows = table.as_array().unwrap();
        assert!(rows.len() > 30);
        for row in rows {
            let reply = row["reply"].as_str().unwrap();
            let kind = match row["kind"].as_str().unwrap() {
                "outage" => Kind::Outage,
                "operator" => Kind::Operator,
                "full" => Kind::Full,
                _ => Kind::Caller,
            };
            assert_eq!(kind_of(reply).0, kind, "{reply}");
            if let Some(passes) = row.get("passesWithoutId") {
                assert_eq!(may_pass_without_id(reply), passes.as_bool().unwrap(), "{reply}");
            }
        }
    }
}
