//! List of changes: each change that a console made is logged, and appended to a stream on the server, so that all
//! consoles of a server show the same list after a restart, too. The stream has the last [`MAX_CHANGES`].

use super::audit::Actor;
use super::failure::Failure;
use super::reply_json::{items, text_of};
use super::text;
use super::upstream::Server;
use redis::Value;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::fmt;

/// Key of the stream.
const STREAM: &str = "ratelimit:console:changes";
/// Maximum number of changes in the stream.
pub const MAX_CHANGES: usize = 1000;
/// Maximum length of a note, in characters.
const MAX_NOTE: usize = 500;
/// Maximum length of the name of a key in the list, in bytes. A change of a longer one is listed without a name.
const MAX_KEY: usize = 4096;

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Policy that was set, new or in place of another version.
    #[serde(rename = "policy set")]
    PolicySet,
    /// Deleted policy.
    #[serde(rename = "policy deleted")]
    PolicyDeleted,
    /// Policy with another scale.
    #[serde(rename = "policy scaled")]
    PolicyScaled,
    /// Banned key.
    #[serde(rename = "key banned")]
    KeyBanned,
    /// Key with a lifted ban.
    #[serde(rename = "ban lifted")]
    BanLifted,
    /// Deleted key.
    #[serde(rename = "key reset")]
    KeyReset,
    /// Key with returned units.
    #[serde(rename = "usage given back")]
    UsageGivenBack,
}

impl fmt::Display for Kind {
    /// Writes the word that stands for the kind in JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Values of a policy or a key before or after a change, as far as the change concerns them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Values {
    /// Limits of a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub specs: Option<String>,
    /// Version of a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Scale of a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// Milliseconds until the end of the scale, at the time of the change, or -1 without an end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_ms: Option<i64>,
    /// End of a ban, in milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub banned_until: Option<i64>,
    /// Kinds and usage of the components of a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Json>,
    /// Remaining units of each limit of a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<Json>,
    /// Returned units.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amount: Option<f64>,
}

/// Change of a policy or of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Change {
    /// Kind of the change.
    pub what: Kind,
    /// Name of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Name of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Values before the change, or `None` if there were none.
    pub before: Option<Values>,
    /// Values after the change, or `None` if there are none.
    pub after: Option<Values>,
    /// Name of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Address of the client.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    /// Note of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Id of the change that this one undoes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<String>,
}

/// Change with its id in the stream, which begins with the time of the server's clock.
pub struct ListedChange {
    /// Id of the entry.
    pub id: String,
    /// Time of the change, in milliseconds since the Unix epoch.
    pub at: i64,
    /// The change.
    pub change: Change,
}

/// Note on a change, of at most [`MAX_NOTE`] characters. An empty one counts as none.
#[derive(Default, Deserialize)]
#[serde(try_from = "String")]
pub struct Note(Option<String>);

impl TryFrom<String> for Note {
    type Error = String;

    fn try_from(text: String) -> Result<Note, String> {
        let text = text.trim();
        if text.chars().count() > MAX_NOTE {
            return Err(format!("why must have at most {MAX_NOTE} characters"));
        }
        Ok(Note((!text.is_empty()).then(|| text.to_owned())))
    }
}

impl Change {
    /// Creates a change of a policy.
    #[must_use]
    pub fn of_policy(what: Kind, name: &[u8], before: Option<Values>, after: Option<Values>) -> Change {
        let policy = Some(text::from_bytes(name));
        Change { what, policy, key: None, before, after, user: None, who: String::new(), why: None, undoes: None }
    }

    /// Creates a change of a key.
    #[must_use]
    pub fn of_key(what: Kind, key: &[u8], before: Option<Values>, after: Option<Values>) -> Change {
        Change { policy: None, key: Some(text::from_bytes(key)), ..Change::of_policy(what, &[], before, after) }
    }

