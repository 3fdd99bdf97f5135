//! Certificates of a server that speaks HTTPS.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{Error, ServerConfig};

/// A certificate with its intermediate certificates, and its private key.
#[derive(Clone)]
pub struct TlsIdentity(Arc<ServerConfig>);

/// The identity of a server, which may be replaced while it runs. Clones share one identity.
#[derive(Debug, Clone)]
pub struct Tls(Arc<RwLock<TlsIdentity>>);

/// The fault of a certificate or a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The certificates' text is invalid.
    #[error("{0}")]
    Certificate(String),
    /// The key's text is invalid.
    #[error("{0}")]
    Key(String),
    /// The key belongs to another certificate.
    #[error(
        "it is not the key of the certificate: give the two that were made together, the server's own certificate first"
    )]
    Mismatch,
}

impl TlsIdentity {
    /// Reads PEM: the server's certificate, then its intermediates; and the private key, as PKCS #8, PKCS #1 or SEC1.
    ///
    /// # Errors
    /// [`TlsError`] for a text without a certificate or a key, and for a key of another certificate. Also for a key
    /// with a password or of an unknown kind.
    pub fn from_pem(certificates: &str, key: &str) -> Result<Self, TlsError> {
        let chain = certificates_of(certificates)?;
        let key = key_of(key)?;
        let provider = Arc::new(rustls_graviola::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Key(error.to_string()))?;
        let config = builder.with_no_client_auth().with_single_cert(chain, key);
        let mut config = config.map_err(|error| match error {
            Error::InconsistentKeys(_) => TlsError::Mismatch,
            Error::InvalidCertificate(error) => {
                TlsError::Certificate(format!("its certificate is not valid: {error:?}"))
            }
            error => TlsError::Key(format!("its key cannot be used: {error}")),
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity")
    }
}

impl Tls {
    pub(crate) fn new(identity: TlsIdentity) -> Self {
        Self(Arc::new(RwLock::new(identity)))
    }

    /// Replaces the identity for new connections. Open ones are unaffected.
    pub fn replace(&self, identity: TlsIdentity) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = identity;
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner).0)
    }
}

fn certificates_of(text: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let chain = chain.map_err(|error| TlsError::Certificate(format!("it is not valid PEM: {error}")))?;
    if chain.is_empty() {
        let problem = if text.contains("PRIVATE KEY") {
            "it has a private key and no certificate: were the two files exchanged?"
        } else {
            "it has no certificate: PEM is expected, from BEGIN CERTIFICATE to END CERTIFICATE"
        };
        return Err(TlsError::Certificate(problem.to_owned()));
    }
    Ok(chain)
}

fn key_of(text: &str) -> Result<PrivateKeyDer<'static>, TlsError> {
    let problem = match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
        Ok(_) if text.contains("Proc-Type: 4,ENCRYPTED") => return Err(locked()),
        Ok(key) => return Ok(key),
        Err(_) if text.contains("ENCRYPTED PRIVATE KEY") => return Err(locked()),
        Err(PemError::NoItemsFound) if text.contains("BEGIN CERTIFICATE") => {
            "it has a certificate and no private key: were the two files exchanged?".to_owned()
        }
        Err(PemError::NoItemsFound) => {
            "it has no private key: PEM is expected, from BEGIN PRIVATE KEY to END PRIVATE KEY".to_owned()
        }
        Err(error) => format!("it is not valid PEM: {error}"),
    };
    Err(TlsError::Key(problem))
}

fn locked() -> TlsError {
    TlsError::Key("its key has a password: take it off (openssl pkey -in KEY -out PLAIN)".to_owned())
}
