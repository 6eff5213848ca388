//! The running service: its listeners, what keeps it up to date, and its end.

use crate::command_line::Serve;
use crate::configuration::{Config, ConfigSource};
use crate::file_stamp::FileStamp;
use crate::http;
use crate::judge::{Judge, Outage};
use crate::link::Link;
use crate::listener::{self, Phase, Protocol, Service};
use crate::local::Local;
use crate::process::{Signals, bind};
use crate::reload::{self, Reloadable};
use crate::rls::{self, Rls};
use crate::seen;
use crate::told_policies::Table;
use arc_swap::ArcSwap;
use metrics_exporter_prometheus::PrometheusHandle;
use ratelimit_link::certificate::Certificate;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// How long requests may take that are under way at the end.
const LAST: Duration = Duration::from_secs(10);
/// Bytes that the requests in flight of one connection may hold, an eighth of the listener's.
const CONNECTION_BYTES: usize = 8 << 20;
/// How often it is looked whether something has come to pass that nobody tells.
const SHORTLY: Duration = Duration::from_millis(20);
/// What grpc.health.v1 is asked about: all, and the rate limit service.
const SERVICES: [&str; 2] = ["", rls::NAME];

/// Serves until SIGTERM or SIGINT, and for `--drain` behind it; a second signal ends at once.
///
/// # Errors
/// What stands in the way of the start: a wrong file, a port that is taken.
pub async fn serve(options: Serve) -> Result<(), String> {
    // Before anybody is told of a port: a signal that nobody listens for would end the process.
    let mut signals = Signals::new()?;
    let config = configuration(&options)?;
    let (table, link) = (Arc::new(Table::default()), Arc::new(Link::new(options.address()?)));
    let metrics = seen::install()?;
    let judge = Arc::new(Judge {
        link: Arc::clone(&link),
        table: Arc::clone(&table),
        outage: options.on_outage,
        local: if let Outage::Local(share) = options.on_outage { Some(Local::new(share)) } else { None },
        timeout: options.timeout,
        shadow: options.shadow,
        in_flight: Arc::new(Semaphore::new(options.in_flight as usize)),
        told: Mutex::default(),
    });
    let rls = Rls {
        config: Arc::clone(&config),
        judge,
        settings: options.request_settings(),
        response_metadata: options.response_metadata,
    };
    let tls = |files| Certificate::watch(files, seen::reload);
    let grpc_tls = tls(options.grpc_cert.clone().zip(options.grpc_key.clone()))?;
    let http_tls = tls(options.http_cert.clone().zip(options.http_key.clone()))?;
    if link.has_certificates() {
        reload::load_and_watch(Arc::<Link>::clone(&link), seen::reload)?;
    }
    let (grpc, http) = (bind(options.grpc).await?, bind(options.http).await?);
    tokio::spawn(async move { link.keep(&*table).await });
    tokio::spawn(upkeep(metrics.clone()));
    let metrics = http::MetricsPage::new(metrics, options.metrics_cache);
    let (reporter, health) = tonic_health::server::health_reporter();
    let mut readiness = Readiness { ready: Arc::default(), reporter };
    readiness.report(ServingStatus::NotServing).await;
    let judge = Arc::clone(&rls.judge);
    let router = http::router(http::HttpDoor { rls: rls.clone(), metrics, ready: Arc::clone(&readiness.ready) });
    let (grpc_phases, grpc_phase) = watch::channel(Phase::Serving);
    let (http_phases, http_phase) = watch::channel(Phase::Serving);
    // A request has to arrive in time, and the judge sees to how long its decision takes.
    let request_timeout = listener::IO_TIMEOUT.saturating_add(options.timeout);
    let grpc_router = rls::router(rls, health)?;
    let service =
        |tls, protocol, router| Service { tls, protocol, router, request_timeout, connection_bytes: CONNECTION_BYTES };
    let grpc_service = service(grpc_tls, Protocol::Grpc, grpc_router);
    let grpc = tokio::spawn(listener::serve(grpc, grpc_service, grpc_phase));
    let http = tokio::spawn(listener::serve(http, service(http_tls, Protocol::Http, router), http_phase));
    tracing::info!(grpc = %options.grpc, http = %options.http, "serving");
    let beginning = {
        let (mut readiness, judge) = (readiness.clone(), Arc::clone(&judge));
        tokio::spawn(async move {
            while !judge.link.has_answered() {
                sleep(SHORTLY).await;
            }
            readiness.report(ServingStatus::Serving).await;
        })
    };
    signals.next().await;
    beginning.abort();
    // An abort is no end yet, and it would be ready again.
    let _ = beginning.await;
    readiness.report(ServingStatus::NotServing).await;
    tracing::info!(seconds = options.drain.as_secs_f64(), "draining: not ready any more, and serving still");
    for phases in [&grpc_phases, &http_phases] {
        phases.send_replace(Phase::Draining);
    }
    tokio::select! {
        () = sleep(options.drain) => {}
        () = signals.next() => {
            tracing::warn!("ended at once by a second signal");
            return Ok(());
        }
    }
    tracing::info!("ending");
    readiness.end().await;
    grpc_phases.send_replace(Phase::Ending);
    let last = async {
        let _ = grpc.await;
        // Until then whoever asks over HTTP is told that it is not ready.
        http_phases.send_replace(Phase::Ending);
        let _ = http.await;
        // A client that has hung up may have left charges to undo.
        while judge.in_flight.available_permits() < options.in_flight as usize {
            sleep(SHORTLY).await;
        }
    };
    tokio::select! {
        ended = timeout(LAST, last) => if ended.is_err() {
            tracing::warn!("some connections did not end in time");
        },
        () = signals.next() => tracing::warn!("ended at once by a second signal"),
    }
    judge.link.log_outages();
    Ok(())
}

