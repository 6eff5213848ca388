//! State of a load of policies, and the records still to be written to the AOF.

use ratelimit_core::policy::{Discarded, Origin, Table, Walk};
use std::cell::{Cell, RefCell};

/// Load of policies.
#[derive(Debug, Default)]
pub enum Load {
    /// No load, or the load of an AOF: each record takes effect at once.
    #[default]
    Immediate,
    /// Load of a snapshot.
    Separate {
        /// Policies that have been read.
        table: Box<Table>,
        /// Origin of the snapshot: this server's disk, or its primary.
        origin: Origin,
        /// `true` if the load is asynchronous: the old data is used until the server says that the load has succeeded.
        is_async: bool,
    },
}

/// Progress of loading policies and of writing them to the AOF.
#[derive(Default)]
pub struct PolicyLoad {
    /// Current load.
    pub load: RefCell<Load>,
    /// `true` in a child that rewrites the AOF, once it has written the records.
    pub has_written_records: Cell<bool>,
    /// Records still to be written to the AOF.
    pub pending_records: Cell<Walk>,
    /// `true` if the last fencing token is also to be written to the AOF.
    pub is_token_pending: Cell<bool>,
    /// Replaced tables, which are freed in batches.
    pub discarded_tables: RefCell<Vec<Discarded>>,
    /// `true` once the log says that policies are in no snapshot.
    pub has_warned: Cell<bool>,
}
