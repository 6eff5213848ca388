//! The command `serve`: startup, listeners, background tasks and graceful shutdown.

use crate::command_line::Serve;
use crate::configuration::{Config, ConfigSource};
use crate::environment::Environment;
use crate::evaluation::{DenialLog, Evaluator};
use crate::file_stamp::FileStamp;
use crate::http;
use crate::listener::{self, Phase, Protocol, Service};
use crate::local_limits::LocalLimits;
use crate::metrics;
use crate::outage_mode::OutageMode;
use crate::policy_cache::PolicyCache;
use crate::process::{Signals, bind};
use crate::reload::{self, Reloadable};
use crate::rls::{self, Rls};
use crate::traces::Traces;
use crate::upstream::Upstream;
use crate::xds::XdsClient;
use arc_swap::ArcSwap;
use futures_util::future::join_all;
use metrics_exporter_prometheus::PrometheusHandle;
use ratelimit_link::certificate::{TlsConfig, TlsFiles};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Maximum time to answer the requests in flight at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes that the requests in flight of one connection may hold: an eighth of the budget of a
/// listener.
const CONNECTION_BYTES: usize = 8 << 20;
/// Interval at which a condition without a notification is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Services with a status in `grpc.health.v1`: the whole server, and the rate limit service, which envoyproxy/ratelimit
/// calls `ratelimit`.
const HEALTH_SERVICES: [&str; 3] = ["", rls::SERVICE_NAME, "ratelimit"];

/// Serves until SIGTERM or SIGINT and for the time of `--drain` after it. A second signal ends the service at once.
///
/// # Errors
/// If the service cannot start, for example because a file is malformed or a port is taken.
pub async fn serve(options: Serve) -> Result<(), String> {
    // Must come first: an earlier signal would end the process without a drain.
    let mut signals = Signals::new()?;
    log_settings_without_effect(&options);
    let prometheus = metrics::install(options.metrics_format, options.on_outage, options.shadow)?;
    let config = watch_configuration(&options)?;
    let xds = XdsClient::new(&options.xds, options.merge_domains, Arc::clone(&config))?;
    let (policies, upstream) = (Arc::new(PolicyCache::default()), Arc::new(Upstream::new(options.address()?)));
    let rls = new_rls(&options, &config, Arc::clone(&upstream), Arc::clone(&policies))?;
    let traces = rls.traces.clone();
    let (grpc_tls, http_tls) = (watch_tls(options.grpc_tls())?, watch_tls(options.http_tls())?);
    let debug_tls = watch_tls(options.debug_tls())?;
    if upstream.has_certificates() {
        reload::load_and_watch(Arc::<Upstream>::clone(&upstream), metrics::count_reload)?;
    }
    let (grpc_listener, http_listener) = (bind(options.grpc).await?, bind(options.http).await?);
    let mut debug_listeners = vec![];
    for address in &options.debug {
        debug_listeners.push(bind(*address).await?);
    }
    tokio::spawn(async move { upstream.run(&policies).await });
    tokio::spawn(run_metrics_upkeep(prometheus.clone()));
    tokio::spawn(log_suppressed_denials(Arc::clone(&rls.evaluator)));
    let awaits_config = xds.is_some() && !options.xds.force_start;
    if let Some(xds) = xds {
        tokio::spawn(xds.run());
    }
    let metrics = http::MetricsPage::new(prometheus, options.metrics_cache);
    let (reporter, health) = tonic_health::server::health_reporter();
    let mut readiness = Readiness { ready: Arc::default(), reporter };
    readiness.set(ServingStatus::NotServing).await;
    let evaluator = Arc::clone(&rls.evaluator);
    let ready = Arc::clone(&readiness.ready);
    let metrics_path = options.metrics_path.clone();
    let http_state = http::HttpState { rls: rls.clone(), metrics, metrics_path, ready };
    let (grpc_sender, grpc_phase) = watch::channel(Phase::Serving);
    let (http_sender, http_phase) = watch::channel(Phase::Serving);
    // Time for the request to arrive, plus the timeout of its evaluation.
    let request_timeout = listener::IO_TIMEOUT.saturating_add(options.timeout);
    let grpc_router = rls::router(rls, health)?;
    let service =
        |tls, protocol, router| Service { tls, protocol, router, request_timeout, connection_bytes: CONNECTION_BYTES };
    let grpc_service = service(grpc_tls, Protocol::Grpc, grpc_router);
    let grpc_task = tokio::spawn(listener::serve(grpc_listener, grpc_service, grpc_phase));
    let http_service = service(http_tls, Protocol::Http, http::router(http_state.clone()));
    let debug_service = service(debug_tls, Protocol::Http, http::debug_router(http_state));
    let debug_services = debug_listeners.into_iter().map(|listener| (listener, debug_service.clone()));
    let http_services = std::iter::once((http_listener, http_service)).chain(debug_services);
    let serve_http = |(listener, service)| tokio::spawn(listener::serve(listener, service, http_phase.clone()));
    let http_tasks: Vec<JoinHandle<()>> = http_services.map(serve_http).collect();
    tracing::info!(grpc = %options.grpc, http = %options.http, debug = ?options.debug, "serving");
    let becoming_ready = {
        let (mut readiness, evaluator) = (readiness.clone(), Arc::clone(&evaluator));
        tokio::spawn(async move {
            while !evaluator.upstream.has_replied() || (awaits_config && !config.load().covers_domains) {
                sleep(POLL_INTERVAL).await;
            }
            readiness.set(ServingStatus::Serving).await;
        })
    };
    signals.next().await;
    becoming_ready.abort();
    // Waits for the task to end: until then it could still set the status to ready.
    let _ = becoming_ready.await;
    readiness.set(ServingStatus::NotServing).await;
    tracing::info!(seconds = options.drain.as_secs_f64(), "draining: not ready any more, and serving still");
    for sender in [&grpc_sender, &http_sender] {
        sender.send_replace(Phase::Draining);
    }
    tokio::select! {
        () = sleep(options.drain) => {}
        () = signals.next() => {
            tracing::warn!("ended at once by a second signal");
            return Ok(());
        }
    }
    tracing::info!("ending");
    readiness.close_watches().await;
    grpc_sender.send_replace(Phase::Ending);
    let finish = async {
        let _ = grpc_task.await;
        // Must come after the end of the gRPC listener: /readyz answers 503 until then.
        http_sender.send_replace(Phase::Ending);
        join_all(http_tasks).await;
        // Evaluations and their rollbacks continue after a client has closed its connection.
        while evaluator.in_flight.available_permits() < options.in_flight as usize {
            sleep(POLL_INTERVAL).await;
        }
        if let Some(traces) = traces {
            traces.flush().await;
        }
    };
    tokio::select! {
        ended = timeout(SHUTDOWN_TIMEOUT, finish) => if ended.is_err() {
            tracing::warn!("some connections did not end in time");
        },
        () = signals.next() => tracing::warn!("ended at once by a second signal"),
    }
    evaluator.upstream.log_outages();
    evaluator.denial_log.log_suppressed(true);
    Ok(())
}

