//! The certificate of a listener.

use crate::file_stamp::Stamp;
use crate::reload::{self, Count, Reloaded};
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

/// The certificates of a file and the key of another, as they were read last. Each handshake takes the latest.
#[derive(Debug)]
pub struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    now: ArcSwapOption<CertifiedKey>,
}

impl Certificate {
    /// Creates a certificate of files that are not read yet.
    fn of((chain, key): (PathBuf, PathBuf)) -> Arc<Certificate> {
        Arc::new(Certificate { chain, key, now: ArcSwapOption::empty() })
    }

    /// Returns an acceptor with the certificate, whose files are read again when they change.
    ///
    /// # Errors
    /// If the files are wrong now.
    pub fn watched(files: Option<(PathBuf, PathBuf)>, count: Count) -> Result<Option<TlsAcceptor>, String> {
        let Some(files) = files else { return Ok(None) };
        let certificate = Certificate::of(files);
        reload::begin(Arc::<Certificate>::clone(&certificate), count)?;
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
        self.now.load_full()
    }
}

impl Reloaded for Certificate {
    fn name(&self) -> &'static str {
        "the certificate of a listener"
    }

    fn stamp(&self) -> Stamp {
        Stamp::of([self.chain.clone(), self.key.clone()])
    }

    fn read(&self) -> Result<(), String> {
        self.now.store(Some(Arc::new(read(&self.chain, &self.key)?)));
        Ok(())
    }
}

fn read(certificate: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let told = |path: &Path, error: &dyn std::error::Error| format!("{}: {error}", path.display());
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| told(certificate, &error))?;
    if chain.is_empty() {
        return Err(format!("{}: the file has no certificate", certificate.display()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| told(key, &error))?;
    // That of one is not of the other while only one of the files has been renewed.
    CertifiedKey::from_der(chain, secret, &ring::default_provider()).map_err(|error| told(certificate, &error))
}
