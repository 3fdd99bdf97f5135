//! Options of publishing events.

use crate::Encoding;

/// Options of a publisher: its addresses, the format of events, and the limits of kept batches.
#[derive(Debug, Clone)]
pub struct PublisherOptions {
    /// Address for subscribers: `tcp://HOST:PORT`. `*` means every address of the machine, port 0 a free one.
    pub address: String,
    /// Address for requests of missed batches; `None` offers no replays.
    pub replay_address: Option<String>,
    /// First frame of every message, by which subscribers filter.
    pub topic: String,
    /// Encoding of an event.
    pub encoding: Encoding,
    /// Maximum number of batches kept for replays.
    pub kept_batches: usize,
    /// Maximum number of bytes of batches kept for replays.
    pub kept_bytes: usize,
    /// Maximum number of batches waiting to be sent.
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
