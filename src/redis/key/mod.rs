//! The keys of one call.
//!
//! Other modules hear of keyspace events at once, inside the call, and may then change or delete any key. So no handle
//! of a key is open, and nothing that was found in one is used, while other modules may run; the types see to it:
//!
//! * an open key ([`OpenKey`], [`Key`], [`PeekedKey`]) borrows the call, and so closes before the call can open the
//!   next one, or announce anything to those who subscribe to events;
//! * a key that was closed again ([`ClosedKey`]) shows what was found in it only as long as nobody else can have run
//!   since, which the call counts ([`other_modules_may_run`](crate::redis::Redis::other_modules_may_run)). Others run when a key is
//!   opened and found missing (it may have expired just now), when one is made or deleted (the server announces that
//!   itself), and when events are announced.
//!
//! A key is opened without knowing its type; [`Stored`] says what it holds. A usage is changed in place, in an open key
//! or in one that was closed, and then committed ([`Writable`]): its effect is propagated, the key gets its expiry, and
//! the event is noted for the end of the call (`open.rs`).
//!
//! A change is made known in the order in which it happened: first to replicas and the AOF, and only then to
//! subscribers of keyspace events, which might change more. (Redis 6.2 propagates at once what another module does, and what a call has
//! propagated only when it is over: there it is the other way round.)

mod closed;
mod contents;
mod convert;
mod handle;
mod open;
mod takeover;
mod value;

pub use closed::{ClosedKey, ResumedKey};
pub use contents::{Contents, ForeignType, PeekedKey, Stored};
pub use open::{Key, OpenKey};
pub(super) use takeover::put;
pub use takeover::{replace, short_string};
pub use value::Writable;
