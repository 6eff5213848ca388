//! Origin of a record, and the outcome of merging it.

/// Origin of a record.
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

/// Outcome of merging a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeOutcome {
    /// A register was replaced.
    Changed,
    /// Both registers were known or too old.
    Unchanged,
    /// The record was rejected, because a stamp in it is beyond the [`Horizon`](super::Horizon).
    Rejected,
    /// The record is malformed.
    Malformed,
}
