//! Playground: simulates limits of several algorithms under the same traffic. The core decides, on a simulated clock
//! and without a server.
//!
//! A [`simulated_limit`] is a limit with its usage. [`traffic`] generates the calls of one caller, and
//! [`other_callers`] those of others. A [`simulation`] sends each call to all limits while its clock advances, and
//! [`stream`] sends its state to the page.

mod other_callers;
mod simulated_limit;
mod simulation;
mod stream;
mod traffic;

pub use stream::routes;
