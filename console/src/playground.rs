//! The playground: limits of several algorithms under the same traffic, to be looked at and played with. The core
//! decides, on a clock that the scene moves; no server is asked.
//!
//! A [`lane`] is a limit and what it remembers; [`traffic`] makes calls, and a [`crowd`] those of others; a [`scene`] takes
//! every call to all lanes as its clock goes on; [`stream`] sends it to a page of the console.

mod crowd;
mod lane;
mod scene;
mod stream;
mod traffic;

pub use stream::routes;
