//! A server from its start to its end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use riffle_engine::Engine;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tower::ServiceExt;

use crate::listening::Listener;
use crate::log::Log;
use crate::models::Models;
use crate::site::Site;
use crate::{
    Keys, KvEventAddresses, ListenAddress, ModelsPlan, ServerError, ServerOptions, Tls, base_path, connections, router,
};

/// A server that listens.
pub struct Server {
    runtime: Runtime,
    listener: Listener,
    address: ListenAddress,
    site: Arc<Site>,
    kv_events: Option<KvEventAddresses>,
    tls: Option<Tls>,
    stop: watch::Sender<bool>,
}

/// Stops a server, for example from a signal handler.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Starts the shutdown. The server refuses new requests, lets answers continue for a while and writes held
    /// beginnings to disk.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Listens, and starts the computing thread. [`run`](Self::run) answers requests. The model stays loaded.
    ///
    /// # Errors
    /// [`ServerError::Listen`] for an address in use; [`ServerError::Engine`] for an engine that cannot serve
    /// requests; [`ServerError::Option`] for invalid options.
    pub fn bind(engine: &Arc<Engine>, options: ServerOptions) -> Result<Self, ServerError> {
        engine.tokenizer()?;
        Self::listen(options, |options| Models::of_engine(engine, options))
    }

    /// Listens, for models that are loaded on request, as far as they fit in memory together. The options `model_name`
    /// and `aliases` have no effect. Each model has its own folder of sessions, and all share the prefix cache.
    ///
    /// # Errors
    /// [`ServerError::Listen`] for an address in use; [`ServerError::Option`] for no model, two models with one name,
    /// KV events of several models, and invalid options.
    pub fn bind_models(plan: &ModelsPlan, options: ServerOptions) -> Result<Self, ServerError> {
        if options.kv_events.is_some() {
            return Err(ServerError::Option {
                option: "kv_events",
                value: "on".to_owned(),
                problem: "events do not tell several models apart; serve one model, or leave the events out".to_owned(),
            });
        }
        Self::listen(options, |options| Models::of_plan(plan, options))
    }

    fn listen(
        options: ServerOptions,
        models: impl FnOnce(&ServerOptions) -> Result<Models, ServerError>,
    ) -> Result<Self, ServerError> {
        check(&options)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("riffle-http")
            .enable_all()
            .build()
            .map_err(ServerError::Thread)?;
        let listen = |source| ServerError::Listen {
            address: options.address.clone(),
            source,
        };
        let listener = runtime.block_on(Listener::bind(&options.address)).map_err(listen)?;
        let address = listener.address().map_err(listen)?;
        let models = models(&options)?;
        let resident = models.resident();
        Ok(Self {
            runtime,
            listener,
            address,
            kv_events: resident.and_then(|app| app.driver.kv_events().cloned()),
            tls: options.tls.clone().map(Tls::new),
            site: Arc::new(Site::new(models, options)?),
            stop: watch::Sender::new(false),
        })
    }

    /// Address of the server.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// Log of the server, for further notes.
    pub fn log(&self) -> Log {
        self.site.log
    }

    /// API keys, which may be replaced while the server runs.
    pub fn keys(&self) -> Keys {
        self.site.keys.clone()
    }

    /// The certificate for encrypted connections, which may be replaced while the server runs; `None` for a server
    /// without TLS.
    pub fn tls(&self) -> Option<Tls> {
        self.tls.clone()
    }

    /// Addresses of the published KV events; `None` if none are published.
    pub fn kv_events(&self) -> Option<&KvEventAddresses> {
        self.kv_events.as_ref()
    }

    /// Handle that ends the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Answers one request without a connection. Returns its status and its body. For tests and fuzzing.
    pub fn respond(&self, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_vec()));
        let Ok(request) = request else {
            // An invalid path.
            return (400, Vec::new());
        };
        let router = router::router(&self.site);
        self.runtime.block_on(async {
            let response = match router.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            let status = response.status().as_u16();
            let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
            (status, body.unwrap_or_default().to_vec())
        })
    }

    /// Serves until it is told to stop. Returns after everything has ended.
    ///
    /// # Errors
    /// None at present: a failed connection ends alone.
    pub fn run(self) -> Result<(), ServerError> {
        let Self {
            runtime,
            listener,
            site,
            tls,
            stop,
            ..
        } = self;
        let grace = site.options.grace;
        let router = router::router(&site);
        runtime.block_on(async {
            let mut told = stop.subscribe();
            let ended = async {
                drop(told.wait_for(|stop| *stop).await);
                site.is_ending.store(true, Ordering::Relaxed);
                let ending = Arc::clone(&site);
                drop(tokio::task::spawn_blocking(move || ending.models.end(grace)).await);
            };
            // Requests during the shutdown are refused with a status that tells when to try again.
            let open = connections::accept(&listener, &site, router, tls, ended).await;
            drop(listener);
            // Answers end with the driver. The server waits a second for clients that are still receiving.
            drop(tokio::time::timeout(Duration::from_secs(1), open.close()).await);
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        Ok(())
    }
}

fn check(options: &ServerOptions) -> Result<(), ServerError> {
    let refuse = |option, value: String, problem: &str| {
        Err(ServerError::Option {
            option,
            value,
            problem: problem.to_owned(),
        })
    };
    if options.limits.requests == 0 {
        return refuse("limits.requests", "0".to_owned(), "at least 1 request has to be taken");
    }
    if options.limits.connections == 0 {
        return refuse(
            "limits.connections",
            "0".to_owned(),
            "at least 1 connection has to be taken",
        );
    }
    base_path::check(&options.base_path)?;
    if options.tls.is_some() && options.address.tcp().is_none() {
        let address = options.address.to_string();
        return refuse(
            "tls",
            address,
            "connections to a UNIX socket stay on the machine and are not encrypted: leave the certificate out",
        );
    }
    if options.limits.bodies_bytes < options.limits.body_bytes {
        let bytes = options.limits.body_bytes.to_string();
        return refuse(
            "limits.body_bytes",
            bytes,
            "it is more than the bodies of all requests may have together",
        );
    }
    match &options.session_folder {
        Some(path) => make_session_folder(path),
        None => Ok(()),
    }
}

/// Creates a folder of sessions if it is missing.
pub(crate) fn make_session_folder(path: &Path) -> Result<(), ServerError> {
    std::fs::create_dir_all(path).map_err(|source| ServerError::Sessions {
        path: path.to_owned(),
        source,
    })
}
