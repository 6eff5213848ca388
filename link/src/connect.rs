//! Connections to a server, to the primary that Sentinel names, or to a cluster.

use crate::address::{Address, Credentials};
use crate::slots::HostPort;
use redis::aio::{AsyncPushSender, ConnectionLike as _, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo as _,
    ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, Value,
};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Timeout of a connection attempt to one host, including the first commands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of queued calls that a connection has not written yet. Further calls wait for room in the queue.
const PIPELINE_BUFFER: usize = 1024;

/// Connection to a primary or to a node of a cluster.
pub struct ServerConnection {
    /// Multiplexed connection, which all calls share.
    pub connection: MultiplexedConnection,
    /// Host and port of the server.
    pub host: HostPort,
    /// `true` if the server is a node of a cluster.
    pub is_cluster: bool,
}

/// Sends a command and returns its reply.
///
/// # Errors
/// If the reply is an error, or if the connection fails.
pub async fn send(mut connection: MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    connection.req_packed_command(command).await?.extract_error()
}

/// Sends ASKING and then a command, to a node that imports the slot of the command's key.
///
/// # Errors
/// Returns the errors of [`send`].
pub async fn send_asking(mut connection: MultiplexedConnection, command: Cmd) -> RedisResult<Value> {
    let mut pipeline = redis::pipe();
    pipeline.cmd("ASKING").ignore().add_command(command);
    let replies = connection.req_packed_commands(&pipeline, 1, 1).await?;
    let no_reply = || RedisError::from((ErrorKind::Client, "no reply behind ASKING"));
    replies.into_iter().next().ok_or_else(no_reply)?.extract_error()
}

