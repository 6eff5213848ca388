//! The running service: its listeners, what keeps it up to date, and its end.

use crate::config::{Config, Source, Stamp};
use crate::console;
use crate::http;
use crate::judge::{Judge, Outage};
use crate::link::Link;
use crate::local::Local;
use crate::options::{Charge, Serve};
use crate::rls::Rls;
use crate::seen;
use crate::table::Table;
use arc_swap::ArcSwap;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use metrics_exporter_prometheus::PrometheusHandle;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic_health::ServingStatus;

/// How often the files are looked at.
const RELOAD: Duration = Duration::from_secs(1);
/// How long requests may take that are under way at the end.
const LAST: Duration = Duration::from_secs(10);
/// The largest request, in bytes: 32 descriptors of 16 entries with values of some size.
const LARGEST: usize = 256 * 1024;
/// Envoy's protocol for those who ask by reflection: `protoc --include_imports --descriptor_set_out` of the crate's own
/// envoy/service/ratelimit/v3/rls.proto.
const DESCRIPTORS: &[u8] = include_bytes!("rls/descriptors.bin");
/// So many requests of one connection at once.
const STREAMS: u32 = 1024;

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// What stands in the way of the start: a wrong file, a port that is taken.
pub async fn serve(options: Serve) -> Result<(), String> {
    // Before anybody is told of a port: a signal that nobody listens for would end the process.
    let of = |kind| signal(kind).map_err(|error| error.to_string());
    let (mut terminated, mut interrupted) = (of(SignalKind::terminate())?, of(SignalKind::interrupt())?);
    let hangup = of(SignalKind::hangup())?;
    let source = options.config.clone().map(Source::new);
    let stamp = source.as_ref().map(Source::stamp).unwrap_or_default();
    let config = source.as_ref().map_or_else(|| Ok(Config::default()), Source::read)?;
    let config = Arc::new(ArcSwap::from_pointee(config));
    let (table, link) = (Arc::new(Table::default()), Arc::new(Link::new(options.address()?)));
    let metrics = seen::install()?;
    let judge = Arc::new(Judge {
        link: Arc::clone(&link),
        table: Arc::clone(&table),
        outage: options.on_outage,
        local: if let Outage::Local(share) = options.on_outage { Some(Local::new(share)) } else { None },
        timeout: options.timeout,
        all_or_none: options.charge == Charge::AllOrNone,
        shadow: options.shadow,
        in_flight: Arc::new(Semaphore::new(options.in_flight as usize)),
        told: Mutex::default(),
    });
    let rls = Rls { config: Arc::clone(&config), judge, once: options.once.as_str().into() };
    let tls = options.http_cert.as_ref().zip(options.http_key.as_ref());
    let tls = tls.map(|(certificate, key)| http::listen::acceptor(certificate, key)).transpose()?;
    let (grpc, http) = (bound(options.grpc).await?, bound(options.http).await?);
    let console = console::bound(&options.console, &options.address()?).await?;
    tokio::spawn(async move { link.keep(&*table).await });
    tokio::spawn(upkeep(metrics.clone()));
    if let Some(source) = source {
        tokio::spawn(reload(source, stamp, config, hangup));
    }
    let ending = Arc::new(AtomicBool::new(false));
    let (end, ended) = watch::channel(false);
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("", ServingStatus::NotServing).await;
    reporter.set_not_serving::<RateLimitServiceServer<Rls>>().await;
    let router = http::router(http::Http { rls: rls.clone(), metrics, ending: Arc::clone(&ending) });
    let link = Arc::clone(&rls.judge.link);
    let grpc = {
        let mut server = Server::builder()
            .max_concurrent_streams(STREAMS)
            .http2_keepalive_interval(Some(Duration::from_secs(30)))
            .tcp_nodelay(true);
        if let Some((certificate, key)) = options.grpc_cert.as_ref().zip(options.grpc_key.as_ref()) {
            let read =
                |path| std::fs::read(path).map_err(|error| format!("{}: {error}", std::path::Path::display(path)));
            let identity = Identity::from_pem(read(certificate)?, read(key)?);
            server = server.tls_config(ServerTlsConfig::new().identity(identity)).map_err(|error| told(&error))?;
        }
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(DESCRIPTORS)
        };
        // Most clients still ask by the older version.
        let older = reflection().build_v1alpha().map_err(|error| told(&error))?;
        let reflection = reflection().build_v1().map_err(|error| told(&error))?;
        let service = RateLimitServiceServer::new(rls).max_decoding_message_size(LARGEST);
        let incoming = TcpIncoming::from(grpc).with_nodelay(Some(true));
        let ended = until(ended.clone());
        let router = server.add_service(health).add_service(reflection).add_service(older).add_service(service);
        tokio::spawn(router.serve_with_incoming_shutdown(incoming, ended))
    };
    let console = console.map(|console| tokio::spawn(console.serve(until(ended.clone()))));
    let http = tokio::spawn(http::listen::serve(http, tls, router, until(ended)));
    tracing::info!(grpc = %options.grpc, http = %options.http, "serving");
    let ready = {
        let reporter = reporter.clone();
        tokio::spawn(async move {
            while !link.has_answered() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            reporter.set_service_status("", ServingStatus::Serving).await;
            reporter.set_serving::<RateLimitServiceServer<Rls>>().await;
        })
    };
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    tracing::info!("ending");
    ready.abort();
    ending.store(true, Ordering::Relaxed);
    reporter.set_service_status("", ServingStatus::NotServing).await;
    reporter.set_not_serving::<RateLimitServiceServer<Rls>>().await;
    end.send_replace(true);
    // The console's streams go on for as long as somebody looks.
    if let Some(console) = console {
        console.abort();
    }
    let both = async { (grpc.await, http.await) };
    if tokio::time::timeout(LAST, both).await.is_err() {
        tracing::warn!("some connections did not end in time");
    }
    Ok(())
}

async fn bound(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))
}

fn told(error: &dyn std::error::Error) -> String {
    error.to_string()
}

async fn until(mut ended: watch::Receiver<bool>) {
    // The sender lives as long as the service.
    let _ = ended.wait_for(|ended| *ended).await;
}

async fn upkeep(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        metrics.run_upkeep();
    }
}

/// Reads the files again when they change, and at SIGHUP. Wrong ones are refused as a whole, and the old ones stay.
async fn reload(source: Source, mut stamp: Stamp, config: Arc<ArcSwap<Config>>, mut hangup: Signal) {
    loop {
        let at_once = tokio::select! {
            () = tokio::time::sleep(RELOAD) => false,
            _ = hangup.recv() => true,
        };
        let now = source.stamp();
        if now == stamp && !at_once {
            continue;
        }
        stamp = now;
        match source.read() {
            Ok(read) => {
                config.store(Arc::new(read));
                seen::reload(true);
                tracing::info!("the configuration was read again");
            }
            Err(why) => {
                seen::reload(false);
                tracing::error!(why, "the configuration is wrong, and the old one stays");
            }
        }
    }
}
