//! Names of policies and of keys, derived from the descriptors of Envoy's rate limit requests.

use crate::client_address::{self, Ipv6Prefix};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt::Write as _;

/// Maximum length of a policy's name in bytes, as the server accepts it.
pub const MAX_POLICY_NAME: usize = 256;
/// Prefix of the keys of descriptors.
const KEY_PREFIX: &str = "rl:";
/// Maximum length of a key in bytes. Longer keys are shortened with a hash.
const MAX_KEY: usize = 256;
/// Maximum length of an idempotency key in bytes. Longer keys are shortened with a hash.
const MAX_ID: usize = 200;
/// Number of bytes at the beginning of a text that shortening keeps.
const READABLE_PREFIX: usize = 192;

/// Replaces the characters that have a meaning in names and keys (`% | = * { } ~`), spaces and control bytes by `%XX`.
///
/// Text from a request can therefore neither end a part of a name early nor add a hash tag, which would put many keys
/// in one slot of a cluster.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_special) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    write_escaped(text, is_special, &mut out);
    out.into()
}

fn write_escaped(text: &str, is_special: impl Fn(char) -> bool, out: &mut String) {
    for character in text.chars() {
        if is_special(character) {
            // Writing to a string never fails.
            let _ = write!(out, "%{:02X}", u32::from(character));
        } else {
            out.push(character);
        }
    }
}

/// Returns `true` if a character is escaped in names and keys.
fn is_special(character: char) -> bool {
    matches!(character, '%' | '|' | '=' | '*' | '{' | '}' | '~' | '\0'..=' ' | '\x7f')
}

/// Returns `true` if a character can separate two fields of a key template, because the value of a field never contains
/// it unescaped.
#[must_use]
pub fn is_separator(character: char) -> bool {
    character == ':' || (is_special(character) && character != '%')
}

/// Escapes the value of a field of a key template: the characters that [`escape`] replaces, `:`, which separates
/// fields, and each byte that is not UTF-8. Different values have different results.
#[must_use]
pub fn escape_field(value: &[u8]) -> String {
    let mut out = String::with_capacity(value.len());
    for chunk in value.utf8_chunks() {
        write_escaped(chunk.valid(), |character| character == ':' || is_special(character), &mut out);
        for byte in chunk.invalid() {
            // Writing to a string never fails.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Descriptor with escaped domain and entries. Policy names and the key derive from it.
#[derive(Clone, Debug)]
pub struct EscapedDescriptor<'a> {
    domain: Cow<'a, str>,
    entries: Vec<Entry<'a>>,
}

/// Entry of a descriptor, escaped.
#[derive(Clone, Debug)]
struct Entry<'a> {
    key: Cow<'a, str>,
    value: Cow<'a, str>,
    /// Canonical form of an address, such as its IPv6 network. The key contains it instead of `value`.
    canonical: Option<String>,
}

impl<'a> EscapedDescriptor<'a> {
    /// Escapes a domain and the entries of a request.
    pub fn new(domain: &'a str, entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> EscapedDescriptor<'a> {
        let entry = |(key, value)| Entry { key: escape(key), value: escape(value), canonical: None };
        EscapedDescriptor { domain: escape(domain), entries: entries.into_iter().map(entry).collect() }
    }

    /// Replaces IPv6 addresses in the key by their networks of `prefix` bits.
    #[must_use]
    pub fn group_addresses(mut self, prefix: Ipv6Prefix) -> EscapedDescriptor<'a> {
        for Entry { key, value, canonical } in &mut self.entries {
            *canonical = client_address::canonical_entry(key, value, prefix);
        }
        self
    }

    /// Parses a key that [`EscapedDescriptor::key`] returned. Returns `None` if the text is not such a key. The last
    /// entry of a shortened key ends with the hash.
    #[must_use]
    pub fn from_key(key: &'a [u8]) -> Option<EscapedDescriptor<'a>> {
        let mut parts = std::str::from_utf8(key).ok()?.strip_prefix(KEY_PREFIX)?.split('|');
        let domain = parts.next()?.into();
        let entries = parts.map(|part| part.split_once('=').unwrap_or((part, "")));
        let entry = |(key, value): (&'a str, &'a str)| Entry { key: key.into(), value: value.into(), canonical: None };
        Some(EscapedDescriptor { domain, entries: entries.map(entry).collect() })
    }

    /// Returns the names of policies that apply to the descriptor, the most specific first: `api|plan=gold|user=42`,
    /// `api|plan=gold|user`, `api|plan|user`, `api`. A name with an address precedes the name with its network. Names
    /// that are too long for the server are left out.
    #[must_use]
    pub fn policy_names(&self) -> Vec<String> {
        let entry_count = self.entries.len();
        let mut names = Vec::with_capacity(entry_count + 2);
        for value_count in (0..=entry_count).rev() {
            names.push(self.policy_name(value_count));
            if self.entries.iter().take(value_count).any(|entry| entry.canonical.is_some()) {
                let mut name = String::new();
                self.write_name(&mut name, value_count, Entry::grouped_value);
                names.push(name);
            }
        }
        if entry_count > 0 {
            names.push(self.domain.clone().into_owned());
        }
        names.retain(|name| name.len() <= MAX_POLICY_NAME);
        names
    }

    /// Returns the policy name that contains the values of the first `value_count` entries only.
    #[must_use]
    pub fn policy_name(&self, value_count: usize) -> String {
        let mut name = String::new();
        self.write_name(&mut name, value_count, |entry| &entry.value);
        name
    }

    fn write_name(&self, name: &mut String, value_count: usize, value: impl for<'e> Fn(&'e Entry<'a>) -> &'e str) {
        let entry_bytes: usize = self.entries.iter().map(|entry| entry.key.len() + entry.value.len() + 2).sum();
        name.reserve(self.domain.len() + entry_bytes);
        name.push_str(&self.domain);
        for (index, entry) in self.entries.iter().enumerate() {
            name.push('|');
            name.push_str(&entry.key);
            if index < value_count {
                name.push('=');
                name.push_str(value(entry));
            }
        }
    }

    /// Returns the key at which requests with the descriptor are counted: `rl:`, the domain and all entries with their
    /// values, whichever policy applies. IPv6 addresses are grouped if [`EscapedDescriptor::group_addresses`] was
    /// called.
    #[must_use]
    pub fn key(&self) -> Vec<u8> {
        let mut key = KEY_PREFIX.to_owned();
        self.write_name(&mut key, self.entries.len(), Entry::grouped_value);
        self::key(key)
    }
}

impl Entry<'_> {
    /// Returns the value in keys, which group addresses by network.
    fn grouped_value(&self) -> &str {
        self.canonical.as_deref().unwrap_or(&self.value)
    }
}

/// Returns the key for a text that is already escaped, shortened if it is too long.
#[must_use]
pub fn key(text: String) -> Vec<u8> {
    shorten(text.into_bytes(), MAX_KEY)
}

/// Returns the idempotency key for the id of a caller, shortened if it is too long.
#[must_use]
pub fn idempotency_key(text: &[u8]) -> Vec<u8> {
    shorten(text.to_vec(), MAX_ID)
}

/// Replaces a text longer than `max_bytes` by its beginning and a hash of the entire text, together 225 bytes.
fn shorten(mut text: Vec<u8>, max_bytes: usize) -> Vec<u8> {
    if text.len() > max_bytes {
        let hash = Sha256::digest(&text);
        text.truncate(READABLE_PREFIX);
        text.push(b'~');
        for byte in hash.iter().take(16) {
            text.extend(format!("{byte:02x}").bytes());
        }
    }
    text
}

#[cfg(test)]
mod tests;
