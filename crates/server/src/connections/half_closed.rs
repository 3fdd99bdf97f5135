//! Clients that close their sending side after their request, such as `nc -N`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::places::Place;

/// A half-closed client counts as gone if nothing was written to it for this time. Writing to a client that is really
/// gone fails, so streams notice it sooner.
const PATIENCE: Duration = Duration::from_secs(5);

/// A stream that withholds the end of the client's bytes during a request.
pub(super) struct HalfClosed<S> {
    stream: S,
    place: Arc<Place>,
    /// Runs since the client ended its side.
    pause: Option<Pin<Box<Sleep>>>,
}

impl<S> HalfClosed<S> {
    pub(super) fn new(stream: S, place: Arc<Place>) -> Self {
        Self {
            stream,
            place,
            pause: None,
        }
    }

    /// Ready when the end may be reported.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.place.is_idle() {
            return Poll::Ready(Ok(()));
        }
        let pause = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(PATIENCE)));
        pause.as_mut().poll(context).map(Ok)
    }

    /// Waits longer if bytes were written: the client took them, so it still reads.
    fn note_written(&mut self, written: &io::Result<usize>) {
        if let (Ok(1..), Some(pause)) = (written, &mut self.pause) {
            pause.as_mut().reset(Instant::now() + PATIENCE);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HalfClosed<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.pause.is_some() {
            return self.poll_end(context);
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        if into.filled().len() == before && into.remaining() > 0 {
            self.poll_end(context)
        } else {
            Poll::Ready(Ok(()))
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HalfClosed<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        self.note_written(&written);
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, parts));
        self.note_written(&written);
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
