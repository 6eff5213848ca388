//! What a descriptor is called: the names of policies that it is asked under, and the key that it is counted by.

use crate::client_address::{self, Ipv6Prefix};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt::Write as _;

/// The longest name of a policy, in bytes, as the server takes it.
pub const LONGEST_NAME: usize = 256;
/// What the key of a descriptor begins with.
const KEY_PREFIX: &str = "rl:";
/// The longest key that is sent as it is, in bytes.
const LONGEST_KEY: usize = 256;
/// The longest id that is sent as it is, in bytes.
const LONGEST_ID: usize = 200;
/// How much of a text that is too long stays readable, in bytes.
const READABLE: usize = 192;

/// Text with `%XX` in place of what has a meaning in names and keys (`% | = * { } ~`) and of spaces and control bytes.
/// So no text from outside can end a part of a name early, or bring a hash tag that gathers keys in one slot.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_special) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    escape(text, is_special, &mut out);
    out.into()
}

fn escape(text: &str, is_special: impl Fn(char) -> bool, out: &mut String) {
    for character in text.chars() {
        if is_special(character) {
            // A string takes whatever is written to it.
            let _ = write!(out, "%{:02X}", u32::from(character));
        } else {
            out.push(character);
        }
    }
}

/// Whether a character has a meaning in names and keys.
fn is_special(character: char) -> bool {
    matches!(character, '%' | '|' | '=' | '*' | '{' | '}' | '~' | '\0'..=' ' | '\x7f')
}

/// Returns `true` for a character that separates two fields of a template, because no field has it unescaped.
#[must_use]
pub fn is_separator(character: char) -> bool {
    character == ':' || (is_special(character) && character != '%')
}

/// Returns the value of a template's field: as [`escaped`] has it, with `%XX` also for `:`, which separates the fields of
/// templates, and for each byte that is not UTF-8. Different values stay different.
#[must_use]
pub fn escaped_field(value: &[u8]) -> String {
    let mut out = String::with_capacity(value.len());
    for chunk in value.utf8_chunks() {
        escape(chunk.valid(), |character| character == ':' || is_special(character), &mut out);
        for byte in chunk.invalid() {
            // A string takes whatever is written to it.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// A descriptor as it is named: its domain and its entries, escaped.
#[derive(Clone, Debug)]
pub struct Described<'a> {
    domain: Cow<'a, str>,
    entries: Vec<Entry<'a>>,
}

/// Entry of a descriptor, escaped.
#[derive(Clone, Debug)]
struct Entry<'a> {
    key: Cow<'a, str>,
    value: Cow<'a, str>,
    /// Value that the key has, if that is another: the network of an address.
    grouped: Option<String>,
}

impl<'a> Described<'a> {
    /// Of a domain and entries as they came.
    pub fn new(domain: &'a str, entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Described<'a> {
        let entry = |(key, value)| Entry { key: escaped(key), value: escaped(value), grouped: None };
        Described { domain: escaped(domain), entries: entries.into_iter().map(entry).collect() }
    }

    /// Counts addresses of IPv6 by their networks.
    #[must_use]
    pub fn grouped(mut self, prefix: Ipv6Prefix) -> Described<'a> {
        for Entry { key, value, grouped } in &mut self.entries {
            *grouped = client_address::grouped(key, value, prefix);
        }
        self
    }

    /// The descriptor that is counted by this key: see [`Described::key`]. None: the gateway makes no such key. Of a key
    /// that was too long to be sent as it is, the end of the last entry is the hash.
    #[must_use]
    pub fn of_key(key: &'a [u8]) -> Option<Described<'a>> {
        let mut parts = std::str::from_utf8(key).ok()?.strip_prefix(KEY_PREFIX)?.split('|');
        let domain = parts.next()?.into();
        let entries = parts.map(|part| part.split_once('=').unwrap_or((part, "")));
        let entry = |(key, value): (&'a str, &'a str)| Entry { key: key.into(), value: value.into(), grouped: None };
        Some(Described { domain, entries: entries.map(entry).collect() })
    }

    /// The names of policies that rule it, the most special first: `api|plan=gold|user=42`, `api|plan=gold|user`,
    /// `api|plan|user`, `api`. A name with a whole address stands before the one with its network. Names that are too
    /// long for the server are left out.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let count = self.entries.len();
        let mut names = Vec::with_capacity(count + 2);
        for valued in (0..=count).rev() {
            names.push(self.name(valued));
            if self.entries.iter().take(valued).any(|entry| entry.grouped.is_some()) {
                let mut name = String::new();
                self.write_name(&mut name, valued, Entry::counted);
                names.push(name);
            }
        }
        if count > 0 {
            names.push(self.domain.clone().into_owned());
        }
        names.retain(|name| name.len() <= LONGEST_NAME);
        names
    }

    /// The name in which the first `valued` entries have their values and the others do not.
    #[must_use]
    pub fn name(&self, valued: usize) -> String {
        let mut name = String::new();
        self.write_name(&mut name, valued, |entry| &entry.value);
        name
    }

    fn write_name(&self, name: &mut String, valued: usize, value: impl for<'e> Fn(&'e Entry<'a>) -> &'e str) {
        let entries: usize = self.entries.iter().map(|entry| entry.key.len() + entry.value.len() + 2).sum();
        name.reserve(self.domain.len() + entries);
        name.push_str(&self.domain);
        for (place, entry) in self.entries.iter().enumerate() {
            name.push('|');
            name.push_str(&entry.key);
            if place < valued {
                name.push('=');
                name.push_str(value(entry));
            }
        }
    }

    /// The key that it is counted by: `rl:` and the whole of it, whichever name rules. Addresses are grouped.
    #[must_use]
    pub fn key(&self) -> Vec<u8> {
        let mut key = KEY_PREFIX.to_owned();
        self.write_name(&mut key, self.entries.len(), Entry::counted);
        self::key(key)
    }
}

impl Entry<'_> {
    fn counted(&self) -> &str {
        self.grouped.as_deref().unwrap_or(&self.value)
    }
}

/// A key of this text, which is escaped already where it has to be.
#[must_use]
pub fn key(text: String) -> Vec<u8> {
    bounded(text.into_bytes(), LONGEST_KEY)
}

/// The id of a call, of what the caller named it.
#[must_use]
pub fn id(text: &[u8]) -> Vec<u8> {
    bounded(text.to_vec(), LONGEST_ID)
}

/// The text itself up to so many bytes; else its beginning and a hash of the whole, 225 bytes.
fn bounded(mut text: Vec<u8>, most: usize) -> Vec<u8> {
    if text.len() > most {
        let hash = Sha256::digest(&text);
        text.truncate(READABLE);
        text.push(b'~');
        for byte in hash.iter().take(16) {
            text.extend(format!("{byte:02x}").bytes());
        }
    }
    text
}

#[cfg(test)]
mod tests;
