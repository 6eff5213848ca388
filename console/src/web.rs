//! The console: a page for operators, and the API behind it. It shows what the servers count, and changes policies and
//! keys for those who may.
//!
//! The layers, from below: names as [`text`] and replies ([`reply_json`], [`info`]); the servers ([`upstream`]) and
//! what goes wrong with them ([`failure`]); what happens now ([`live`]), [`policies`] and [`keys`], each change with a
//! line in the log ([`audit`]); who may do what ([`access`], [`tokens`]); the page ([`assets`]) and all routes ([`routes`]).

mod access;
mod assets;
mod audit;
mod failure;
mod info;
mod keys;
mod live;
mod policies;
mod reply_json;
mod routes;
mod text;
mod tokens;
mod upstream;

pub use access::Guard;
use axum::Router;
use failure::Failure;
use live::Live;
use ratelimit_link::address::Address;
use ratelimit_link::listener::{Protocol, Service, TlsAcceptor};
use routes::VIEWS;
pub use routes::router;
use std::sync::Arc;
use std::time::Duration;
pub use tokens::Tokens;
use upstream::Upstream;

/// How long a request may take: a long log is replayed for a while.
const PATIENCE: Duration = Duration::from_mins(10);

/// Bytes that the requests in flight of one connection may hold: more than a log that is replayed.
const CONNECTION_BYTES: usize = 24 << 20;

/// What the console's routes share.
pub struct Console {
    /// The servers; none for a console that only has views that need none.
    upstream: Option<Arc<Upstream>>,
    live: Option<Arc<Live>>,
    views: &'static [&'static str],
}

impl Console {
    /// A console of servers at an address.
    #[must_use]
    pub fn of(address: Address) -> Console {
        let upstream = Arc::new(Upstream::new(address));
        let live = Arc::new(Live::new(Arc::clone(&upstream)));
        Console { upstream: Some(upstream), live: Some(live), views: VIEWS }
    }

    /// A console of views that need no server.
    #[must_use]
    pub fn without_server(views: &'static [&'static str]) -> Console {
        Console { upstream: None, live: None, views }
    }

    /// Starts what has to run beside the routes.
    pub fn start(&self) {
        if let Some(live) = self.live.clone() {
            tokio::spawn(async move { live.keep().await });
        }
    }

    fn upstream(&self) -> Result<&Upstream, Failure> {
        self.upstream.as_deref().ok_or_else(without_server)
    }
}

fn without_server() -> Failure {
    Failure::Missing("this console has no server".to_owned())
}

/// Counts nothing: the console has no metrics.
pub fn uncounted(_: bool) {}

/// Returns the service of a console.
pub fn service(tls: Option<TlsAcceptor>, router: Router) -> Service {
    let (protocol, request_timeout) = (Protocol::Http, PATIENCE);
    Service { tls, protocol, router, request_timeout, connection_bytes: CONNECTION_BYTES }
}
