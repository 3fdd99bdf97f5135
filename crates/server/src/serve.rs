//! Connections: accepted, limited, and ended in an orderly way.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use riffle_engine::Engine;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tower::ServiceExt;

use crate::api::openai::KeptItems;
use crate::app::{App, BODY_STEP, unix_seconds};
use crate::speech::Markup;
use crate::{KvEventAddresses, ServerError, ServerOptions, Worker, log, router};

/// How long to wait after a connection could not be accepted, as when all file handles are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A server that listens.
pub struct Server {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    stop: watch::Sender<bool>,
}

/// Ends a server from elsewhere, such as from a handler of signals.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Tells the server to end. It takes no more requests, lets answers go on for a while and writes held beginnings to
    /// disk.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Listens, and starts the thread that computes. Requests are answered once it [runs](Self::run).
    ///
    /// # Errors
    /// [`ServerError::Listen`] for an address that is taken; [`ServerError::Engine`] for an engine that cannot serve requests;
    /// [`ServerError::Option`] for options that make no sense.
    pub fn bind(engine: &Arc<Engine>, options: ServerOptions) -> Result<Self, ServerError> {
        check(&options)?;
        engine.tokenizer()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("riffle-http")
            .enable_all()
            .build()
            .map_err(ServerError::Thread)?;
        let address = options.address;
        let listen = |source| ServerError::Listen { address, source };
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let Worker { driver, forms, metrics } = Worker::start(engine, &options, None)?;
        let app = App {
            engine: Arc::clone(engine),
            driver,
            forms,
            markup: Markup::detect(engine),
            kept_items: KeptItems::default(),
            traits: Default::default(),
            facts: OnceLock::new(),
            started: unix_seconds(),
            adapter_scales: Mutex::new(engine.options().sequence.adapters),
            bodies: Arc::new(Semaphore::new(options.limits.bodies_bytes.div_ceil(BODY_STEP))),
            metrics,
            options,
        };
        Ok(Self {
            runtime,
            listener,
            address,
            app: Arc::new(app),
            stop: watch::Sender::new(false),
        })
    }

    /// Address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Addresses of the published KV events; `None` if none are published.
    pub fn kv_events(&self) -> Option<&KvEventAddresses> {
        self.app.driver.kv_events()
    }

    /// Handle that ends the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Answers one request without a connection: its status and its body. For tests and fuzzing.
    pub fn respond(&self, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_vec()));
        let Ok(request) = request else {
            // A path that is none.
            return (400, Vec::new());
        };
        let router = router::router(&self.app);
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

    /// Serves until it is told to stop, and returns when everything has ended.
    ///
    /// # Errors
    /// None at present: connections that fail end alone.
    pub fn run(self) -> Result<(), ServerError> {
        let Self {
            runtime,
            listener,
            app,
            stop,
            ..
        } = self;
        let grace = app.options.grace;
        let router = router::router(&app);
        runtime.block_on(async {
            let open = accept(&listener, &app, router, stop.subscribe()).await;
            drop(listener);
            let ending = Arc::clone(&app);
            let driver = tokio::task::spawn_blocking(move || ending.driver.stop(grace));
            // Answers end with the driver. The server waits a second for clients that still receive theirs.
            drop(driver.await);
            drop(tokio::time::timeout(Duration::from_secs(1), open.shutdown()).await);
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
    if let Some(key) = options.api_keys.iter().find(|key| key.trim().is_empty()) {
        return refuse("api_keys", format!("{key:?}"), "a key must not be empty");
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
        Some(path) => std::fs::create_dir_all(path).map_err(|source| ServerError::Sessions {
            path: path.clone(),
            source,
        }),
        None => Ok(()),
    }
}

/// Accepts connections until the server is to stop; returns the open ones.
async fn accept(
    listener: &TcpListener,
    app: &Arc<App>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) -> GracefulShutdown {
    let open = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(app.options.limits.connections));
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place.ok())
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            _ = stop.wait_for(|stop| *stop) => return open,
        };
        match accepted {
            Ok((stream, _)) => serve(stream, app, router.clone(), &open, place),
            Err(error) => {
                log::note(&format!("a connection could not be accepted: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection on a task of its own.
fn serve(
    stream: TcpStream,
    app: &Arc<App>,
    router: Router,
    open: &GracefulShutdown,
    place: Option<OwnedSemaphorePermit>,
) {
    drop(stream.set_nodelay(true));
    let mut builder = Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(app.options.limits.arrival_time);
    let service = TowerToHyperService::new(router);
    let connection = open.watch(builder.serve_connection(TokioIo::new(stream), service));
    tokio::spawn(async move {
        // A connection that breaks is its client's affair; the request it carried is taken back.
        drop(connection.await);
        drop(place);
    });
}
