//! Connections to servers, and finding the one that serves: a server, the primary that Sentinel names, or a cluster.

use crate::address::{Address, Credentials};
use crate::slots::HostPort;
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, Value,
};
use std::future::Future;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;

/// Timeout of a connection attempt to one host, with what the host is asked first.
const CONNECT: Duration = Duration::from_secs(2);
/// Maximum number of calls that wait to be written; others wait for their turn.
const QUEUE: usize = 1024;

/// Connection to the server that serves, or to a node of the cluster that does.
pub struct Located {
    /// Connection that all calls share.
    pub connection: MultiplexedConnection,
    /// Host and port.
    pub host: HostPort,
    /// `true` if the server is a node of a cluster.
    pub is_cluster: bool,
}

/// Sends a command; an error of the server is an error here.
///
/// # Errors
/// The server's error, or that of the connection.
pub async fn send(mut connection: MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    connection.req_packed_command(command).await?.extract_error()
}

/// Sends a command to a node that imports its slot.
///
/// # Errors
/// As for [`send`].
pub async fn send_asking(mut connection: MultiplexedConnection, command: Cmd) -> RedisResult<Value> {
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(command);
    let replies = connection.req_packed_commands(&both, 1, 1).await?;
    let none = || RedisError::from((ErrorKind::Client, "no reply behind ASKING"));
    replies.into_iter().next().ok_or_else(none)?.extract_error()
}

/// Connects to the server that serves. A host that hangs does not keep the others from being asked.
///
/// # Errors
/// The failure of the last host.
pub async fn located(address: &Address) -> RedisResult<Located> {
    let hosts = match &address.primary {
        Some(name) => vec![primary(address, name).await?],
        None => address.hosts.clone(),
    };
    let mut last = RedisError::from((ErrorKind::Client, "no host"));
    for host in hosts {
        match in_time(single(address, &host)).await {
            Ok((connection, ServerRole { is_cluster: true, .. })) => {
                return Ok(Located { connection, host, is_cluster: true });
            }
            Ok((connection, ServerRole { is_replica: false, .. })) => {
                return Ok(Located { connection, host, is_cluster: false });
            }
            Ok(_) => last = (ErrorKind::Client, "the server is a replica").into(),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn in_time<T>(asked: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    timeout(CONNECT, asked).await.unwrap_or_else(|_| Err((ErrorKind::Io, "no reply in time").into()))
}

/// Role of a server, as INFO says it.
#[derive(Clone, Copy, Default)]
struct ServerRole {
    is_cluster: bool,
    is_replica: bool,
}

async fn single(address: &Address, host: &HostPort) -> RedisResult<(MultiplexedConnection, ServerRole)> {
    let connection = open(address, host, &address.credentials, address.database).await?;
    let mut info = redis::cmd("INFO");
    info.arg("everything");
    // A user without the right to INFO is not asked for more.
    let info = match send(connection.clone(), &info).await {
        Ok(value) => redis::from_redis_value::<String>(value)?,
        Err(error) if error.code() == Some("NOPERM") => String::new(),
        Err(error) => return Err(error),
    };
    let says = |line: &str| info.lines().any(|one| one == line);
    Ok((connection, ServerRole { is_cluster: says("cluster_enabled:1"), is_replica: says("role:slave") }))
}

/// Connects to a node of a cluster.
///
/// # Errors
/// If the host cannot be reached, or refuses the credentials.
pub async fn node(address: &Address, host: &HostPort) -> RedisResult<MultiplexedConnection> {
    open(address, host, &address.credentials, 0).await
}

/// Connects to one host. Replies have no timeout of their own.
async fn open(
    address: &Address,
    (host, port): &HostPort,
    credentials: &Credentials,
    database: i64,
) -> RedisResult<MultiplexedConnection> {
    let (host, port) = (host.clone(), *port);
    let addr = if address.tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    let info = addr.into_connection_info()?.set_redis_settings(settings(credentials).set_db(database));
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(Some(CONNECT));
    let config = config.set_pipeline_buffer_size(QUEUE);
    client(address, info)?.get_multiplexed_async_connection_with_config(&config).await
}

fn settings(credentials: &Credentials) -> RedisConnectionInfo {
    // No CLIENT SETINFO: the user needs no right to it.
    let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
    if let Some(user) = &credentials.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &credentials.password {
        settings = settings.set_password(password.latest());
    }
    settings
}

fn client(address: &Address, info: ConnectionInfo) -> RedisResult<redis::Client> {
    match certificates(address)? {
        Some(certificates) => redis::Client::build_with_tls(info, certificates),
        None => redis::Client::open(info),
    }
}

/// Checks that TLS accepts the certificates that are in the files now.
///
/// # Errors
/// If a file cannot be read or is malformed. The error names the file.
pub fn check(address: &Address) -> RedisResult<()> {
    let host = ConnectionAddr::TcpTls { host: String::new(), port: 0, insecure: false, tls_params: None };
    client(address, host.into_connection_info()?).map(|_| ())
}

fn certificates(address: &Address) -> RedisResult<Option<TlsCertificates>> {
    if !address.tls {
        return Ok(None);
    }
    let root_cert = address.authority.as_deref().map(|path| pem(path, "CERTIFICATE")).transpose()?;
    let client_tls = match &address.identity {
        Some((certificate, key)) => Some(ClientTlsConfig {
            client_cert: pem(certificate, "CERTIFICATE")?,
            client_key: pem(key, "PRIVATE KEY")?,
        }),
        None => None,
    };
    Ok((root_cert.is_some() || client_tls.is_some()).then_some(TlsCertificates { client_tls, root_cert }))
}

/// Reads a file of PEM that has a part of this kind: without one, nothing and nobody would be trusted.
fn pem(path: &Path, kind: &str) -> std::io::Result<Vec<u8>> {
    let told = |why: &dyn std::fmt::Display| std::io::Error::other(format!("{}: {why}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| told(&error))?;
    if !String::from_utf8_lossy(&bytes).contains(&format!("{kind}-----")) {
        return Err(told(&format!("the file has no {}", kind.to_lowercase())));
    }
    Ok(bytes)
}

/// Asks the Sentinels for the primary.
async fn primary(address: &Address, name: &str) -> RedisResult<HostPort> {
    let mut last = RedisError::from((ErrorKind::Client, "no Sentinel knows the primary"));
    for host in &address.hosts {
        let asked = in_time(async {
            let sentinel = open(address, host, &address.sentinel_credentials, 0).await?;
            let mut command = redis::cmd("SENTINEL");
            command.arg("get-master-addr-by-name").arg(name);
            let reply = send(sentinel, &command).await?;
            Ok(redis::from_redis_value::<Option<HostPort>>(reply)?)
        });
        match asked.await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}
