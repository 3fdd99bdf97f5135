//! Traits of a model's chat template, found by rendering short conversations.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use riffle_model::{ChatTemplate, ConversationText};
use serde_json::{Map, Value, json};

use super::effort::Effort;
use super::turns::Turns;

/// Longest time of all renderings.
const LONGEST: Duration = Duration::from_secs(5);

/// Names of a template's variable that switches thinking.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// An id of this server's calls, and one in the form of Mistral's templates.
const LONG_ID: &str = "call_0123456789abcdef0123456789abcdef";
const SHORT_ID: &str = "abcdefghi";

/// Characters of a short id.
const SHORT_LENGTH: usize = 9;

/// Traits of a chat template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TemplateTraits {
    pub(crate) turns: Turns,
    /// Supported words of `reasoning_effort`; empty if the template does not read that variable.
    pub(crate) efforts: Vec<Effort>,
    /// Variables that switch thinking on and off.
    pub(crate) switches: Vec<&'static str>,
    /// True if ids of calls must be nine letters or digits.
    has_short_ids: bool,
}

/// Renders conversations that show a template's behaviour.
struct Probe<'t> {
    template: &'t ChatTemplate,
    tools: Value,
    until: Instant,
}

impl TemplateTraits {
    /// Finds the traits of a template by rendering probes, for requests with tools or without.
    pub(crate) fn probe(template: &ChatTemplate, has_tools: bool) -> Self {
        let tool = json!({"type": "function", "function": {
            "name": "probe", "description": "Probe.", "parameters": {"type": "object", "properties": {}},
        }});
        let probe = Probe {
            template,
            tools: if has_tools { json!([tool]) } else { Value::Null },
            until: Instant::now() + LONGEST,
        };
        let (system, user, assistant) = (said("system"), said("user"), said("assistant"));
        // If a template refuses even this, its errors are reported for a real conversation.
        if !probe.keeps(&[user("a1")]) {
            return Self {
                turns: Turns::ANY,
                efforts: Vec::new(),
                switches: Vec::new(),
                has_short_ids: false,
            };
        }
        let has_short_ids = probe.has_short_ids();
        let id = if has_short_ids { SHORT_ID } else { LONG_ID };
        let called = [
            user("a1"),
            call(id),
            json!({"role": "tool", "tool_call_id": id, "name": "probe", "content": "b2"}),
        ];
        let behind_tool = [&called[..], &[user("c3")]].concat();
        Self {
            turns: Turns {
                system: probe.keeps(&[system("a1"), user("b2")]),
                system_runs: probe.keeps(&[system("a1"), system("b2"), user("c3")]),
                later_system: probe.keeps(&[user("a1"), system("b2"), user("c3")])
                    && probe.keeps(&[system("a1"), user("b2"), assistant("c3"), user("d4"), system("e5")]),
                user_runs: probe.keeps(&[user("a1"), user("b2")]),
                assistant_runs: probe.keeps(&[user("a1"), assistant("b2"), assistant("c3"), user("d4")]),
                // A template without tool results shows nothing about the messages after them.
                user_after_tool: !probe.keeps(&called) || probe.keeps(&behind_tool),
                without_user: probe.keeps(&[system("a1")]),
            },
            efforts: probe.efforts(),
            switches: probe.switches(),
            has_short_ids,
        }
    }

    /// Gives ids of calls and results the template's form. Equal ids stay equal.
    pub(crate) fn shorten_ids(&self, messages: &mut [Value]) {
        if !self.has_short_ids {
            return;
        }
        for message in messages {
            if let Some(id) = message.get_mut("tool_call_id") {
                shorten(id);
            }
            for call in message
                .get_mut("tool_calls")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                shorten(&mut call["id"]);
            }
        }
    }
}

impl Probe<'_> {
    fn render(&self, messages: &[Value], variables: &[(&str, Value)]) -> Option<String> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()));
        let mut variables: Map<String, Value> = variables.collect();
        if !self.tools.is_null() {
            variables.insert("tools".to_owned(), self.tools.clone());
        }
        let mut poll = || {
            if Instant::now() < self.until {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let messages = Value::Array(messages.to_vec());
        let text = self.template.render_until(&messages, true, &variables, &mut poll);
        text.ok().map(ConversationText::into_text)
    }

    /// True if the template renders the messages with all their texts in order.
    fn keeps(&self, messages: &[Value]) -> bool {
        let Some(text) = self.render(messages, &[]) else {
            return false;
        };
        let contents = messages.iter().filter_map(|message| message["content"].as_str());
        let mut rest = text.as_str();
        contents.filter(|content| !content.is_empty()).all(|content| {
            let found = rest.split_once(content);
            rest = found.map_or("", |(_, after)| after);
            found.is_some()
        })
    }

    fn has_short_ids(&self) -> bool {
        let renders = |id: &str| {
            let result = json!({"role": "tool", "tool_call_id": id, "name": "probe", "content": "b2"});
            self.render(&[said("user")("a1"), call(id), result], &[]).is_some()
        };
        !renders(LONG_ID) && renders(SHORT_ID)
    }

    /// A template that accepts any word is trained on the common three, and on the words in its own text.
    fn efforts(&self) -> Vec<Effort> {
        const WORD: &str = "reasoning_effort";
        if !self.template.mentions(WORD) {
            return Vec::new();
        }
        let takes = |word: &str| self.render(&[said("user")("a1")], &[(WORD, json!(word))]).is_some();
        let takes_any = takes("no such word");
        let is_common = |effort: &Effort| matches!(effort, Effort::Low | Effort::Medium | Effort::High);
        let is_named = |effort: &Effort| {
            let word = effort.word();
            self.template.mentions(&format!("'{word}'")) || self.template.mentions(&format!("\"{word}\""))
        };
        let efforts = Effort::ALL.into_iter();
        efforts
            .filter(|effort| {
                if takes_any {
                    is_common(effort) || is_named(effort)
                } else {
                    takes(effort.word())
                }
            })
            .collect()
    }

    fn switches(&self) -> Vec<&'static str> {
        let with = |name: &str, is_on: bool| self.render(&[said("user")("a1")], &[(name, json!(is_on))]);
        let changes = |name: &&str| self.template.mentions(name) && with(name, true) != with(name, false);
        SWITCHES.into_iter().filter(changes).collect()
    }
}

