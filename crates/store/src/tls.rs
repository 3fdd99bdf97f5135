//! Encrypted connections, with the certificates that the system trusts.

use std::sync::Arc;

use riffle_kv::StoreError;
use rustls::{ClientConfig, RootCertStore};

/// The TLS configuration.
pub(crate) fn config() -> Result<Arc<ClientConfig>, StoreError> {
    let refused = |problem: String| StoreError::Refused(problem);
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(refused(
            "this machine trusts no certificate: install its package of certificates, for example ca-certificates"
                .to_owned(),
        ));
    }
    let provider = Arc::new(rustls_graviola::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| refused(error.to_string()))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}
