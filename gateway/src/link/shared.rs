//! A connection to one server that many share.

use crate::gathered::Gathered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// So many calls wait to be written at the most; further ones wait for their turn to wait.
pub const QUEUE: usize = 1024;

/// A connection that many share; it is closed when nobody has it any more.
#[derive(Clone)]
pub struct Shared {
    connection: MultiplexedConnection,
    _driver: Option<Arc<Driver>>,
}

/// The task that writes and reads, which ends with this.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Shared {
    /// Over TCP, without TLS. The calls of many go together.
    pub async fn plain(host: &str, port: u16, settings: &RedisConnectionInfo) -> RedisResult<Shared> {
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(QUEUE);
        let made = MultiplexedConnection::new_with_config(settings, Gathered::new(stream), config).await?;
        let (connection, driver) = made;
        let driver = Driver(tokio::spawn(driver).abort_handle());
        Ok(Shared { connection, _driver: Some(Arc::new(driver)) })
    }
}

impl From<MultiplexedConnection> for Shared {
    fn from(connection: MultiplexedConnection) -> Shared {
        Shared { connection, _driver: None }
    }
}

impl Deref for Shared {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.connection
    }
}

impl DerefMut for Shared {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection
    }
}