/// Makes messages of a role.
fn said(role: &str) -> impl Fn(&str) -> Value {
    move |content| json!({"role": role, "content": format!("probe-{content}")})
}

fn call(id: &str) -> Value {
    let function = json!({"name": "probe", "arguments": {}});
    json!({"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]})
}

fn shorten(id: &mut Value) {
    let text = id.as_str().unwrap_or("");
    let fits = text.len() == SHORT_LENGTH && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !fits {
        *id = json!(short_id(text));
    }
}

/// Nine letters and digits that depend only on a text (FNV-1a in base 62).
fn short_id(text: &str) -> String {
    const SIGNS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let signs = (0..SHORT_LENGTH as u32).map(|place| SIGNS[(hash / 62_u64.pow(place) % 62) as usize]);
    signs.map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traits(source: &str) -> TemplateTraits {
        TemplateTraits::probe(&ChatTemplate::new(source, Vec::new()).unwrap(), false)
    }

    #[test]
    fn a_template_that_refuses_orders_of_messages_is_found_out() {
        let any = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
        assert_eq!(traits(any).turns, Turns::ANY);
        let qwen = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
            {{ raise_exception('System message must be at the beginning') }}{% endif %}{{ m.content }}{% endfor %}";
        let turns = traits(qwen).turns;
        assert_eq!(
            (turns.system, turns.system_runs, turns.later_system),
            (true, false, false)
        );
        assert!(turns.user_runs && turns.user_after_tool && turns.without_user);
        let gemma = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
            {{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}";
        let turns = traits(gemma).turns;
        assert_eq!(
            (turns.system, turns.user_runs, turns.without_user),
            (false, false, false)
        );
    }

    #[test]
    fn a_template_that_drops_a_message_in_silence_does_not_take_it() {
        let dropping =
            "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.content }}{% endif %}{% endfor %}";
        let turns = traits(dropping).turns;
        assert_eq!((turns.system, turns.later_system), (true, false));
    }

    #[test]
    fn words_for_effort_are_those_that_a_template_takes() {
        let raising = "{% if reasoning_effort is defined and reasoning_effort not in ['low', 'medium', 'xhigh'] %}\
            {{ raise_exception('effort') }}{% endif %}{{ messages[0].content }}";
        assert_eq!(
            traits(raising).efforts,
            [Effort::Low, Effort::Medium, Effort::ExtraHigh]
        );
        let any = "{{ messages[0].content }} Reasoning: {{ reasoning_effort | default('medium') }}";
        assert_eq!(traits(any).efforts, [Effort::Low, Effort::Medium, Effort::High]);
        assert!(traits("{{ messages[0].content }}").efforts.is_empty());
    }

    #[test]
    fn a_switch_counts_where_it_changes_the_text() {
        let switched = "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}";
        assert_eq!(traits(switched).switches, ["enable_thinking"]);
        assert!(traits("{{ messages[0].content }}{# thinking #}").switches.is_empty());
    }

    #[test]
    fn ids_of_calls_get_nine_letters_only_where_a_template_asks() {
        let mistral = "{% for m in messages %}{% if m.role == 'tool' and m.tool_call_id | length != 9 %}\
            {{ raise_exception('Tool call IDs should be alphanumeric strings with length 9') }}{% endif %}{{ m.content }}{% endfor %}";
        let mut messages = [
            call("call_1"),
            json!({"role": "tool", "tool_call_id": "call_1", "content": ""}),
        ];
        let unchanged = messages.clone();
        traits("{{ messages[0].content }}").shorten_ids(&mut messages);
        assert_eq!(messages, unchanged);
        traits(mistral).shorten_ids(&mut messages);
        let id = messages[0]["tool_calls"][0]["id"].as_str().unwrap();
        assert_eq!((id.len(), &messages[1]["tool_call_id"]), (9, &json!(id)));
        assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        let kept = messages.clone();
        traits(mistral).shorten_ids(&mut messages);
        assert_eq!(messages, kept);
    }
}