/// Connects to the first host that is a primary or a node of a cluster. A host that does not reply in time is skipped.
///
/// # Errors
/// If no host is a primary or a node of a cluster: the failure of the last host.
pub async fn connect(address: &Address) -> RedisResult<ServerConnection> {
    let hosts = match &address.primary {
        Some(name) => vec![primary_from_sentinel(address, name).await?],
        None => address.hosts.clone(),
    };
    let mut last_error = RedisError::from((ErrorKind::Client, "no host"));
    for host in hosts {
        match with_timeout(connect_and_read_role(address, &host)).await {
            Ok((connection, ServerRole { is_cluster: true, .. })) => {
                return Ok(ServerConnection { connection, host, is_cluster: true });
            }
            Ok((connection, ServerRole { is_replica: false, .. })) => {
                return Ok(ServerConnection { connection, host, is_cluster: false });
            }
            Ok(_) => last_error = (ErrorKind::Client, "the server is a replica").into(),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

async fn with_timeout<T>(attempt: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    timeout(CONNECT_TIMEOUT, attempt).await.unwrap_or_else(|_| Err((ErrorKind::Io, "no reply in time").into()))
}

/// Role of a server according to INFO.
#[derive(Clone, Copy, Default)]
struct ServerRole {
    is_cluster: bool,
    is_replica: bool,
}

async fn connect_and_read_role(address: &Address, host: &HostPort) -> RedisResult<(MultiplexedConnection, ServerRole)> {
    let connection = connect_to_host(address, host, &address.credentials, address.database, None).await?;
    let mut info = redis::cmd("INFO");
    info.arg("everything");
    // A user without permission for INFO can still use the server, which is then assumed to be a primary outside a
    // cluster.
    let info = match send(connection.clone(), &info).await {
        Ok(value) => redis::from_redis_value::<String>(value)?,
        Err(error) if error.code() == Some("NOPERM") => String::new(),
        Err(error) => return Err(error),
    };
    let has_line = |expected: &str| info.lines().any(|line| line == expected);
    Ok((connection, ServerRole { is_cluster: has_line("cluster_enabled:1"), is_replica: has_line("role:slave") }))
}

/// Connects to a node of a cluster.
///
/// # Errors
/// If the host cannot be reached, or rejects the credentials.
pub async fn connect_to_node(address: &Address, host: &HostPort) -> RedisResult<MultiplexedConnection> {
    connect_to_host(address, host, &address.credentials, 0, None).await
}

/// Connects in RESP3 to `node` of a cluster, or without a node, to the server that [`connect`] finds. `pushes`
/// receives the server's push messages, and a message when the connection ends.
///
/// # Errors
/// Returns the errors of [`connect`].
pub async fn connect_for_pushes(
    address: &Address,
    node: Option<&HostPort>,
    pushes: Arc<dyn AsyncPushSender>,
) -> RedisResult<MultiplexedConnection> {
    let (host, database) = match node {
        Some(host) => (host.clone(), 0),
        None => (connect(address).await?.host, address.database),
    };
    connect_to_host(address, &host, &address.credentials, database, Some(pushes)).await
}

/// Connects to one host. The connection has no timeout for replies; callers set their own.
async fn connect_to_host(
    address: &Address,
    (host, port): &HostPort,
    credentials: &Credentials,
    database: i64,
    pushes: Option<Arc<dyn AsyncPushSender>>,
) -> RedisResult<MultiplexedConnection> {
    let (host, port) = (host.clone(), *port);
    let addr = if host.starts_with('/') {
        ConnectionAddr::Unix(host.into())
    } else if address.tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    let mut settings = settings(credentials).set_db(database);
    if pushes.is_some() {
        settings = settings.set_protocol(ProtocolVersion::RESP3);
    }
    let info = addr.into_connection_info()?.set_redis_settings(settings);
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(Some(CONNECT_TIMEOUT));
    let mut config = config.set_pipeline_buffer_size(PIPELINE_BUFFER);
    if let Some(pushes) = pushes {
        config = config.set_push_sender(pushes);
    }
    client(address, info)?.get_multiplexed_async_connection_with_config(&config).await
}

fn settings(credentials: &Credentials) -> RedisConnectionInfo {
    // Skip CLIENT SETINFO, so that the user needs no permission for it.
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

/// Checks that the certificate files of an address can be read and used for TLS.
///
/// # Errors
/// If a file cannot be read or is malformed. The error names the file.
pub fn check_certificates(address: &Address) -> RedisResult<()> {
    let host = ConnectionAddr::TcpTls { host: String::new(), port: 0, insecure: false, tls_params: None };
    client(address, host.into_connection_info()?).map(|_| ())
}

fn certificates(address: &Address) -> RedisResult<Option<TlsCertificates>> {
    if !address.tls {
        return Ok(None);
    }
    let root_cert = address.authority.as_deref().map(|path| read_pem(path, "CERTIFICATE")).transpose()?;
    let client_tls = match &address.identity {
        Some((certificate, key)) => Some(ClientTlsConfig {
            client_cert: read_pem(certificate, "CERTIFICATE")?,
            client_key: read_pem(key, "PRIVATE KEY")?,
        }),
        None => None,
    };
    Ok((root_cert.is_some() || client_tls.is_some()).then_some(TlsCertificates { client_tls, root_cert }))
}

/// Reads a PEM file and checks that it has a section with this label. The TLS library would accept a file of
/// authorities without a certificate, and then trust no server.
///
/// # Errors
/// If the file cannot be read or has no such section. The error names the file.
pub fn read_pem(path: &Path, label: &str) -> std::io::Result<Vec<u8>> {
    let file_error = |why: &dyn std::fmt::Display| std::io::Error::other(format!("{}: {why}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| file_error(&error))?;
    if !String::from_utf8_lossy(&bytes).contains(&format!("{label}-----")) {
        return Err(file_error(&format!("the file has no {}", label.to_lowercase())));
    }
    Ok(bytes)
}

/// Returns the address of the primary from the first Sentinel that is reachable and knows it.
async fn primary_from_sentinel(address: &Address, name: &str) -> RedisResult<HostPort> {
    let mut last_error = RedisError::from((ErrorKind::Client, "no Sentinel knows the primary"));
    for host in &address.hosts {
        let query = with_timeout(async {
            let sentinel = connect_to_host(address, host, &address.sentinel_credentials, 0, None).await?;
            let mut command = redis::cmd("SENTINEL");
            command.arg("get-master-addr-by-name").arg(name);
            let reply = send(sentinel, &command).await?;
            Ok(redis::from_redis_value::<Option<HostPort>>(reply)?)
        });
        match query.await {
            Ok(Some(primary)) => return Ok(primary),
            Ok(None) => {}
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}
