//! Address of the server from the variables `REDIS_*` of envoyproxy/ratelimit.

use crate::environment::Environment;
use crate::upstream::Address;
use ratelimit_link::address::Credentials;
use ratelimit_link::secrets::Secret;
use std::fmt::Display;
use std::path::PathBuf;

/// Returns the address of the server, or `None` if only the variable `RATELIMIT_GATEWAY_SERVER` has it.
///
/// # Errors
/// If a variable is malformed, or is for a feature that the gateway does not have. The error contains no secret.
pub fn address(environment: &Environment) -> Result<Option<Address>, String> {
    if environment.text("REDIS_URL").is_none() && environment.has_option("--server") {
        return Ok(None);
    }
    let url = environment.text("REDIS_URL").unwrap_or("/var/run/nutcracker/ratelimit.sock");
    let kind = environment.text("REDIS_TYPE").unwrap_or("SINGLE").to_ascii_lowercase();
    let mut address = match kind.as_str() {
        "single" => single(environment, url)?,
        "cluster" => hosts(url.split(','))?,
        "sentinel" => sentinel(url)?,
        _ => return Err("REDIS_TYPE: must be SINGLE, SENTINEL or CLUSTER".to_owned()),
    };
    if environment.flag("REDIS_TLS")? {
        set_tls(environment, &mut address)?;
    }
    if let Some(auth) = environment.text("REDIS_AUTH") {
        address.credentials = credentials(auth);
    } else if let Some(password) = Secret::find("RATELIMIT_GATEWAY_SERVER_PASSWORD")? {
        address.credentials.password = Some(password);
    }
    if let Some(auth) = environment.text("REDIS_SENTINEL_AUTH") {
        address.sentinel_credentials = credentials(auth);
    } else if let Some(password) = Secret::find("RATELIMIT_GATEWAY_SENTINEL_PASSWORD")? {
        address.sentinel_credentials.password = Some(password);
    }
    Ok(Some(address))
}

fn single(environment: &Environment, url: &str) -> Result<Address, String> {
    match environment.text("REDIS_SOCKET_TYPE").unwrap_or("unix") {
        "tcp" => host(url),
        "unix" if url.starts_with('/') => Address::parse(&format!("unix://{url}")).map_err(in_url),
        "unix" => {
            Err("REDIS_URL: must be the path of a socket; for a host and a port, set REDIS_SOCKET_TYPE=tcp".to_owned())
        }
        _ => Err("REDIS_SOCKET_TYPE: must be tcp or unix".to_owned()),
    }
}

/// Parses the name of the primary and the Sentinels after it.
fn sentinel(url: &str) -> Result<Address, String> {
    let (name, sentinels) = url.split_once(',').filter(|(name, _)| !name.is_empty()).ok_or(
        "REDIS_URL: must be the name of the primary and the Sentinels, such as mymaster,host1:26379,host2:26379",
    )?;
    let mut address = hosts(sentinels.split(','))?;
    address.primary = Some(name.to_owned());
    address.sentinel_credentials = std::mem::take(&mut address.credentials);
    Ok(address)
}

/// Parses several hosts. The user and the database of the first host apply to all.
fn hosts<'a>(mut texts: impl Iterator<Item = &'a str>) -> Result<Address, String> {
    let mut address = host(texts.next().unwrap_or_default())?;
    for text in texts {
        address.hosts.extend(host(text)?.hosts);
    }
    Ok(address)
}

/// Parses `host:port`, or `redis://user:password@host:port/database`.
fn host(text: &str) -> Result<Address, String> {
    let text = text.trim();
    let address = if text.contains("://") { Address::parse(text) } else { Address::parse(&format!("redis://{text}")) };
    address.map_err(in_url)
}

fn in_url(error: impl Display) -> String {
    format!("REDIS_URL: {error}")
}

fn set_tls(environment: &Environment, address: &mut Address) -> Result<(), String> {
    if environment.flag("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION")? {
        return Err(
            "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: the name in the certificate of the server is always verified; \
             unset it, and put that name into REDIS_URL"
                .to_owned(),
        );
    }
    if address.hosts.iter().any(|(host, _)| host.starts_with('/')) {
        return Err("REDIS_TLS: there is no TLS over a socket; set REDIS_SOCKET_TYPE=tcp".to_owned());
    }
    let file = |variable| environment.text(variable).map(PathBuf::from);
    address.tls = true;
    address.authority = file("REDIS_TLS_CACERT");
    address.identity = match (file("REDIS_TLS_CLIENT_CERT"), file("REDIS_TLS_CLIENT_KEY")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err("REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY: both must be set, or neither".to_owned()),
    };
    Ok(())
}

/// Parses `user:password`, or a password alone.
fn credentials(text: &str) -> Credentials {
    let (user, password) = text.split_once(':').unwrap_or(("", text));
    let password = Secret::from_text(password.to_owned());
    Credentials { user: (!user.is_empty()).then(|| user.to_owned()), password }
}
