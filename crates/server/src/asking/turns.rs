//! Arranges the messages of a conversation in an order that a chat template accepts.
//!
//! Agents send system messages anywhere, and several messages of one role in a row. Many templates accept one system
//! message at the beginning, then strict turns. A message without a place becomes text of a user's turn at its
//! position. A conversation's text then stays the same when messages follow.

use serde_json::{Value, json};

/// Text between two joined messages.
const BETWEEN: &str = "\n\n";

/// The orders of messages that a template renders without an error or a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turns {
    /// True if a system message may stand at the beginning.
    pub(crate) system: bool,
    /// True if several system messages may stand at the beginning.
    pub(crate) system_runs: bool,
    /// True if system messages may follow other messages.
    pub(crate) later_system: bool,
    /// True if several users' messages may follow each other.
    pub(crate) user_runs: bool,
    /// True if several assistants' messages may follow each other.
    pub(crate) assistant_runs: bool,
    /// True if a user's message may directly follow the result of a tool.
    pub(crate) user_after_tool: bool,
    /// True if a conversation may have no user's message.
    pub(crate) without_user: bool,
}

impl Turns {
    /// Order of a template that accepts messages in any order.
    pub(crate) const ANY: Self = Self {
        system: true,
        system_runs: true,
        later_system: true,
        user_runs: true,
        assistant_runs: true,
        user_after_tool: true,
        without_user: true,
    };

    /// The same messages in an order that the template accepts.
    pub(crate) fn arrange(self, messages: Vec<Value>) -> Vec<Value> {
        if self == Self::ANY {
            return messages;
        }
        let mut arranged: Vec<Value> = Vec::with_capacity(messages.len());
        for mut message in messages {
            if message["role"] == "system" && !self.takes_system_behind(&arranged) {
                message["role"] = json!("user");
            }
            match arranged.last_mut() {
                Some(last) if self.joins(last, &message) => join(last, message),
                _ => arranged.push(message),
            }
        }
        let has_user = arranged.iter().any(|message| message["role"] == "user");
        if let (false, false, Some(last)) = (self.without_user, has_user, arranged.last_mut())
            && last["role"] == "system"
        {
            last["role"] = json!("user");
        }
        arranged
    }

    fn takes_system_behind(self, before: &[Value]) -> bool {
        if before.iter().all(|message| message["role"] == "system") {
            self.system
        } else {
            self.later_system
        }
    }

    /// True if two adjacent messages become one.
    fn joins(self, last: &Value, next: &Value) -> bool {
        match (last["role"].as_str(), next["role"].as_str()) {
            (Some("system"), Some("system")) => !self.system_runs,
            (Some("user"), Some("user")) => !self.user_runs,
            (Some("assistant"), Some("assistant")) => !self.assistant_runs,
            (Some("tool"), Some("user")) => !self.user_after_tool,
            _ => false,
        }
    }
}

fn join(last: &mut Value, next: Value) {
    for name in ["content", "reasoning_content"] {
        let text = |message: &Value| message[name].as_str().unwrap_or("").to_owned();
        let joined = match (text(last), text(&next)) {
            (before, after) if before.is_empty() => after,
            (before, after) if after.is_empty() => before,
            (before, after) => format!("{before}{BETWEEN}{after}"),
        };
        if !joined.is_empty() || last.get(name).is_some() {
            last[name] = json!(joined);
        }
    }
    let Some(Value::Array(calls)) = next.get("tool_calls").cloned() else {
        return;
    };
    match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
        Some(own) => own.extend(calls),
        None => last["tool_calls"] = json!(calls),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Order of a template with one system message first and strict turns.
    const STRICT: Turns = Turns {
        system: true,
        system_runs: false,
        later_system: false,
        user_runs: false,
        assistant_runs: false,
        user_after_tool: false,
        without_user: false,
    };

    fn conversation(parts: &[(&str, &str)]) -> Vec<Value> {
        parts
            .iter()
            .map(|(role, content)| json!({"role": role, "content": content}))
            .collect()
    }

    #[test]
    fn system_messages_find_a_place_and_none_is_lost() {
        let given = conversation(&[
            ("system", "a"),
            ("system", "b"),
            ("user", "c"),
            ("system", "d"),
            ("assistant", "e"),
            ("system", "f"),
        ]);
        let strict = conversation(&[
            ("system", "a\n\nb"),
            ("user", "c\n\nd"),
            ("assistant", "e"),
            ("user", "f"),
        ]);
        assert_eq!(STRICT.arrange(given.clone()), strict);
        assert_eq!(Turns::ANY.arrange(given.clone()), given);
        let without_system = Turns {
            system: false,
            ..STRICT
        };
        assert_eq!(
            without_system.arrange(conversation(&[("system", "a"), ("user", "b")])),
            conversation(&[("user", "a\n\nb")])
        );
        assert_eq!(
            STRICT.arrange(conversation(&[("system", "a"), ("system", "b")])),
            conversation(&[("user", "a\n\nb")])
        );
    }

    #[test]
    fn what_was_arranged_stays_when_further_messages_follow() {
        let given = conversation(&[
            ("system", "a"),
            ("user", "b"),
            ("system", "c"),
            ("assistant", "d"),
            ("user", "e"),
            ("system", "f"),
            ("assistant", "g"),
        ]);
        let whole = STRICT.arrange(given.clone());
        for turns in [4, 7] {
            let begun = STRICT.arrange(given[..turns].to_vec());
            assert_eq!(begun[..], whole[..begun.len()], "{turns}");
        }
    }

    #[test]
    fn neighbours_that_a_template_refuses_become_one_with_their_calls() {
        let call = |name: &str| json!({"role": "assistant", "content": "", "tool_calls": [name]});
        let given = vec![
            call("a"),
            call("b"),
            json!({"role": "tool", "content": "r"}),
            json!({"role": "user", "content": "u"}),
        ];
        let arranged = STRICT.arrange(given);
        assert_eq!(arranged[0]["tool_calls"], json!(["a", "b"]));
        assert_eq!(arranged[1]["content"], "r\n\nu");
        assert_eq!(arranged.len(), 2);
    }
}
