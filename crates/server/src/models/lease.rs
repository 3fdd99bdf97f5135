//! The right to use a loaded model, until the end of the answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use super::Shelf;
use crate::app::App;

/// Use of a loaded model by one request. The model stays loaded meanwhile.
pub(crate) struct Lease {
    app: Arc<App>,
    // This field is declared after the model, so that the model is released before it counts as unused.
    _use: Use,
}

struct Use {
    shelf: Arc<Shelf>,
    index: usize,
}

/// A request that waits for a model. Dropping it leaves the queue.
pub(super) struct Ticket {
    shelf: Arc<Shelf>,
    index: usize,
    /// Number of failed loads of the model at the request's arrival.
    pub(super) failures: u64,
}

impl Lease {
    /// A lease of a loaded model whose use the caller has counted.
    pub(super) fn new(shelf: &Arc<Shelf>, index: usize, app: Arc<App>) -> Self {
        Self {
            app,
            _use: Use {
                shelf: Arc::clone(shelf),
                index,
            },
        }
    }

    pub(crate) fn app(&self) -> &Arc<App> {
        &self.app
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut state = self.shelf.state();
        state.rotation.end_use(self.index, Instant::now());
        drop(state);
        self.shelf.wake();
    }
}

impl Ticket {
    pub(super) fn new(shelf: &Arc<Shelf>, index: usize) -> Self {
        let mut state = shelf.state();
        state.rotation.begin_waiting(index);
        let failures = state.failures_of(index);
        drop(state);
        shelf.wake();
        Self {
            shelf: Arc::clone(shelf),
            index,
            failures,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.shelf.state();
        // A failed load removes all requests from the queue.
        if state.failures_of(self.index) == self.failures {
            let waiting = &mut state.rotation.slots[self.index].waiting;
            *waiting = waiting.saturating_sub(1);
        }
        drop(state);
        self.shelf.wake();
    }
}

/// The body of an answer, with the lease of its model.
pub(super) struct LeasedBody {
    body: Body,
    _lease: Lease,
}

impl LeasedBody {
    pub(super) fn new(body: Body, lease: Lease) -> Self {
        Self { body, _lease: lease }
    }
}

impl HttpBody for LeasedBody {
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
