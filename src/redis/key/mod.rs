//! Keys of one call.
//!
//! The server notifies other modules of keyspace events inside the call, and they may change or delete any key. So no
//! handle of a key is open, and no pointer into a key is used, while other modules may run. The types guarantee that:
//!
//! * an open key ([`OpenKey`], [`Key`], [`PeekedKey`]) borrows the call, and so is closed before the call can open the
//!   next one or announce events to subscribers;
//! * a closed key ([`ClosedKey`]) gives access to its usage only if no other module can have run since, which the call
//!   counts ([`other_modules_may_run`](crate::redis::Redis::other_modules_may_run)). Other modules run when a key is
//!   opened and found missing (it may have expired just now), when a key is created or deleted (the server announces
//!   that itself), and when events are announced.
//!
//! A key is opened without knowing its type; [`Stored`] is the type of its value. A usage is changed in place, in an
//! open key or in a resumed one, and then committed ([`Writable`]): its effect is propagated, the expiry is set, and
//! the event is queued for the end of the call (`open.rs`).
//!
//! A change is first propagated to replicas and the AOF, and only then announced to subscribers of keyspace events,
//! which may make further changes. (On Redis 6.2 the order is reversed: it propagates the commands of other modules at
//! once, and the effects of the call only at its end.)

mod closed;
mod contents;
mod open;
mod takeover;

pub use closed::{ClosedKey, ResumedKey};
pub use contents::{Contents, PeekedKey, Stored};
pub use open::{Key, OpenKey, Writable};
pub(super) use takeover::replace_propagated;
pub use takeover::{replace, short_string};
