//! A server with the module, of $SERVER or `redis-server` and $RATELIMIT_MODULE.

use std::env;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::ConnectionManager;
use redis_ratelimit_client::{Limiter, Options};

pub struct Server {
    process: Child,
    folder: PathBuf,
    pub port: u16,
}

impl Server {
    pub fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let program = env::var("SERVER").ok().filter(|name| !name.is_empty()).unwrap_or("redis-server".to_owned());
        let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release/libredis_ratelimit.so");
        let module = env::var("RATELIMIT_MODULE").unwrap_or(built.to_owned());
        let folder = env::temp_dir().join(format!("ratelimit-rust-{port}"));
        std::fs::create_dir_all(&folder).unwrap();
        let process = Command::new(program)
            .args(["--port", &port.to_string(), "--save", "", "--loadmodule", &module, "policies", "yes"])
            .current_dir(&folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, folder, port }
    }

    pub fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub async fn connection(&self) -> ConnectionManager {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        for _ in 0..400 {
            if let Ok(connection) = ConnectionManager::new(client.clone()).await {
                return connection;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("the server does not answer");
    }

    pub async fn limiter(&self, options: Options) -> Limiter<ConnectionManager> {
        Limiter::with_options(self.connection().await, options)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A machine may be busy.
pub fn patient() -> Options {
    Options { timeout: Duration::from_secs(30), ..Options::default() }
}
