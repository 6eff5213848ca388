//! TLS settings of listeners and of clients: certificates, keys and authorities.

use crate::file_stamp::FileStamp;
use crate::reload::{self, ReloadCounter, Reloadable};
use arc_swap::ArcSwap;
use hyper_rustls::ConfigBuilderExt as _;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Current TLS settings of a listener, replaced when their files change. Each handshake uses the latest.
pub type TlsConfig = Arc<ArcSwap<ServerConfig>>;

/// Files with the TLS settings of a listener.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate chain of the listener.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// Authority that must have signed a client's certificate. `None`: clients need no certificate.
    pub client_authority: Option<PathBuf>,
}

/// TLS settings that are reloaded when their files change.
struct ReloadedTls {
    files: TlsFiles,
    current: TlsConfig,
}

impl TlsFiles {
    /// Reads the files, and returns TLS settings that follow their changes.
    ///
    /// # Errors
    /// If a file cannot be read or is malformed, or if the key does not belong to the certificate.
    pub fn watch(self, count: ReloadCounter) -> Result<TlsConfig, String> {
        let current = Arc::new(ArcSwap::from_pointee(self.read()?));
        let reloaded = ReloadedTls { files: self, current: Arc::clone(&current) };
        reload::load_and_watch(Arc::new(reloaded), count)?;
        Ok(current)
    }

    fn read(&self) -> Result<ServerConfig, String> {
        let chain = read_certificates(&self.certificate)?;
        let key = read_key(&self.key)?;
        let provider = Arc::new(ring::default_provider());
        let client_verifier = match &self.client_authority {
            Some(path) => {
                let roots = Arc::new(read_authorities(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
                verifier.build().map_err(|error| file_error(path, &error))?
            }
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = versions.map_err(|error| error.to_string())?.with_client_cert_verifier(client_verifier);
        // Fails while only one of the two files has been renewed. The next reload tries again.
        let config = builder.with_single_cert(chain, key).map_err(|error| file_error(&self.certificate, &error));
        let mut config = config?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl Reloadable for ReloadedTls {
    fn name(&self) -> &'static str {
        "the certificate of a listener"
    }

    fn stamp(&self) -> FileStamp {
        let TlsFiles { certificate, key, client_authority } = self.files.clone();
        FileStamp::read([certificate, key].into_iter().chain(client_authority))
    }

    fn read(&self) -> Result<(), String> {
        self.current.store(Arc::new(self.files.read()?));
        Ok(())
    }
}

/// Reads a file with the certificates of authorities.
///
/// # Errors
/// If the file cannot be read, is malformed or has no certificate.
fn read_authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|error| file_error(path, &error))?;
    }
    Ok(roots)
}

/// Returns the TLS settings of a client. It trusts the authorities in the file `authority`, or without that file, the
/// system's authorities. The latter are read only if `is_https`, because an image may have none. `identity` names the
/// files with the client's certificate and key.
///
/// # Errors
/// If a file cannot be read or is malformed, or if the key does not belong to the certificate.
pub fn client_config(
    authority: Option<&Path>,
    identity: Option<(&Path, &Path)>,
    is_https: bool,
) -> Result<ClientConfig, String> {
    let versions =
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions();
    let versions = versions.map_err(|error| error.to_string())?;
    let builder = match authority {
        Some(path) => versions.with_root_certificates(read_authorities(path)?),
        None if is_https => {
            versions.with_native_roots().map_err(|error| format!("the system's certificates: {error}"))?
        }
        None => versions.with_root_certificates(RootCertStore::empty()),
    };
    let Some((certificate, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    let config = builder.with_client_auth_cert(read_certificates(certificate)?, read_key(key)?);
    config.map_err(|error| file_error(certificate, &error))
}

/// Reads a private key.
///
/// # Errors
/// If the file cannot be read, or is malformed. The error names the file.
fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| file_error(path, &error))
}

/// Reads the certificates in a file.
///
/// # Errors
/// If the file cannot be read, is malformed or has no certificate. The error names the file.
fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.map_err(|error| file_error(path, &error))?;
    if certificates.is_empty() {
        Err(format!("{}: the file has no certificate", path.display()))
    } else {
        Ok(certificates)
    }
}

fn file_error(path: &Path, error: &dyn Error) -> String {
    format!("{}: {error}", path.display())
}
