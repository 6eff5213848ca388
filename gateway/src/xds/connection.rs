//! Connections to the control plane.

use super::XdsOptions;
use crate::grpc_client::{self, CONNECT_TIMEOUT, chain};
use std::path::PathBuf;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

/// Address of a control plane, and the files for its TLS.
#[derive(Debug)]
pub struct ControlPlane {
    endpoint: Endpoint,
    tls: Option<Tls>,
}

/// Settings of TLS. The files are read for each connection, so that renewed files are used.
#[derive(Debug)]
struct Tls {
    server_name: String,
    authority: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
}

impl ControlPlane {
    /// Creates a control plane without connecting to it.
    ///
    /// # Errors
    /// If the address or a file is malformed.
    pub fn new(address: &str, options: &XdsOptions) -> Result<ControlPlane, String> {
        let XdsOptions { tls, authority, certificate, key, server_name, .. } = options;
        let identity = certificate.clone().zip(key.clone());
        let tls = *tls || authority.is_some() || identity.is_some() || server_name.is_some();
        let scheme = if tls { "https" } else { "http" };
        let malformed = || "--xds must be such as localhost:18000".to_owned();
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(|_| malformed())?;
        let uri = endpoint.uri();
        let host = uri.host().filter(|host| !host.is_empty() && uri.path() == "/" && uri.query().is_none());
        let (Some(host), Some(port)) = (host, uri.port()) else { return Err(malformed()) };
        // The parser of URIs also accepts a user, and text between an IPv6 address in brackets and its port.
        if uri.authority().is_none_or(|authority| *authority != *format!("{host}:{port}")) {
            return Err(malformed());
        }
        let host = host.trim_matches(['[', ']']).to_owned();
        let tls = tls.then(|| Tls {
            server_name: server_name.clone().unwrap_or(host),
            authority: authority.clone(),
            identity,
        });
        let control_plane = ControlPlane { endpoint, tls };
        control_plane.endpoint()?;
        Ok(control_plane)
    }

    /// Returns the endpoint, with the current content of the files for TLS.
    fn endpoint(&self) -> Result<Endpoint, String> {
        let Some(tls) = &self.tls else { return Ok(self.endpoint.clone()) };
        let config = grpc_client::tls(tls.authority.as_deref(), tls.identity.as_ref())?.domain_name(&tls.server_name);
        self.endpoint
            .clone()
            .tls_config(config)
            .map_err(|error| format!("TLS with the control plane: {}", chain(&error)))
    }

    /// Connects to the control plane.
    ///
    /// # Errors
    /// If a file cannot be read, or if the control plane cannot be reached or does not accept TLS as configured.
    pub async fn connect(&self) -> Result<Channel, String> {
        let endpoint = self.endpoint()?;
        match timeout(CONNECT_TIMEOUT, endpoint.connect_with_connector(grpc_client::connector())).await {
            Ok(connected) => connected.map_err(|error| chain(&error)),
            Err(_) => Err("no connection in time".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ControlPlane, XdsOptions};

    #[test]
    fn address_must_be_a_host_and_a_port() {
        let host = |address: &str| {
            let options = XdsOptions { tls: true, ..XdsOptions::default() };
            ControlPlane::new(address, &options).map(|parsed| parsed.tls.unwrap().server_name)
        };
        assert_eq!(host("envoy-gateway:18001").as_deref(), Ok("envoy-gateway"));
        assert_eq!(host("[::1]:18001").as_deref(), Ok("::1"));
        for malformed in [
            "",
            "a",
            "a:",
            ":1",
            "a:x",
            "a:70000",
            "http://a:1",
            "a:1/b",
            "a:1?b",
            "[::1",
            "[::1]x:1",
            "u@a:1",
            "a b:1",
        ] {
            assert_eq!(host(malformed), Err("--xds must be such as localhost:18000".to_owned()), "{malformed}");
        }
    }

    #[test]
    fn tls_is_implied_by_its_settings() {
        let is_tls = |options| ControlPlane::new("localhost:1", &options).unwrap().tls.is_some();
        assert!(!is_tls(XdsOptions::default()));
        assert!(is_tls(XdsOptions { tls: true, ..XdsOptions::default() }));
        assert!(is_tls(XdsOptions { server_name: Some("a".to_owned()), ..XdsOptions::default() }));
    }
}