    /// Logs the change, and appends it to the list. If the server refuses the entry, the change itself remains.
    pub async fn record(mut self, server: &Server, actor: &Actor, note: Note) {
        self.user = actor.name.as_deref().map(str::to_owned);
        self.who = actor.to_string();
        self.why = note.0;
        let json = |values: &Option<Values>| serde_json::to_string(values).unwrap_or_default();
        tracing::info!(
            target: "ratelimit_console::audit", user = self.user, who = %self.who, role = actor.role.word(),
            change = self.what.to_string(), name = self.policy, key = self.key, before = %json(&self.before),
            after = %json(&self.after), why = self.why, undoes = self.undoes
        );
        self.key = self.key.filter(|key| key.len() <= MAX_KEY);
        let mut command = redis::cmd("XADD");
        command.arg(STREAM).arg("MAXLEN").arg("=").arg(MAX_CHANGES).arg("*").arg("change");
        command.arg(serde_json::to_vec(&self).unwrap_or_default());
        if let Err(failure) = server.send_by_key(command).await {
            tracing::warn!(error = failure.message(), "the list of changes lacks this change");
        }
    }
}

/// Returns the last changes, the newest first.
///
/// # Errors
/// If the server does not reply, or does not let the console's user read the list.
pub async fn read(server: &Server, count: usize) -> Result<Vec<ListedChange>, Failure> {
    let mut command = redis::cmd("XREVRANGE");
    command.arg(STREAM).arg("+").arg("-").arg("COUNT").arg(count);
    Ok(items(&server.send_by_key(command).await?).iter().filter_map(parse).collect())
}

/// Returns a change by its id.
///
/// # Errors
/// Returns the errors of [`read`], and an error if the list has no change with this id.
pub async fn find(server: &Server, id: &str) -> Result<ListedChange, Failure> {
    let mut command = redis::cmd("XRANGE");
    command.arg(STREAM).arg(id).arg(id);
    let found = items(&server.send_by_key(command).await?).first().and_then(parse);
    found.ok_or_else(|| Failure::Missing("the list of changes does not have this one".to_owned()))
}

/// Parses an entry of the stream. Entries of other programs are skipped.
fn parse(entry: &Value) -> Option<ListedChange> {
    let [id, fields] = items(entry) else { return None };
    let [_, Value::BulkString(change)] = items(fields) else { return None };
    let id = text_of(id)?;
    let at = id.split_once('-')?.0.parse().ok()?;
    Some(ListedChange { id, at, change: serde_json::from_slice(change).ok()? })
}

#[cfg(test)]
mod tests {
    use super::{Change, Kind, Note, Value, Values, parse};

    #[test]
    fn entry_is_parsed_and_malformed_ones_are_skipped() {
        let values = Values { specs: Some("FIXED 5 1m".to_owned()), version: Some(7), ..Values::default() };
        let change = Change::of_policy(Kind::PolicySet, b"\\x41\xff", None, Some(values));
        let text = |text: &[u8]| Value::BulkString(text.to_vec());
        let entry =
            |json: &[u8]| Value::Array(vec![text(b"1700000000000-3"), Value::Array(vec![text(b"change"), text(json)])]);
        let json = serde_json::to_vec(&change).expect("serializable");
        let listed = parse(&entry(&json)).expect("an entry");
        assert_eq!((listed.id.as_str(), listed.at), ("1700000000000-3", 1_700_000_000_000));
        assert_eq!((listed.change.policy, listed.change.after), (change.policy, change.after));
        assert!(
            [&b"{}"[..], b"\xff", br#"{"what":"?","before":null}"#].iter().all(|json| parse(&entry(json)).is_none())
        );
    }

    #[test]
    fn kind_is_displayed_as_in_json() {
        for kind in [
            Kind::PolicySet,
            Kind::PolicyDeleted,
            Kind::PolicyScaled,
            Kind::KeyBanned,
            Kind::BanLifted,
            Kind::KeyReset,
            Kind::UsageGivenBack,
        ] {
            assert_eq!(serde_json::to_value(kind).expect("serializable"), kind.to_string());
        }
    }

    #[test]
    fn note_is_trimmed_and_bounded() {
        let note = |text: &str| Note::try_from(text.to_owned()).map(|note| note.0);
        assert_eq!(note(" a flood \n"), Ok(Some("a flood".to_owned())));
        assert_eq!(note("  "), Ok(None));
        assert!(note(&"\u{e9}".repeat(500)).is_ok() && note(&"x".repeat(501)).is_err());
    }
}
