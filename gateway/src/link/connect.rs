//! Finding who serves: a server, the primary that Sentinel names, or a cluster.

use super::address::{Address, Credentials};
use super::shared::{QUEUE, Shared};
use redis::aio::ConnectionLike;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{AsyncConnectionConfig, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, RedisConnectionInfo};
use redis::{ErrorKind, IntoConnectionInfo, RedisError, RedisResult, ServerErrorKind, TlsCertificates, TlsMode, Value};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long a reply of a cluster is waited for at the most.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(2);
/// How long before a cluster that moves a slot is asked again.
const MOVING: Duration = Duration::from_millis(5);

/// A connection that all calls share.
pub enum Connection {
    /// To one server.
    Single(Shared),
    /// To each primary of a cluster.
    Cluster(ClusterConnection),
}

impl Connection {
    /// Whether it is to a cluster.
    pub fn is_cluster(&self) -> bool {
        matches!(self, Connection::Cluster(_))
    }

    /// Sends a call of one key. It is sent again only where the server has said that it did nothing: what moves in a
    /// cluster is followed until the deadline.
    pub async fn send(&self, command: Cmd, deadline: Instant) -> RedisResult<Value> {
        match self {
            Connection::Single(connection) => sent(&mut *connection.clone(), &command).await,
            Connection::Cluster(connection) => {
                let mut connection = connection.clone();
                let mut reply = sent(&mut connection, &command).await;
                while let Err(error) = &reply
                    && Instant::now() < deadline
                {
                    match error.kind() {
                        ErrorKind::Server(ServerErrorKind::Ask) => {
                            let Some((node, _)) = error.redirect_node() else { break };
                            reply = asking(&mut connection, node, &command).await;
                        }
                        ErrorKind::Server(
                            ServerErrorKind::Moved | ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown,
                        )
                        | ErrorKind::ClusterConnectionNotFound => {
                            sleep(MOVING).await;
                            reply = sent(&mut connection, &command).await;
                        }
                        _ => break,
                    }
                }
                reply
            }
        }
    }

    /// Sends what concerns no key, in a cluster to any of its primaries.
    pub async fn ask(&self, command: Cmd) -> RedisResult<Value> {
        match self {
            Connection::Single(connection) => sent(&mut *connection.clone(), &command).await,
            Connection::Cluster(connection) => {
                let any = RoutingInfo::SingleNode(SingleNodeRoutingInfo::RandomPrimary);
                connection.clone().route_command(command, any).await?.extract_error()
            }
        }
    }
}

/// Sends a command; an error of the server is an error here.
async fn sent(connection: &mut impl ConnectionLike, command: &Cmd) -> RedisResult<Value> {
    connection.req_packed_command(command).await?.extract_error()
}

/// Sends a call to the node that a slot is on its way to.
async fn asking(connection: &mut ClusterConnection, node: &str, command: &Cmd) -> RedisResult<Value> {
    let (host, port) = node.rsplit_once(':').unwrap_or((node, ""));
    let port = port.parse().map_err(|_| RedisError::from((ErrorKind::Client, "a redirection without a port")))?;
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(command.clone());
    let there = SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port };
    let replies = connection.route_pipeline(both, 1, 1, there).await?;
    let silent = || RedisError::from((ErrorKind::Client, "no reply behind ASKING"));
    replies.into_iter().next().ok_or_else(silent)?.extract_error()
}

/// Connects to whoever serves.
pub async fn connect(address: &Address) -> RedisResult<Connection> {
    Ok(located(address).await?.0)
}

