//! One request and its answer, on a separate thread.
//!
//! The thread reads from the network while the caller hashes and writes earlier bytes. The caller can stop, or show
//! the time, while it waits. When the caller stops listening, the thread ends at the next bytes, or at the
//! connection's timeout.

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
    /// The first requested byte.
    pub(crate) from: u64,
}

/// A piece of an answer.
pub(crate) enum BodyPiece {
    Head(Head),
    Bytes(Vec<u8>),
    End,
    Failed(ureq::Error),
}

/// Status and headers of a response.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
}

/// An incoming answer.
pub(crate) struct Exchange {
    pieces: Receiver<BodyPiece>,
}

/// Bytes of a piece.
const PIECE_BYTES: usize = 256 << 10;
/// Limit on the pieces that wait for the caller.
const PIECES: usize = 8;

impl Head {
    /// The text of a header; `None` if it is missing or not text.
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
                // If the caller is gone, no reader needs the error.
                let _ = sender.send(BodyPiece::Failed(error));
            }
        })?;
        Ok(Self { pieces })
    }

    /// The next piece; `None` after this time without one.
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