fn log_settings_without_effect(options: &Serve) {
    for (variable, why) in &options.unneeded_variables {
        tracing::warn!(variable, why, "a setting of envoyproxy/ratelimit has no effect");
    }
    if !options.ignored_arguments.is_empty() {
        tracing::warn!(arguments = ?options.ignored_arguments, "arguments have no effect: the environment has the settings");
    }
}

fn new_rls(
    options: &Serve,
    config: &Arc<ArcSwap<Config>>,
    upstream: Arc<Upstream>,
    policies: Arc<PolicyCache>,
) -> Result<Rls, String> {
    let environment = Environment::new(std::env::vars_os()).with(&options.trace_variables);
    Ok(Rls {
        config: Arc::clone(config),
        evaluator: Arc::new(new_evaluator(options, upstream, policies)),
        settings: options.request_settings(),
        headers: Arc::new(options.response_headers()),
        response_metadata: options.response_metadata,
        traces: Traces::start(&environment)?,
    })
}

fn new_evaluator(options: &Serve, upstream: Arc<Upstream>, policies: Arc<PolicyCache>) -> Evaluator {
    Evaluator {
        upstream,
        policies,
        outage_mode: options.on_outage,
        local: if let OutageMode::Local(share) = options.on_outage { Some(LocalLimits::new(share)) } else { None },
        timeout: options.timeout,
        shadow: options.shadow,
        remember_denials: options.remember_denials,
        near_limit_ratio: options.near_limit_ratio,
        in_flight: Arc::new(Semaphore::new(options.in_flight as usize)),
        denial_log: DenialLog::new(options.log_denials),
        error_logged_at: Mutex::default(),
    }
}

/// Reads the TLS files of a listener, and follows their changes. Without files, returns `None`.
fn watch_tls(files: Option<TlsFiles>) -> Result<Option<TlsConfig>, String> {
    files.map(|files| files.watch(metrics::count_reload)).transpose()
}

/// Readiness in gRPC health checks and in `/readyz`.
#[derive(Clone)]
struct Readiness {
    ready: Arc<AtomicBool>,
    reporter: HealthReporter,
}

impl Readiness {
    /// Sets the status. `/readyz` becomes ready after gRPC, and stops being ready before gRPC.
    async fn set(&mut self, status: ServingStatus) {
        let is_ready = status == ServingStatus::Serving;
        if !is_ready {
            self.ready.store(false, Ordering::Release);
        }
        for service in HEALTH_SERVICES {
            self.reporter.set_service_status(service, status).await;
        }
        if is_ready {
            self.ready.store(true, Ordering::Release);
        }
    }

    /// Ends the streams of clients that watch the health. They would otherwise never end.
    async fn close_watches(&mut self) {
        for service in HEALTH_SERVICES {
            self.reporter.clear_service_status(service).await;
        }
    }
}

/// Drains the histograms of the recorder regularly. They would otherwise grow until the metrics are rendered.
async fn run_metrics_upkeep(prometheus: PrometheusHandle) {
    loop {
        sleep(Duration::from_secs(5)).await;
        let prometheus = prometheus.clone();
        let _ = tokio::task::spawn_blocking(move || prometheus.run_upkeep()).await;
    }
}

/// Logs each second the number of denials without a log line.
async fn log_suppressed_denials(evaluator: Arc<Evaluator>) {
    loop {
        sleep(Duration::from_secs(1)).await;
        evaluator.denial_log.log_suppressed(false);
    }
}

/// Configuration that is reloaded from its files.
struct ConfigFiles {
    source: ConfigSource,
    config: Arc<ArcSwap<Config>>,
}

/// Reads the files of `--config` and reloads them when they change. Without the option, the configuration stays empty.
fn watch_configuration(options: &Serve) -> Result<Arc<ArcSwap<Config>>, String> {
    let config: Arc<ArcSwap<Config>> = Arc::default();
    if let Some(path) = options.config.clone() {
        let source = ConfigSource::new(path, options.merge_domains);
        let files = Arc::new(ConfigFiles { source, config: Arc::clone(&config) });
        reload::load_and_watch(files, metrics::count_configuration_reload)?;
        metrics::envoyproxy::count_configuration(true);
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