/// Connects to whoever serves, and tells who that is.
pub async fn located(address: &Address) -> RedisResult<(Connection, (String, u16))> {
    let hosts = match &address.primary {
        Some(name) => vec![primary(address, name).await?],
        None => address.hosts.clone(),
    };
    let mut last = RedisError::from((ErrorKind::Client, "no host"));
    for host in &hosts {
        match single(address, host, &address.credentials, address.database).await {
            Ok((_, ServerRole { cluster: true, .. })) => return Ok((cluster(address).await?, host.clone())),
            Ok((connection, ServerRole { replica: false, .. })) => {
                return Ok((Connection::Single(connection), host.clone()));
            }
            Ok(_) => last = (ErrorKind::Client, "the server is a replica").into(),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What a server says that it is.
#[derive(Clone, Copy, Default)]
struct ServerRole {
    cluster: bool,
    replica: bool,
}

async fn single(
    address: &Address,
    host: &(String, u16),
    credentials: &Credentials,
    database: i64,
) -> RedisResult<(Shared, ServerRole)> {
    let mut connection = open(address, host, credentials, database).await?;
    let mut info = redis::cmd("INFO");
    info.arg("everything");
    // A user that may not ask for INFO is taken at its word.
    let info = match sent(&mut *connection, &info).await {
        Ok(value) => redis::from_redis_value::<String>(value)?,
        Err(error) if error.code() == Some("NOPERM") => String::new(),
        Err(error) => return Err(error),
    };
    let says = |line: &str| info.lines().any(|one| one == line);
    Ok((connection, ServerRole { cluster: says("cluster_enabled:1"), replica: says("role:slave") }))
}

/// Connects to one host. Whoever asks it says how long they wait for a reply.
pub async fn open(
    address: &Address,
    (host, port): &(String, u16),
    credentials: &Credentials,
    database: i64,
) -> RedisResult<Shared> {
    let (host, port) = (host.clone(), *port);
    let settings = settings(credentials).set_db(database);
    if !address.tls {
        let connected = timeout(CONNECT, Shared::plain(&host, port, &settings)).await;
        return connected.map_err(std::io::Error::from)?;
    }
    let addr = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
    let info = addr.into_connection_info()?.set_redis_settings(settings);
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(Some(CONNECT));
    let config = config.set_pipeline_buffer_size(QUEUE);
    Ok(client(address, info)?.get_multiplexed_async_connection_with_config(&config).await?.into())
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

/// Whether TLS takes the certificates that files have now.
pub fn check(address: &Address) -> RedisResult<()> {
    let host = ConnectionAddr::TcpTls { host: String::new(), port: 0, insecure: false, tls_params: None };
    client(address, host.into_connection_info()?).map(|_| ())
}

fn certificates(address: &Address) -> RedisResult<Option<TlsCertificates>> {
    if !address.tls {
        return Ok(None);
    }
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    };
    let root_cert = address.authority.as_ref().map(read).transpose()?;
    let client_tls = match &address.identity {
        Some((certificate, key)) => Some(ClientTlsConfig { client_cert: read(certificate)?, client_key: read(key)? }),
        None => None,
    };
    Ok((root_cert.is_some() || client_tls.is_some()).then_some(TlsCertificates { client_tls, root_cert }))
}

async fn cluster(address: &Address) -> RedisResult<Connection> {
    let scheme = if address.tls { "rediss" } else { "redis" };
    let nodes = address.hosts.iter().map(|(host, port)| {
        if host.contains(':') { format!("{scheme}://[{host}]:{port}") } else { format!("{scheme}://{host}:{port}") }
    });
    // A call that may have been carried out is not sent again: it would count twice.
    let mut builder = ClusterClient::builder(nodes).retries(0).connection_timeout(CONNECT).response_timeout(PATIENCE);
    if let Some(user) = &address.credentials.user {
        builder = builder.username(user);
    }
    if let Some(password) = &address.credentials.password {
        builder = builder.password(password.latest());
    }
    if address.tls {
        builder = builder.tls(TlsMode::Secure);
    }
    if let Some(certificates) = certificates(address)? {
        builder = builder.certs(certificates);
    }
    Ok(Connection::Cluster(builder.build()?.get_async_connection().await?))
}

/// Asks the Sentinels for the primary.
async fn primary(address: &Address, name: &str) -> RedisResult<(String, u16)> {
    let mut last = RedisError::from((ErrorKind::Client, "no Sentinel knows the primary"));
    for host in &address.hosts {
        let asked = async {
            let mut sentinel = open(address, host, &address.sentinel_credentials, 0).await?;
            let mut command = redis::cmd("SENTINEL");
            command.arg("get-master-addr-by-name").arg(name);
            let reply = sent(&mut *sentinel, &command).await?;
            Ok::<_, RedisError>(redis::from_redis_value::<Option<(String, u16)>>(reply)?)
        };
        match asked.await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}
