//! How far a load of policies has come, and what the AOF still lacks.

use ratelimit_core::policy::{Discarded, Origin, Table, Walk};
use std::cell::{Cell, RefCell};

/// What a load has brought so far.
#[derive(Debug, Default)]
pub enum Load {
    /// There is none, or it is an AOF: what records say holds at once.
    #[default]
    AtOnce,
    /// A snapshot.
    Aside {
        /// What has been read.
        table: Box<Table>,
        /// Whether it is this server's own, or its primary's.
        origin: Origin,
        /// Whether the old data is used until the load has ended, and after that until the server says so.
        extras: bool,
    },
}

/// Policies on their way from disk and to it.
#[derive(Default)]
pub struct PolicyLoad {
    /// The load that is running.
    pub load: RefCell<Load>,
    /// Whether this process, a child that rewrites the AOF, has written them.
    pub rewritten: Cell<bool>,
    /// The records that the AOF is owed.
    pub owed: Cell<Walk>,
    /// Whether the AOF is owed the last fencing token too.
    pub owes_token: Cell<bool>,
    /// What is left of tables that others have taken the place of, to be freed piece by piece.
    pub discarded: RefCell<Vec<Discarded>>,
    /// Whether the log says that they do not last.
    pub warned: Cell<bool>,
}
