//! What the servers know of one policy: two registers, its definition and its scale.
//!
//! Whoever writes a register stamps it, and of two values the one with the later stamp stands, on every server and in
//! whatever order they come. So a definition and a scale that two servers set at the same time both survive. A deletion
//! is a definition too: without text.

use super::Stamp;
use crate::codec::{Decoder, Encoder};
use crate::effect::{Fields, Text};
use crate::name::MAX_NAME;
use crate::{Amount, Timestamp};

/// The longest text of specs, in bytes. What this version can write is far shorter; it keeps those of later ones.
pub const MAX_TEXT: usize = 16 * 1024;

/// What a record begins with: its kind, and the version of the envelope.
const HEADING: &[u8] = b"rl-policy 1";

/// What a policy says. The order of two is that of their stamps; if those are the same, some other on which all servers
/// agree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Definition {
    /// When it was set or deleted, and by whom.
    pub stamp: Stamp,
    /// Of the set that made the policy when there was none of that name. What was scaled before was another one.
    pub born: Stamp,
    /// One more with each set on one server.
    pub version: u64,
    /// By the clock of the server that wrote it, in milliseconds since the epoch.
    pub set_at: u64,
    /// The words of its specs; of a policy that was deleted, none. A later version may know more words than this one,
    /// which then keeps them as they are.
    pub text: Box<[u8]>,
}

/// By how much a policy is scaled. The order is as that of definitions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scale {
    /// When it was set, and by whom.
    pub stamp: Stamp,
    /// What limits and rates are multiplied by: at most [`Scale::MOST`].
    pub factor: Amount,
    /// When it ends; if it does not, the epoch.
    pub until: Timestamp,
}

impl Scale {
    /// Of a policy that was never scaled.
    pub const NONE: Scale = Scale { stamp: Stamp { at: 0, node: 0 }, factor: Amount::ONE, until: Timestamp::EPOCH };
    /// The highest factor: 1000.
    pub const MOST: Amount = Amount::saturating(1_000_000_000);
}

/// What is known by one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name: 1 to [`MAX_NAME`] bytes.
    pub name: Box<[u8]>,
    /// What it says, or that it was deleted.
    pub definition: Definition,
    /// The scale that was set last, even if that was of a policy before this one.
    pub scale: Scale,
}

impl Entry {
    /// As text: what is propagated, saved, and sent to other members of a cluster.
    pub fn record(&self) -> Text {
        let Entry { name, definition, scale } = self;
        let mut record = Text::beginning_with(HEADING);
        record.bytes(name);
        definition.stamp.encode(&mut record);
        definition.born.encode(&mut record);
        record.integer(definition.version);
        record.integer(definition.set_at);
        record.bytes(&definition.text);
        scale.stamp.encode(&mut record);
        record.integer(scale.factor.millionths());
        record.integer(scale.until.micros());
        record
    }

    /// Reads what [`Entry::record`] writes, and no other way; `None` if no server can have written it.
    pub fn read(record: &[u8]) -> Option<Entry> {
        let mut fields = Fields::behind(HEADING, record)?;
        let name = fields.bytes(MAX_NAME).filter(|name| !name.is_empty())?;
        let (stamp, born) = (Stamp::decode(&mut fields)?, Stamp::decode(&mut fields)?);
        let (version, set_at) = (fields.integer()?, fields.integer()?);
        let text = fields.bytes(MAX_TEXT)?;
        let scale = Scale {
            stamp: Stamp::decode(&mut fields)?,
            factor: Amount::from_millionths(fields.integer()?).filter(|factor| *factor <= Scale::MOST)?,
            until: Timestamp::from_micros(fields.integer()?)?,
        };
        let possible = born <= stamp && version > 0 && set_at <= Timestamp::MAX.floor_millis();
        let definition = Definition { stamp, born, version, set_at, text };
        (possible && fields.end()).then_some(Entry { name, definition, scale })
    }

    /// Takes over what another server knows later of the same name; whether that is anything.
    pub fn merge(&mut self, other: Entry) -> bool {
        let later = (other.definition > self.definition, other.scale > self.scale);
        if later.0 {
            self.definition = other.definition;
        }
        if later.1 {
            self.scale = other.scale;
        }
        later.0 || later.1
    }

    /// Whether there is no such policy any more.
    pub fn is_deleted(&self) -> bool {
        self.definition.text.is_empty()
    }

    /// Its scale, if that was set since the policy was made.
    pub fn scale(&self) -> &Scale {
        if self.scale.stamp > self.definition.born { &self.scale } else { &Scale::NONE }
    }

    /// The latest of its stamps.
    pub fn latest(&self) -> Stamp {
        self.definition.stamp.max(self.scale.stamp)
    }
}

impl Stamp {
    fn encode(self, to: &mut impl Encoder) {
        to.integer(self.at);
        to.integer(self.node);
    }

    fn decode(from: &mut impl Decoder) -> Option<Stamp> {
        let at = from.integer().filter(|at| *at <= Timestamp::MAX.micros())?;
        Some(Stamp { at, node: from.integer()? })
    }
}

#[cfg(test)]
mod tests;