/// What is told of being ready: over gRPC, and by /readyz.
#[derive(Clone)]
struct Readiness {
    ready: Arc<AtomicBool>,
    reporter: HealthReporter,
}

impl Readiness {
    /// Tells it. Nobody hears over HTTP that the gateway is ready before it is over gRPC, nor after it was.
    async fn report(&mut self, status: ServingStatus) {
        let is_ready = status == ServingStatus::Serving;
        if !is_ready {
            self.ready.store(false, Ordering::Release);
        }
        for service in SERVICES {
            self.reporter.set_service_status(service, status).await;
        }
        if is_ready {
            self.ready.store(true, Ordering::Release);
        }
    }

    /// Ends the streams of those who watch the health: they would never end.
    async fn end(&mut self) {
        for service in SERVICES {
            self.reporter.clear_service_status(service).await;
        }
    }
}

async fn upkeep(metrics: PrometheusHandle) {
    loop {
        sleep(Duration::from_secs(5)).await;
        let metrics = metrics.clone();
        let _ = tokio::task::spawn_blocking(move || metrics.run_upkeep()).await;
    }
}

/// The configuration, and where it is.
struct ConfigFiles {
    source: ConfigSource,
    config: Arc<ArcSwap<Config>>,
}

/// Reads the files of `--config` and follows their changes.
fn configuration(options: &Serve) -> Result<Arc<ArcSwap<Config>>, String> {
    let config: Arc<ArcSwap<Config>> = Arc::default();
    if let Some(path) = options.config.clone() {
        let source = ConfigSource::new(path, options.merge_domains);
        reload::load_and_watch(Arc::new(ConfigFiles { source, config: Arc::clone(&config) }), seen::reload)?;
    }
    Ok(config)
}

impl Reloadable for ConfigFiles {
    fn name(&self) -> &'static str {
        "the configuration"
    }

    fn stamp(&self) -> FileStamp {
        self.source.stamp()
    }

    fn read(&self) -> Result<(), String> {
        self.config.store(Arc::new(self.source.read()?));
        Ok(())
    }
}
