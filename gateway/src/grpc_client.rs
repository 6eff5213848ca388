//! Connections to gRPC services: TLS from files, and TCP that detects an unreachable peer.

use hyper_util::client::legacy::connect::HttpConnector;
use ratelimit_link::connect::read_pem;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// Timeout of a connection attempt.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time after which the system probes a connection, and interval of the probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Time without an acknowledgement of sent data after which a connection ends.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(15);

/// Returns the TLS settings of a client. `authority` names a file with the authorities that verify the peer's
/// certificate, instead of those of the system. `identity` names the files with the client's certificate and key.
///
/// # Errors
/// If a file cannot be read. The error names the file.
pub fn tls(authority: Option<&Path>, identity: Option<&(PathBuf, PathBuf)>) -> Result<ClientTlsConfig, String> {
    let read = |path, label| read_pem(path, label).map_err(|error| error.to_string());
    let config = ClientTlsConfig::new().timeout(CONNECT_TIMEOUT);
    let config = match authority {
        Some(authority) => config.ca_certificate(Certificate::from_pem(read(authority, "CERTIFICATE")?)),
        None => config.with_native_roots(),
    };
    let Some((certificate, key)) = identity else { return Ok(config) };
    Ok(config.identity(Identity::from_pem(read(certificate, "CERTIFICATE")?, read(key, "PRIVATE KEY")?)))
}

/// Returns a connector whose connections end if the peer is unreachable. TCP keepalive detects an unreachable peer,
/// because gRPC servers in Go end a connection with more than one PING of HTTP/2 in five minutes.
pub fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_keepalive(Some(PROBE_INTERVAL));
    connector.set_keepalive_interval(Some(PROBE_INTERVAL));
    connector.set_keepalive_retries(Some(2));
    // Without this timeout, the system would resend unacknowledged data for a quarter of an hour.
    #[cfg(target_os = "linux")]
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT));
    connector
}

/// Returns the messages of an error and its sources. Some errors repeat the message of their source.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let sources = std::iter::successors(Some(error), |error| (*error).source());
    let mut messages: Vec<String> = sources.map(ToString::to_string).collect();
    messages.dedup();
    messages.join(": ")
}
