//! TLS certificate of a listener.

use crate::file_stamp::FileStamp;
use crate::reload::{self, ReloadCounter, Reloadable};
use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// Certificate chain and private key, reloaded when their files change. Each handshake uses the latest.
#[derive(Debug)]
pub struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    current: ArcSwapOption<CertifiedKey>,
}

impl Certificate {
    /// Creates a certificate whose files are not read yet.
    fn new((chain, key): (PathBuf, PathBuf)) -> Arc<Certificate> {
        Arc::new(Certificate { chain, key, current: ArcSwapOption::empty() })
    }

    /// Reads the files of a chain and its key, and returns a TLS acceptor that follows their changes.
    ///
    /// # Errors
    /// If a file cannot be read or is malformed, or if the key does not belong to the certificate.
    pub fn watch(files: Option<(PathBuf, PathBuf)>, count: ReloadCounter) -> Result<Option<TlsAcceptor>, String> {
        let Some(files) = files else { return Ok(None) };
        let certificate = Certificate::new(files);
        reload::load_and_watch(Arc::<Certificate>::clone(&certificate), count)?;
        Ok(Some(certificate.acceptor()))
    }

    fn acceptor(self: &Arc<Certificate>) -> TlsAcceptor {
        let resolver: Arc<dyn ResolvesServerCert> = Arc::<Certificate>::clone(self);
        let mut config = ServerConfig::builder().with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }
}

impl Reloadable for Certificate {
    fn name(&self) -> &'static str {
        "the certificate of a listener"
    }

    fn stamp(&self) -> FileStamp {
        FileStamp::read([self.chain.clone(), self.key.clone()])
    }

    fn read(&self) -> Result<(), String> {
        self.current.store(Some(Arc::new(read_files(&self.chain, &self.key)?)));
        Ok(())
    }
}

fn read_files(certificate: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let name_file = |path: &Path, error: &dyn std::error::Error| format!("{}: {error}", path.display());
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| name_file(certificate, &error))?;
    if chain.is_empty() {
        return Err(format!("{}: the file has no certificate", certificate.display()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| name_file(key, &error))?;
    // Fails while only one of the two files has been renewed.
    CertifiedKey::from_der(chain, secret, &ring::default_provider()).map_err(|error| name_file(certificate, &error))
}
