//! Accepts, limits and ends connections.

mod half_closed;
mod handshake;
mod places;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tower::ServiceExt;

use crate::Tls;
use crate::listening::{Connection, Listener, Socket, Stream};
use crate::log::Line;
use crate::request_notes::Peer;
use crate::site::Site;
use half_closed::HalfClosed;
use places::{Busy, Place, Places};

/// Delay after a failed accept, for example if all file handles are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time limit for a connection to end after it was told to make place.
const LEAVE_TIME: Duration = Duration::from_secs(1);

/// State shared by all connections.
#[derive(Clone)]
struct Service {
    site: Arc<Site>,
    router: Router,
    tls: Option<Tls>,
    closing: watch::Receiver<bool>,
}

/// The open connections.
pub(crate) struct Open {
    places: Arc<Places>,
    closing: watch::Sender<bool>,
}

impl Open {
    /// Ends idle connections at once, ends the others after their answer, and waits for all.
    pub(crate) async fn close(self) {
        self.closing.send_replace(true);
        self.places.all_ended().await;
    }
}

/// Accepts connections until the server has `ended`; returns the open ones.
pub(crate) async fn accept(
    listener: &Listener,
    site: &Arc<Site>,
    router: Router,
    tls: Option<Tls>,
    ended: impl Future<Output = ()>,
) -> Open {
    let (closing, told) = watch::channel(false);
    let places = Places::new(site.options.limits.connections);
    let service = Service {
        site: Arc::clone(site),
        router,
        tls,
        closing: told,
    };
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok(connection) => {
                    if let Some(place) = places.take().await {
                        tokio::spawn(service.clone().serve(connection, place));
                    }
                }
                Err(error) => {
                    site.log.note(&format!("a connection could not be accepted: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = ended => {}
    }
    Open { places, closing }
}

impl Service {
    async fn serve(self, Connection { socket, peer }: Connection, place: Arc<Place>) {
        let (tls, stream) = match (&self.tls, socket) {
            (Some(tls), Socket::Tcp(stream)) => (tls, stream),
            (_, socket) => return self.speak(socket.into_stream(), peer, place).await,
        };
        let longest = self.site.options.limits.arrival_time;
        let mut closing = self.closing.clone();
        let encrypted = tokio::select! {
            encrypted = handshake::encrypted(stream, tls, longest) => encrypted,
            () = place.dismissed() => return,
            () = told(&mut closing) => return,
        };
        match encrypted {
            Ok(stream) => self.speak(Box::new(stream), peer, place).await,
            Err(error) => {
                let line = Line::new("no_handshake").with("client", peer);
                self.site.log.request(&line.with("message", error.to_string()));
            }
        }
    }

    /// Speaks HTTP until the connection ends. A broken connection cancels its request and nothing else.
    async fn speak(&self, stream: Box<dyn Stream>, peer: String, place: Arc<Place>) {
        let peer = Peer(peer);
        // The place is busy from this call on, because the client's end may come before the answer begins.
        let answer = service_fn(|request| answer(&self.router, request, peer.clone(), place.begin()));
        let mut builder = Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.site.options.limits.arrival_time);
        let stream = TokioIo::new(HalfClosed::new(stream, Arc::clone(&place)));
        let mut connection = pin!(builder.serve_connection(stream, answer));
        let mut closing = self.closing.clone();
        tokio::select! {
            _ = &mut connection => {}
            () = told(&mut closing) => {
                connection.as_mut().graceful_shutdown();
                drop(connection.await);
            }
            () = place.dismissed() => {
                connection.as_mut().graceful_shutdown();
                // A request may have arrived at the same moment.
                while tokio::time::timeout(LEAVE_TIME, &mut connection).await.is_err() && !place.is_idle() {}
            }
        }
    }
}

/// Resolves when the server closes its connections.
async fn told(closing: &mut watch::Receiver<bool>) {
    drop(closing.wait_for(|closing| *closing).await);
}

async fn answer(
    router: &Router,
    request: Request<Incoming>,
    peer: Peer,
    busy: Busy,
) -> Result<Response<Body>, Infallible> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    let response = router.clone().oneshot(request).await?;
    Ok(response.map(|body| busy.until_end_of(body)))
}
