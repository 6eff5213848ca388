//! Web page for operators, and its API: shows the counters of the servers, and changes policies and keys.
//!
//! The layers, from the lowest: names as [`text`] and parsing of replies ([`reply_json`], [`info`]); connections to the
//! servers ([`upstream`]), errors ([`failure`]) and problems of nodes ([`problem`]); the [`gateways`]; samples of the
//! counters ([`live`]) and their [`history`], which Prometheus extends ([`prometheus`], [`http_client`]); reads that
//! viewers share ([`shared_reads`]); the [`most_denied`] keys, by minute ([`denied_minutes`]) and for the page
//! ([`top`]); the search for keys ([`key_search`]); the list of [`changes`] and their clients ([`audit`]); [`policies`]
//! and [`keys`], their [`undo`], current [`bans`] and a sample of their [`usage`]; permissions ([`access`],
//! [`tokens`]); the page ([`assets`]) and all routes ([`routes`]).

mod access;
mod assets;
mod audit;
mod bans;
mod changes;
mod clock;
mod denied_minutes;
mod failure;
mod gateways;
mod history;
mod http_client;
mod info;
mod key_search;
mod keys;
mod live;
mod most_denied;
mod policies;
mod problem;
mod prometheus;
mod reply_json;
mod routes;
mod shared_reads;
mod text;
mod tokens;
mod top;
mod undo;
mod upstream;
mod usage;

pub use access::Guard;
use axum::Router;
use failure::Failure;
pub use gateways::Gateways;
pub use http_client::NamedTarget;
use live::Sampler;
pub use prometheus::Prometheus;
use ratelimit_link::address::Address;
use ratelimit_link::certificate::TlsConfig;
use ratelimit_link::listener::{Protocol, Service};
use routes::VIEWS;
pub use routes::router;
use serde_json::Value;
use shared_reads::SharedReads;
use std::sync::Arc;
use std::time::Duration;
pub use tokens::Tokens;
use top::TopReads;
use upstream::Upstream;

/// Timeout of a request, long enough for the replay of a long log.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(10);

/// Maximum number of bytes that the requests in flight of one connection may hold, more than an uploaded log.
const CONNECTION_BYTES: usize = 24 << 20;

/// State that the routes share.
pub struct Console {
    /// Connections to the servers, or `None` if no view needs a server.
    upstream: Option<Arc<Upstream>>,
    sampler: Option<Arc<Sampler>>,
    prometheus: Option<Prometheus>,
    top: Arc<TopReads>,
    /// List of policies, by the digest of all policies at the last sample.
    policies: SharedReads<Option<String>, Value>,
    /// List of current bans.
    bans: SharedReads<(), Value>,
    gateways: Arc<Gateways>,
    views: &'static [&'static str],
}

impl Console {
    /// Creates a console with all views for the servers at an address, and for gateways.
    #[must_use]
    pub fn with_server(address: Address, prometheus: Option<Prometheus>, gateways: Gateways) -> Console {
        let upstream = Arc::new(Upstream::new(address));
        let top = Arc::<TopReads>::default();
        let sampler = Arc::new(Sampler::new(Arc::clone(&upstream), Arc::clone(&top)));
        Console {
            upstream: Some(upstream),
            sampler: Some(sampler),
            prometheus,
            top,
            policies: SharedReads::default(),
            bans: SharedReads::default(),
            gateways: Arc::new(gateways),
            views: VIEWS,
        }
    }

    /// Creates a console with views that need no server.
    #[must_use]
    pub fn without_server(views: &'static [&'static str]) -> Console {
        Console {
            upstream: None,
            sampler: None,
            prometheus: None,
            top: Arc::default(),
            policies: SharedReads::default(),
            bans: SharedReads::default(),
            gateways: Arc::default(),
            views,
        }
    }

    /// Starts the background tasks.
    pub fn start(&self) {
        if let Some(sampler) = self.sampler.clone() {
            tokio::spawn(async move { sampler.run().await });
        }
        let gateways = Arc::clone(&self.gateways);
        tokio::spawn(async move { gateways.run().await });
    }

    fn upstream(&self) -> Result<&Upstream, Failure> {
        self.upstream.as_deref().ok_or_else(without_server)
    }
}

fn without_server() -> Failure {
    Failure::Missing("this console has no server".to_owned())
}

/// Ignores the result of a reload. A gateway counts it in its metrics, and the console has none.
pub fn ignore_reload_result(_: bool) {}

/// Returns the service of a console.
pub fn service(tls: Option<TlsConfig>, router: Router) -> Service {
    let (protocol, request_timeout) = (Protocol::Http, REQUEST_TIMEOUT);
    Service { tls, protocol, router, request_timeout, connection_bytes: CONNECTION_BYTES }
}
