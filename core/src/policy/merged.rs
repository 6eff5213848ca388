//! Source of a record, and the result of merging it.

/// Source of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Another member of the cluster, or a client. Registers that are later than the known ones are accepted, unless
    /// their stamps are beyond the [`Horizon`](super::Horizon).
    Peer,
    /// Primary of this replica. Its records are accepted unconditionally.
    Primary,
    /// Disk of this server. Its records are accepted unconditionally.
    Disk,
}

/// Result of merging a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// A register was replaced.
    Changed,
    /// All registers were known.
    Unchanged,
    /// The record was rejected, because its stamp is too far ahead.
    Refused,
    /// The record is malformed.
    Invalid,
}
