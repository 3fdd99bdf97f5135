//! Places of open connections, and which of them are idle.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Idle time after which a connection may be closed for another.
const IDLE_AT_LEAST: Duration = Duration::from_secs(1);

/// Time between two searches for an idle connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The places of all connections.
pub(super) struct Places {
    most: u32,
    free: Arc<Semaphore>,
    /// Connections without a request, ordered by the start of their idle time and a number.
    idle: Mutex<BTreeMap<(Instant, u64), Arc<Notify>>>,
    count: AtomicU64,
}

/// The place of one connection; dropping it frees the place.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    /// Notified when the connection must make place for another.
    leave: Arc<Notify>,
    /// `None` during a request.
    idle_since: Mutex<Option<Instant>>,
    _permit: OwnedSemaphorePermit,
}

/// A current request of a connection.
pub(super) struct Busy(Arc<Place>);

impl Places {
    /// Places for at most `most` connections.
    pub(super) fn new(most: usize) -> Arc<Self> {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        Arc::new(Self {
            most,
            free: Arc::new(Semaphore::new(most as usize)),
            idle: Mutex::new(BTreeMap::new()),
            count: AtomicU64::new(0),
        })
    }

    /// Waits for a free place. If all are taken, the longest idle connection is closed.
    pub(super) async fn take(self: &Arc<Self>) -> Option<Arc<Place>> {
        let mut free = std::pin::pin!(Arc::clone(&self.free).acquire_owned());
        loop {
            tokio::select! {
                biased;
                permit = &mut free => return Some(Place::new(self, permit.ok()?)),
                () = tokio::time::sleep(PAUSE) => self.dismiss(),
            }
        }
    }

    /// Tells the longest idle connection to close.
    fn dismiss(&self) {
        let mut idle = self.idle();
        if let Some(first) = idle.first_entry()
            && first.key().0.elapsed() >= IDLE_AT_LEAST
        {
            first.remove().notify_one();
        }
    }

    /// Waits until every connection has ended.
    pub(super) async fn all_ended(&self) {
        drop(self.free.acquire_many(self.most).await);
    }

    fn idle(&self) -> MutexGuard<'_, BTreeMap<(Instant, u64), Arc<Notify>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn new(places: &Arc<Places>, permit: OwnedSemaphorePermit) -> Arc<Self> {
        let place = Arc::new(Self {
            places: Arc::clone(places),
            number: places.count.fetch_add(1, Ordering::Relaxed),
            leave: Arc::new(Notify::new()),
            idle_since: Mutex::new(None),
            _permit: permit,
        });
        place.rest();
        place
    }

    /// Resolves when the connection must make place for another.
    pub(super) async fn dismissed(&self) {
        self.leave.notified().await;
    }

    /// True if no request is running.
    pub(super) fn is_idle(&self) -> bool {
        self.since().is_some()
    }

    /// A request begins.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.work();
        Busy(Arc::clone(self))
    }

    fn rest(&self) {
        let now = Instant::now();
        *self.since() = Some(now);
        self.places.idle().insert((now, self.number), Arc::clone(&self.leave));
    }

    fn work(&self) {
        if let Some(since) = self.since().take() {
            self.places.idle().remove(&(since, self.number));
        }
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.work();
    }
}

impl Busy {
    /// Wraps the response's body; the request ends when the body ends.
    pub(super) fn until_end_of(self, body: Body) -> Body {
        Body::new(BusyBody { body, _busy: self })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.rest();
    }
}

/// The body of a response; the connection is busy until it ends.
struct BusyBody {
    body: Body,
    _busy: Busy,
}

impl HttpBody for BusyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
