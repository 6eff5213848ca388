//! Where a record comes from, and the outcome of merging it.

/// Where a record comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Another member of the cluster, or a client: what is later than what is known is taken over, and no stamp that is
    /// beyond the [`Horizon`](super::Horizon).
    Peer,
    /// The primary of this replica: what it says holds.
    Primary,
    /// This server's own disk: what it says holds.
    Disk,
}

/// The outcome of merging a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// It said something later.
    Changed,
    /// It said nothing new.
    Unchanged,
    /// What it said is stamped too far ahead.
    Refused,
    /// No server can have written it.
    Invalid,
}
