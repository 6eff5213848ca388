//! Load generator for `make bench-gateway` and `make proxies`. `load` sends requests to a rate limit service and prints
//! its measurements as JSON; `ok` is a service that allows all requests without a server, for comparison.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "only measurements"
)]

use clap::{Parser, Subcommand};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use mimalloc::MiMalloc;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// Allocator of the gateway, so that both services are compared with the same allocator.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve, and allow all requests.
    Ok { listen: SocketAddr },
    /// Send requests to a service.
    Load(Load),
}

#[derive(clap::Args, Clone)]
struct Load {
    target: String,
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Number of calls in flight on each connection.
    #[arg(long, default_value_t = 16)]
    at_once: usize,
    /// Calls a second, sent whether or not earlier calls have replies. By default, each worker sends its next call
    /// after the reply to its previous call.
    #[arg(long)]
    rate: Option<f64>,
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Number of different users.
    #[arg(long, default_value_t = 10_000)]
    users: u64,
}

/// Service that allows all requests.
struct AllowAll;

#[tonic::async_trait]
impl RateLimitService for AllowAll {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let code = i32::from(Code::Ok);
        let status = DescriptorStatus { code, ..DescriptorStatus::default() };
        let statuses = vec![status; request.into_inner().descriptors.len()];
        Ok(Response::new(RateLimitResponse { overall_code: code, statuses, ..RateLimitResponse::default() }))
    }
}

/// Counters of responses.
#[derive(Default)]
struct ResponseCounts {
    allowed: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
    /// Responses that describe a limit: a server decided them.
    decided: AtomicU64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    match Options::parse().command {
        Command::Ok { listen } => {
            let service = RateLimitServiceServer::new(AllowAll);
            Server::builder().tcp_nodelay(true).add_service(service).serve(listen).await?;
        }
        Command::Load(load) => println!("{}", run_load(load).await?),
    }
    Ok(())
}

async fn run_load(load: Load) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    let counts = Arc::new(ResponseCounts::default());
    let should_stop = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let mut tasks = vec![];
    let workers = load.connections * load.at_once;
    for connection in 0..load.connections {
        let endpoint = Endpoint::from_shared(load.target.clone())?.tcp_nodelay(true).timeout(TIMEOUT);
        let client = RateLimitServiceClient::new(endpoint.connect().await?);
        for index in 0..load.at_once {
            let number = connection * load.at_once + index;
            let worker = Worker { number, workers, client: client.clone(), load: load.clone(), started };
            tasks.push(tokio::spawn(worker.run(Arc::clone(&counts), Arc::clone(&should_stop))));
        }
    }
    tokio::time::sleep(Duration::from_secs_f64(load.seconds)).await;
    should_stop.store(true, Ordering::Relaxed);
    let mut micros: Vec<u64> = vec![];
    for task in tasks {
        micros.extend(task.await?);
    }
    let seconds = started.elapsed().as_secs_f64();
    micros.sort_unstable();
    let quantile = |share: f64| micros.get((micros.len() as f64 * share) as usize).or(micros.last()).copied();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Ok(serde_json::json!({
        "calls": micros.len(), "seconds": seconds, "rate": micros.len() as f64 / seconds,
        "allowed": count(&counts.allowed), "denied": count(&counts.denied), "failed": count(&counts.failed),
        "decided": count(&counts.decided),
        "p50_us": quantile(0.5), "p99_us": quantile(0.99), "max_us": micros.last(),
    }))
}

/// Worker that sends calls, with at most one in flight.
struct Worker {
    number: usize,
    workers: usize,
    client: RateLimitServiceClient<Channel>,
    load: Load,
    started: Instant,
}

impl Worker {
    /// Sends calls until `should_stop` is set, and returns their latencies in microseconds. With a rate, a latency
    /// begins at the scheduled time of the call, even if the worker was still busy then.
    async fn run(mut self, counts: Arc<ResponseCounts>, should_stop: Arc<AtomicBool>) -> Vec<u64> {
        let mut latencies = vec![];
        let mut random_state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(self.number as u64 + 1);
        for round in 0_u64.. {
            let scheduled_at = match self.load.rate {
                Some(rate) => {
                    let call_number = round as f64 * self.workers as f64 + self.number as f64;
                    let scheduled_at = self.started + Duration::from_secs_f64(call_number / rate);
                    sleep_until(scheduled_at).await;
                    scheduled_at
                }
                None => Instant::now(),
            };
            if should_stop.load(Ordering::Relaxed) {
                break;
            }
            random_state = random_state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let user = ((random_state >> 33) % self.load.users).to_string();
            match self.client.should_rate_limit(request(user)).await {
                Ok(response) => {
                    let response = response.into_inner();
                    let is_denied = response.overall_code == i32::from(Code::OverLimit);
                    let counter = if is_denied { &counts.denied } else { &counts.allowed };
                    counter.fetch_add(1, Ordering::Relaxed);
                    let is_decided = response.statuses.iter().any(|status| status.current_limit.is_some());
                    counts.decided.fetch_add(u64::from(is_decided), Ordering::Relaxed);
                }
                Err(_) => {
                    counts.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            latencies.push(scheduled_at.elapsed().as_micros() as u64);
        }
        latencies
    }
}

fn request(user: String) -> RateLimitRequest {
    let entries = vec![Entry { key: "user".to_owned(), value: user }];
    let descriptor = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "bench".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}
