//! Server with the module, or a cluster, by $SERVER or `redis-server` and $RATELIMIT_MODULE.

// Not every test uses every function.
#![allow(dead_code)]

use std::env;
use std::hash::{BuildHasher, RandomState};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis_ratelimit_client::{Limiter, Options};

pub struct Server {
    process: Child,
    folder: PathBuf,
    pub port: u16,
    _reservation: UdpSocket,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(options: &[&str]) -> Self {
        let (port, reservation) = reserve_port();
        let program = env::var("SERVER").ok().filter(|name| !name.is_empty()).unwrap_or("redis-server".to_owned());
        let default_module = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release/libredis_ratelimit.so");
        let module = env::var("RATELIMIT_MODULE").unwrap_or(default_module.to_owned());
        let folder = env::temp_dir().join(format!("ratelimit-rust-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let process = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(options)
            .args(["--loadmodule", &module, "policies", "yes"])
            .current_dir(&folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Self { process, folder, port, _reservation: reservation };
        for _ in 0..1200 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return server;
            }
            assert!(server.process.try_wait().unwrap().is_none(), "the server did not start");
            std::thread::sleep(Duration::from_millis(25));
        }
        panic!("the server does not listen within 30 seconds");
    }

    pub fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap()
    }

    pub async fn connection(&self) -> ConnectionManager {
        for _ in 0..400 {
            // The timeout is long, for busy machines.
            let config = ConnectionManagerConfig::new().set_response_timeout(Some(Duration::from_secs(30)));
            if let Ok(connection) = ConnectionManager::new_with_config(self.client(), config).await {
                return connection;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("the server does not answer");
    }

    pub async fn limiter(&self, options: Options) -> Limiter<ConnectionManager> {
        Limiter::with_options(self.connection().await, options)
    }

    /// Returns the number of calls of a command.
    pub async fn calls(&self, command: &str) -> u64 {
        self.info("commandstats", &format!("cmdstat_{command}:calls=")).await
    }

    /// Returns the number of clients blocked in the server.
    pub async fn blocked_clients(&self) -> u64 {
        self.info("clients", "blocked_clients:").await
    }

    /// Returns the number of redirected calls.
    pub async fn moved_errors(&self) -> u64 {
        self.info("errorstats", "errorstat_MOVED:count=").await
    }

    /// Returns the number of calls of a command that were rejected before execution.
    pub async fn rejected_calls(&self, command: &str) -> u64 {
        let mut connection = self.connection().await;
        let info: String = redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await.unwrap();
        let line = info.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        let number = line.and_then(|line| line.split("rejected_calls=").nth(1));
        number.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    }

    /// Returns the names of all keys, sorted.
    pub async fn keys(&self) -> Vec<String> {
        let mut connection = self.connection().await;
        let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
        keys.sort_unstable();
        keys
    }

    async fn info(&self, section: &str, name: &str) -> u64 {
        let mut connection = self.connection().await;
        let info: String = redis::cmd("INFO").arg(section).query_async(&mut connection).await.unwrap();
        let number = info.split(name).nth(1);
        number.map_or(0, |rest| rest.split([',', '\r']).next().unwrap().parse().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Cluster of three primaries.
pub struct Cluster {
    pub servers: Vec<Server>,
}

impl Cluster {
    pub async fn start() -> Self {
        let servers: Vec<_> = (0..3).map(|_| Server::start_with(&["--cluster-enabled", "yes"])).collect();
        let mut connections = Vec::new();
        for (number, server) in servers.iter().enumerate() {
            let mut connection = server.connection().await;
            let slots_of_node: Vec<_> = (number * 16_384 / 3..(number + 1) * 16_384 / 3).collect();
            let slots = redis::cmd("CLUSTER").arg("ADDSLOTS").arg(slots_of_node).to_owned();
            slots.exec_async(&mut connection).await.unwrap();
            let epoch = redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(number + 1).to_owned();
            epoch.exec_async(&mut connection).await.unwrap();
            connections.push(connection);
        }
        for server in &servers[1..] {
            let meet = redis::cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(server.port).to_owned();
            meet.exec_async(&mut connections[0]).await.unwrap();
        }
        for connection in &mut connections {
            until(async || {
                let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(connection).await.unwrap();
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
            })
            .await;
        }
        Self { servers }
    }

    pub async fn connection(&self) -> ClusterConnection {
        let url = format!("redis://127.0.0.1:{}", self.servers[0].port);
        let client = ClusterClient::builder([url]).response_timeout(Duration::from_secs(30)).build().unwrap();
        client.get_async_connection().await.unwrap()
    }
}

/// Reserves a port that no other fixture gets while the socket lives, as in tests/support/ports.py: binding the UDP
/// port of the same number reserves it. The server listens on the TCP port.
fn reserve_port() -> (u16, UdpSocket) {
    loop {
        let port = 11_000 + (RandomState::new().hash_one(()) % 10_000) as u16;
        let Ok(reservation) = UdpSocket::bind(("127.0.0.1", port)) else { continue };
        // A node of a cluster also listens on a port 10,000 above.
        if [port, port + 10_000].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()) {
            return (port, reservation);
        }
    }
}

pub async fn until(mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..2000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    panic!("the condition is not met within 30 seconds");
}

/// Returns options with a long timeout, for a busy machine.
pub fn long_timeout() -> Options {
    Options { timeout: Duration::from_secs(30), ..Options::default() }
}
