//! HTTP for the crate `object_store`: each request runs on the calling thread, within its limits.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use riffle_kv::StoreError;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Error};

/// Maximum number of idle connections to a host.
const MOST_IDLE: usize = 32;

thread_local! {
    static LIMITS: Cell<Option<(Instant, usize)>> = const { Cell::new(None) };
    static TOO_LONG: Cell<bool> = const { Cell::new(false) };
}

/// The limits of this thread's requests until it is dropped.
pub(super) struct Limits;

impl Limits {
    pub(super) fn set(until: Instant, most_bytes: usize) -> Self {
        LIMITS.set(Some((until, most_bytes)));
        TOO_LONG.set(false);
        Self
    }

    /// True if an answer was too long.
    pub(super) fn was_too_long(&self) -> bool {
        TOO_LONG.get()
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        LIMITS.set(None);
    }
}

/// Makes clients.
#[derive(Debug)]
pub(super) struct Connector(Agent);

#[derive(Debug)]
struct Client(Agent);

impl Connector {
    pub(super) fn new() -> Result<Self, StoreError> {
        let roots = rustls_native_certs::load_native_certs().certs;
        let roots: Vec<Certificate<'static>> = roots
            .iter()
            .map(|certificate| Certificate::from_der(certificate).to_owned())
            .collect();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&roots))
            .unversioned_rustls_crypto_provider(Arc::new(rustls_graviola::default_provider()))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .user_agent(concat!("riffle/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections(MOST_IDLE)
            .max_idle_connections_per_host(MOST_IDLE)
            .build();
        Ok(Self(config.into()))
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Client(self.0.clone())))
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let (until, most_bytes) = LIMITS
            .get()
            .unwrap_or((Instant::now() + Duration::from_secs(5), 1 << 20));
        let left = until
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        let has_body = !body.is_empty() || matches!(parts.method.as_str(), "PUT" | "POST");
        let answer = if has_body {
            let request = ureq::http::Request::from_parts(parts, &body[..]);
            let request = self.0.configure_request(request).timeout_global(Some(left)).build();
            self.0.run(request)
        } else {
            let request = ureq::http::Request::from_parts(parts, ());
            let request = self.0.configure_request(request).timeout_global(Some(left)).build();
            self.0.run(request)
        };
        let (parts, mut body) = answer.map_err(failed)?.into_parts();
        // Headers besides a block's bytes do not count.
        let bytes = body
            .with_config()
            .limit(most_bytes as u64)
            .read_to_vec()
            .map_err(failed)?;
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(bytes)))
    }
}

fn failed(error: Error) -> HttpError {
    let kind = match &error {
        Error::Timeout(_) => HttpErrorKind::Timeout,
        Error::HostNotFound | Error::ConnectionFailed => HttpErrorKind::Connect,
        Error::BodyExceedsLimit(_) => {
            TOO_LONG.set(true);
            HttpErrorKind::Decode
        }
        Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
        Error::Io(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
