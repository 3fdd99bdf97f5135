//! Sent responses and their items, for clients that name them instead of sending them again (`previous_response_id`,
//! `item_reference`).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

/// Maximum number of bytes of all responses and items. The least recently used are removed first.
const MOST_BYTES: usize = 16 << 20;

/// The latest responses and their items by id.
#[derive(Debug, Default)]
pub(crate) struct KeptItems(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    values: HashMap<String, Held>,
    /// Ids by the turn of their latest use.
    order: BTreeMap<u64, String>,
    turn: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Held {
    value: Value,
    bytes: usize,
    used: u64,
}

impl KeptItems {
    /// Keeps the items of a response.
    pub(super) fn keep(&self, output: &[Value]) {
        let mut kept = self.lock();
        for item in output {
            if let Some(id) = item["id"].as_str() {
                kept.insert(id, item.clone());
            }
        }
    }

    /// Keeps a response with its input, so that later responses may continue it.
    pub(super) fn keep_response(&self, response: &Value, input: &[Value]) {
        if let Some(id) = response["id"].as_str() {
            self.lock().insert(id, json!({"input": input, "response": response}));
        }
    }

    /// An item.
    pub(super) fn get(&self, id: &str) -> Option<Value> {
        self.lock().used(id).cloned()
    }

    /// A kept response.
    pub(super) fn response(&self, id: &str) -> Option<Value> {
        Some(self.lock().used(id)?.get("response")?.clone())
    }

    /// Forgets a response. True if it was kept.
    pub(super) fn forget_response(&self, id: &str) -> bool {
        let mut kept = self.lock();
        let is_response = kept.used(id).is_some_and(|value| value.get("response").is_some());
        is_response && kept.remove(id)
    }

    /// The conversation up to and including a response: all inputs and outputs, oldest first. `None` if a part is no
    /// longer kept.
    pub(super) fn conversation(&self, id: &str) -> Option<Vec<Value>> {
        let mut kept = self.lock();
        let mut turns = Vec::new();
        let mut next = Some(id.to_owned());
        while let Some(id) = next {
            let turn = kept.used(&id)?;
            let response = turn.get("response")?;
            next = response["previous_response_id"].as_str().map(str::to_owned);
            turns.push(
                [
                    turn["input"].as_array()?.clone(),
                    response["output"].as_array()?.clone(),
                ]
                .concat(),
            );
        }
        turns.reverse();
        Some(turns.concat())
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn insert(&mut self, id: &str, value: Value) {
        self.remove(id);
        let bytes = value.to_string().len();
        if bytes > MOST_BYTES {
            return;
        }
        self.turn += 1;
        let held = Held {
            value,
            bytes,
            used: self.turn,
        };
        self.values.insert(id.to_owned(), held);
        self.order.insert(self.turn, id.to_owned());
        self.bytes += bytes;
        while self.bytes > MOST_BYTES {
            let Some((_, oldest)) = self.order.pop_first() else {
                break;
            };
            self.remove(&oldest);
        }
    }

    fn used(&mut self, id: &str) -> Option<&Value> {
        let held = self.values.get_mut(id)?;
        self.turn += 1;
        self.order.remove(&held.used);
        held.used = self.turn;
        self.order.insert(self.turn, id.to_owned());
        Some(&held.value)
    }

    fn remove(&mut self, id: &str) -> bool {
        let Some(held) = self.values.remove(id) else {
            return false;
        };
        self.order.remove(&held.used);
        self.bytes -= held.bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_items_used_longest_ago_leave_when_the_room_is_full() {
        let kept = KeptItems::default();
        let text = "a".repeat(MOST_BYTES / 3);
        let item = |number: usize| json!({"id": format!("msg_{number}"), "text": text});
        kept.keep(&[item(0), item(1)]);
        assert!(kept.get("msg_0").is_some());
        kept.keep(&[item(2)]);
        assert!(kept.get("msg_1").is_none() && kept.get("msg_0").is_some() && kept.get("msg_2").is_some());
        kept.keep(&[json!({"id": "msg_4", "text": "a".repeat(MOST_BYTES)})]);
        assert!(kept.get("msg_4").is_none() && kept.get("msg_2").is_some());
        kept.keep(&[json!({"id": "msg_2", "text": ""})]);
        assert_eq!(kept.get("msg_2"), Some(json!({"id": "msg_2", "text": ""})));
    }

    #[test]
    fn a_conversation_is_put_together_from_its_responses() {
        let kept = KeptItems::default();
        let turn = |id: &str, previous: Option<&str>| {
            let response = json!({"id": id, "previous_response_id": previous, "output": [format!("{id} out")]});
            kept.keep_response(&response, &[json!(format!("{id} in"))]);
        };
        turn("a", None);
        turn("b", Some("a"));
        turn("c", Some("a"));
        assert_eq!(
            kept.conversation("b"),
            Some(vec![json!("a in"), json!("a out"), json!("b in"), json!("b out")])
        );
        assert_eq!(kept.response("c").unwrap()["id"], "c");
        assert!(kept.forget_response("a") && !kept.forget_response("a"));
        assert_eq!(kept.conversation("c"), None);
        // The id of an item names no response.
        kept.keep(&[json!({"id": "msg_1"})]);
        assert!(kept.response("msg_1").is_none() && !kept.forget_response("msg_1"));
    }
}
