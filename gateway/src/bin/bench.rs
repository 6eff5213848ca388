//! For `make bench-gateway` and `make proxies`: `ok` is a service that allows all without asking anybody, `load` asks one
//! and prints what it measured as JSON.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it only measures"
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

/// That of the gateway, so that only what the services do is compared.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How long a call may take, as Envoy tells it.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answers OK to all.
    Ok { listen: SocketAddr },
    /// Asks a service.
    Load(Load),
}

#[derive(clap::Args, Clone)]
struct Load {
    target: String,
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// How many calls each connection has at once.
    #[arg(long, default_value_t = 16)]
    at_once: usize,
    /// How many calls a second, however long each takes; none: as many as are answered.
    #[arg(long)]
    rate: Option<f64>,
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How many different users call.
    #[arg(long, default_value_t = 10_000)]
    users: u64,
}

struct AllowsAll;

#[tonic::async_trait]
impl RateLimitService for AllowsAll {
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

/// What was counted of the answers.
#[derive(Default)]
struct AnswerCounts {
    allowed: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
    /// Answers that tell of a limit: those that a server decided.
    decided: AtomicU64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    match Options::parse().command {
        Command::Ok { listen } => {
            let service = RateLimitServiceServer::new(AllowsAll);
            Server::builder().tcp_nodelay(true).add_service(service).serve(listen).await?;
        }
        Command::Load(load) => println!("{}", measured(load).await?),
    }
    Ok(())
}

async fn measured(load: Load) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    let seen = Arc::new(AnswerCounts::default());
    let ended = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let mut tasks = vec![];
    let workers = load.connections * load.at_once;
    for connection in 0..load.connections {
        let endpoint = Endpoint::from_shared(load.target.clone())?.tcp_nodelay(true).timeout(PATIENCE);
        let client = RateLimitServiceClient::new(endpoint.connect().await?);
        for lane in 0..load.at_once {
            let number = connection * load.at_once + lane;
            let worker = Worker { number, workers, client: client.clone(), load: load.clone(), began };
            tasks.push(tokio::spawn(worker.run(Arc::clone(&seen), Arc::clone(&ended))));
        }
    }
    tokio::time::sleep(Duration::from_secs_f64(load.seconds)).await;
    ended.store(true, Ordering::Relaxed);
    let mut micros: Vec<u64> = vec![];
    for task in tasks {
        micros.extend(task.await?);
    }
    let seconds = began.elapsed().as_secs_f64();
    micros.sort_unstable();
    let quantile = |share: f64| micros.get((micros.len() as f64 * share) as usize).or(micros.last()).copied();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Ok(serde_json::json!({
        "calls": micros.len(), "seconds": seconds, "rate": micros.len() as f64 / seconds,
        "allowed": count(&seen.allowed), "denied": count(&seen.denied), "failed": count(&seen.failed),
        "decided": count(&seen.decided),
        "p50_us": quantile(0.5), "p99_us": quantile(0.99), "max_us": micros.last(),
    }))
}

/// One that has at most one call under way.
struct Worker {
    number: usize,
    workers: usize,
    client: RateLimitServiceClient<Channel>,
    load: Load,
    began: Instant,
}

impl Worker {
    /// How long each call took, in microseconds. At a rate from when it should have been sent: whoever waits for their
    /// turn waits, too.
    async fn run(mut self, seen: Arc<AnswerCounts>, ended: Arc<AtomicBool>) -> Vec<u64> {
        let mut took = vec![];
        let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(self.number as u64 + 1);
        for turn in 0_u64.. {
            let due = match self.load.rate {
                Some(rate) => {
                    let place = turn as f64 * self.workers as f64 + self.number as f64;
                    let due = self.began + Duration::from_secs_f64(place / rate);
                    sleep_until(due).await;
                    due
                }
                None => Instant::now(),
            };
            if ended.load(Ordering::Relaxed) {
                break;
            }
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let user = ((state >> 33) % self.load.users).to_string();
            match self.client.should_rate_limit(asked(user)).await {
                Ok(answer) => {
                    let answer = answer.into_inner();
                    let over = answer.overall_code == i32::from(Code::OverLimit);
                    let counter = if over { &seen.denied } else { &seen.allowed };
                    counter.fetch_add(1, Ordering::Relaxed);
                    let decided = answer.statuses.iter().any(|status| status.current_limit.is_some());
                    seen.decided.fetch_add(u64::from(decided), Ordering::Relaxed);
                }
                Err(_) => {
                    seen.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            took.push(due.elapsed().as_micros() as u64);
        }
        took
    }
}

fn asked(user: String) -> RateLimitRequest {
    let entries = vec![Entry { key: "user".to_owned(), value: user }];
    let descriptor = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "bench".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}
