//! One request and its answer, on a thread of its own.
//!
//! The thread reads from the network while the caller sums and writes what came before, and the caller can stop, or show
//! the time, while nothing comes. A caller that stops listening ends the thread at the next bytes or at the latest when the
//! connection has been silent for too long.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use ureq::Agent;
use ureq::http::HeaderMap;

use super::address::Address;
use crate::Token;

/// A request for a file or for the hub's API.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) address: Address,
    /// Sent with the request.
    pub(crate) token: Option<Token>,
    /// The first byte that is wanted.
    pub(crate) from: u64,
}

/// The next part of an answer.
pub(crate) enum BodyPiece {
    Head(Head),
    Bytes(Vec<u8>),
    End,
    Failed(ureq::Error),
}

/// The beginning of an answer.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
}

/// An answer that comes in.
pub(crate) struct Exchange {
    pieces: Receiver<BodyPiece>,
}

/// Bytes of a piece.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that wait for the caller.
const PIECES: usize = 8;

impl Head {
    /// The text of a header, where it is there and is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Exchange {
    pub(crate) fn begin(agent: &Agent, request: Request) -> io::Result<Self> {
        let (sender, pieces) = sync_channel(PIECES);
        let agent = agent.clone();
        let name = "download".to_owned();
        thread::Builder::new().name(name).spawn(move || {
            if let Err(error) = exchange(&agent, &request, &sender) {
                // A caller that has gone needs no reason.
                let _ = sender.send(BodyPiece::Failed(error));
            }
        })?;
        Ok(Self { pieces })
    }

    /// The next piece; `None` if none came within this time.
    pub(crate) fn next(&self, patience: Duration) -> Option<BodyPiece> {
        match self.pieces.recv_timeout(patience) {
            Ok(piece) => Some(piece),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(BodyPiece::End),
        }
    }
}

fn exchange(agent: &Agent, request: &Request, sender: &SyncSender<BodyPiece>) -> Result<(), ureq::Error> {
    let mut call = agent
        .get(request.address.to_string())
        .header("accept-encoding", "identity");
    if let Some(token) = &request.token {
        call = call.header("authorization", format!("Bearer {}", token.secret()));
    }
    if request.from > 0 {
        call = call.header("range", format!("bytes={}-", request.from));
    }
    let (head, body) = call.call()?.into_parts();
    let head = Head {
        status: head.status.as_u16(),
        headers: head.headers,
    };
    if sender.send(BodyPiece::Head(head)).is_err() {
        return Ok(());
    }
    let mut reader = body.into_reader();
    loop {
        let mut bytes = vec![0; PIECE_BYTES];
        let length = reader.read(&mut bytes)?;
        bytes.truncate(length);
        let piece = if length == 0 {
            BodyPiece::End
        } else {
            BodyPiece::Bytes(bytes)
        };
        if sender.send(piece).is_err() || length == 0 {
            return Ok(());
        }
    }
}
