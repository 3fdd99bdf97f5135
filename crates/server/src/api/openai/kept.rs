//! Items of responses that were sent, for clients that name them instead of sending them back (`item_reference`).

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// Most bytes of all items together. The oldest leave first.
const MOST_BYTES: usize = 16 << 20;

/// The items of the latest responses by their ids.
#[derive(Debug, Default)]
pub(crate) struct KeptItems(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    items: HashMap<String, Value>,
    /// Ids and sizes, the oldest first.
    order: VecDeque<(String, usize)>,
    bytes: usize,
}

impl KeptItems {
    /// Keeps the items of a response.
    pub(super) fn keep(&self, output: &[Value]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for item in output {
            let bytes = item.to_string().len();
            let Some(id) = item["id"].as_str().filter(|_| bytes <= MOST_BYTES) else {
                continue;
            };
            kept.items.insert(id.to_owned(), item.clone());
            kept.order.push_back((id.to_owned(), bytes));
            kept.bytes += bytes;
            while kept.bytes > MOST_BYTES {
                let Some((oldest, bytes)) = kept.order.pop_front() else {
                    break;
                };
                kept.items.remove(&oldest);
                kept.bytes -= bytes;
            }
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<Value> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.items.get(id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_items_leave_when_the_room_is_full() {
        let kept = KeptItems::default();
        let text = "a".repeat(MOST_BYTES / 3);
        for number in 0..4 {
            kept.keep(&[json!({"id": format!("msg_{number}"), "text": text})]);
        }
        assert!(kept.get("msg_0").is_none() && kept.get("msg_1").is_none());
        assert!(kept.get("msg_2").is_some() && kept.get("msg_3").is_some());
        kept.keep(&[json!({"id": "msg_4", "text": "a".repeat(MOST_BYTES)})]);
        assert!(kept.get("msg_4").is_none());
    }
}
