//! How events are published.

use crate::Encoding;

/// Options of a publisher: its addresses, the format of events, and the limits of kept batches.
#[derive(Debug, Clone)]
pub struct PublisherOptions {
    /// Address for subscribers: `tcp://HOST:PORT`. `*` is every address of the machine, port 0 a free one.
    pub address: String,
    /// Address for subscribers that ask again for missed batches; `None` offers no replays.
    pub replay_address: Option<String>,
    /// First frame of every message, which subscribers choose by.
    pub topic: String,
    /// How an event is written.
    pub encoding: Encoding,
    /// Batches that are kept for replays at most.
    pub kept_batches: usize,
    /// Bytes of batches that are kept for replays at most.
    pub kept_bytes: usize,
    /// Batches that may wait to be sent at most.
    pub waiting_batches: usize,
}

impl Default for PublisherOptions {
    fn default() -> Self {
        Self {
            address: "tcp://127.0.0.1:5557".to_owned(),
            replay_address: None,
            topic: String::new(),
            encoding: Encoding::default(),
            kept_batches: 10_000,
            kept_bytes: 64 << 20,
            waiting_batches: 10_000,
        }
    }
}
