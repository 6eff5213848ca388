//! Code that `ratelimit-gateway` and `ratelimit-console` share.
//!
//! The layers, from the lowest: reloading of files ([`file_stamp`], [`reload`]) and [`secrets`]; client addresses and
//! names of policies and keys ([`client_address`], [`naming`]); connections to a server ([`address`], [`connect`],
//! [`slots`], [`redirect`], [`server_error`]); listeners and their certificates ([`listener`], [`certificate`]); the
//! entry points of a program ([`command_line`], [`process`]).

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod address;
pub mod certificate;
pub mod client_address;
pub mod command_line;
pub mod connect;
pub mod file_stamp;
pub mod listener;
pub mod naming;
pub mod process;
pub mod redirect;
pub mod reload;
pub mod secrets;
pub mod server_error;
pub mod slots;
