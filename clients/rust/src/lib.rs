//! Rate limits in Redis and Valkey, decided by the redis-ratelimit module on the server.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use redis_ratelimit_client::{Limit, Limiter};
//!
//! let client = redis::Client::open("redis://localhost:6379")?;
//! let limiter = Limiter::new(client.get_multiplexed_async_connection().await?);
//! let api = limiter.limit("api", [Limit::token_bucket(100, 100, "1m")])?;
//! if !api.take("user:42").await?.allowed {
//!     println!("later");
//! }
//! # Ok(())
//! # }
//! ```

mod address;
mod batching;
mod bound;
mod breaker;
mod decision;
mod denials;
mod error;
mod fields;
mod forced;
mod layer;
mod lease;
mod limiter;
mod limits;
#[cfg(feature = "memory")]
mod memory;
mod names;
mod options;
mod rate;
mod replies;
mod routing;
mod sending;
mod timer;
mod tracking;
mod units;
mod words;

pub use address::{client_network, parse_address};
pub use bound::Bound;
pub use decision::{Decision, Source};
pub use error::Error;
pub use fields::header_fields;
pub use layer::{Answer, Charge, Denial, Grpc, Http, LeaseLayer, LeaseService, RateLimitLayer, RateLimitService, Who};
pub use lease::Lease;
pub use limiter::Limiter;
pub use limits::{Amount, Limit, Time};
#[cfg(feature = "memory")]
pub use memory::{ManualClock, Memory};
pub use options::{OnOutage, Options, SetupErrors, Take};
pub use units::{Batch, Units};
