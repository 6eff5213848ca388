//! State of a load of policies, and the records that the AOF still lacks.

use ratelimit_core::policy::{Discarded, Origin, Table, Walk};
use std::cell::{Cell, RefCell};

/// Policies that a load has brought so far.
#[derive(Debug, Default)]
pub enum Load {
    /// No load, or that of an AOF: each record takes effect at once.
    #[default]
    AtOnce,
    /// A snapshot.
    Aside {
        /// Policies that have been read.
        table: Box<Table>,
        /// Origin of the snapshot: this server's disk, or its primary.
        origin: Origin,
        /// `true` if the load is asynchronous: the old data is used until the server says that the load has succeeded.
        is_async: bool,
    },
}

/// Policies on their way from disk and to it.
#[derive(Default)]
pub struct PolicyLoad {
    /// The load that is running.
    pub load: RefCell<Load>,
    /// `true` in a child that rewrites the AOF, once it has written the policies.
    pub rewritten: Cell<bool>,
    /// The records that the AOF is owed.
    pub owed: Cell<Walk>,
    /// `true` if the AOF is also owed the last fencing token.
    pub owes_token: Cell<bool>,
    /// Replaced tables, which are freed piece by piece.
    pub discarded: RefCell<Vec<Discarded>>,
    /// `true` once the log says that policies are in no snapshot.
    pub warned: Cell<bool>,
}
