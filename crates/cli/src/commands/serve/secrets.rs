//! Keys and certificates of a server, read from files and again at each hang-up signal.

use std::path::{Path, PathBuf};

use riffle_server::{ApiKey, Keys, Server, Tls, TlsError, TlsIdentity};

use super::Notes;
use crate::commands::read_text;
use crate::failure::Failure;
use crate::serve_args::ServeArguments;

/// The files, and the server's state that depends on them.
pub(super) struct Secrets {
    key_file: Option<PathBuf>,
    keys: Keys,
    certificate: Option<(CertificateFiles, Tls)>,
    notes: Notes,
}

/// The files of a certificate and its private key.
#[derive(Clone)]
struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
}

/// The accepted keys; none without a file.
pub(super) fn api_keys(arguments: &ServeArguments) -> Result<Vec<ApiKey>, Failure> {
    arguments.api_key_file.as_deref().map_or(Ok(Vec::new()), keys_of)
}

/// The certificate and its key; none without files.
pub(super) fn tls_identity(arguments: &ServeArguments) -> Result<Option<TlsIdentity>, Failure> {
    let files = CertificateFiles::of(arguments)?;
    files.map(|files| files.identity()).transpose()
}

impl Secrets {
    pub(super) fn of(server: &Server, arguments: &ServeArguments, notes: Notes) -> Result<Self, Failure> {
        Ok(Self {
            key_file: arguments.api_key_file.clone(),
            keys: server.keys(),
            certificate: CertificateFiles::of(arguments)?.zip(server.tls()),
            notes,
        })
    }

    /// Reads the files again. If this fails, the server keeps its current secrets.
    pub(super) fn read_again(&self) {
        if let Some(path) = &self.key_file {
            self.notes.tell(&match self.read_keys_again(path) {
                Ok(count) => format!("keys of {} were read again: {count}", path.display()),
                Err(failure) => format!("the keys stay as they were: {}", failure.message()),
            });
        }
        if let Some((files, tls)) = &self.certificate {
            self.notes.tell(&match files.identity() {
                Ok(identity) => {
                    tls.replace(identity);
                    format!("the certificate of {} was read again", files.certificate.display())
                }
                Err(failure) => format!("the certificate stays as it was: {}", failure.message()),
            });
        }
        if self.key_file.is_none() && self.certificate.is_none() {
            let line = "hang-up: there is no file of keys or certificates to read again (--api-key-file, --tls-cert)";
            self.notes.tell(line);
        }
    }

    fn read_keys_again(&self, path: &Path) -> Result<usize, Failure> {
        let keys = keys_of(path)?;
        let count = keys.len();
        self.keys.replace(keys)?;
        Ok(count)
    }
}

impl CertificateFiles {
    fn of(arguments: &ServeArguments) -> Result<Option<Self>, Failure> {
        match (&arguments.tls_cert, &arguments.tls_key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some(Self {
                certificate: certificate.clone(),
                key: key.clone(),
            })),
            (Some(_), None) => Err(Failure::new("--tls-cert needs --tls-key: the file of its private key")),
            (None, Some(_)) => Err(Failure::new("--tls-key needs --tls-cert: the file of its certificate")),
        }
    }

    fn identity(&self) -> Result<TlsIdentity, Failure> {
        let (certificates, key) = (read_text(&self.certificate)?, read_text(&self.key)?);
        TlsIdentity::from_pem(&certificates, &key).map_err(|error| {
            let path = match error {
                TlsError::Certificate(_) => &self.certificate,
                TlsError::Key(_) | TlsError::Mismatch => &self.key,
            };
            Failure::new(format!("{}: {error}", path.display()))
        })
    }
}

/// Reads the keys of a file, one per line.
fn keys_of(path: &Path) -> Result<Vec<ApiKey>, Failure> {
    let keys = ApiKey::parse_lines(&read_text(path)?);
    if keys.is_empty() {
        Err(Failure::new(format!(
            "--api-key-file {}: it has no key: write one a line",
            path.display()
        )))
    } else {
        Ok(keys)
    }
}
