//! Options for the control plane.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use clap::Args;
use std::path::PathBuf;

/// Options of `serve` for a control plane that sends the limits of domains.
#[derive(Args, Default)]
pub struct XdsOptions {
    /// Control plane (host:port) that sends the limits of domains by xDS, as Envoy Gateway does, instead of --config.
    #[arg(
        id = "xds",
        long = "xds",
        env = "RATELIMIT_GATEWAY_XDS",
        conflicts_with = "config",
        value_name = "HOST:PORT"
    )]
    pub address: Option<String>,
    /// Id by which the control plane knows the gateway. The default is that of Envoy Gateway.
    #[arg(
        id = "xds_node_id",
        long = "xds-node-id",
        env = "RATELIMIT_GATEWAY_XDS_NODE_ID",
        default_value = "envoy-ratelimit",
        value_name = "ID"
    )]
    pub node_id: String,
    /// Metadata of the node for the control plane: key=value, several separated by commas.
    #[arg(
        id = "xds_node_metadata",
        long = "xds-node-metadata",
        env = "RATELIMIT_GATEWAY_XDS_NODE_METADATA",
        value_parser = metadata_entry,
        value_delimiter = ',',
        value_name = "KEY=VALUE"
    )]
    pub node_metadata: Vec<(String, String)>,
    /// Headers of the stream to the control plane: name:value, several separated by commas. Secrets belong in the
    /// environment.
    #[arg(
        id = "xds_headers",
        long = "xds-headers",
        env = "RATELIMIT_GATEWAY_XDS_HEADERS",
        hide_env_values = true,
        value_name = "NAME:VALUE"
    )]
    pub headers: Option<String>,
    /// Connect to the control plane by TLS. The other options for its TLS imply this.
    #[arg(id = "xds_tls", long = "xds-tls", env = "RATELIMIT_GATEWAY_XDS_TLS")]
    pub tls: bool,
    /// File with the authorities that verify the control plane's certificate, instead of those of the system.
    #[arg(id = "xds_ca", long = "xds-ca", env = "RATELIMIT_GATEWAY_XDS_CA", value_name = "FILE")]
    pub authority: Option<PathBuf>,
    /// Client certificate for the control plane, with --xds-key.
    #[arg(
        id = "xds_cert",
        long = "xds-cert",
        env = "RATELIMIT_GATEWAY_XDS_CERT",
        requires = "xds_key",
        value_name = "FILE"
    )]
    pub certificate: Option<PathBuf>,
    /// Key of the client certificate for the control plane.
    #[arg(
        id = "xds_key",
        long = "xds-key",
        env = "RATELIMIT_GATEWAY_XDS_KEY",
        requires = "xds_cert",
        value_name = "FILE"
    )]
    pub key: Option<PathBuf>,
    /// Name that the certificate of the control plane must have. Default: the host of --xds.
    #[arg(
        id = "xds_server_name",
        long = "xds-server-name",
        env = "RATELIMIT_GATEWAY_XDS_SERVER_NAME",
        value_name = "NAME"
    )]
    pub server_name: Option<String>,
    /// Be ready without a configuration of the control plane. Until the first one, policies apply to all domains.
    #[arg(id = "force_start", long = "force-start", env = "RATELIMIT_GATEWAY_FORCE_START")]
    pub force_start: bool,
}

fn metadata_entry(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be such as key=value")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Parses headers. The error does not contain their text, which may be a secret.
///
/// # Errors
/// If a header is malformed.
pub fn parse_headers(text: &str) -> Result<HeaderMap, String> {
    let header = |text: &str| {
        let (name, value) = text.split_once(':')?;
        let mut value = HeaderValue::try_from(value.trim()).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name.trim()).ok()?, value))
    };
    let headers: Option<HeaderMap> = text.split(',').map(header).collect();
    headers.ok_or_else(|| "--xds-headers must be such as name:value, several with commas".to_owned())
}
