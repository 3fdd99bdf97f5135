//! The effort of thinking, from clients' words to variables of a chat template.

use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::fields::{Fields, unexpected};

/// A degree of thinking, in the words of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    ExtraHigh,
    Most,
}

/// The requested effort of thinking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Thinking {
    pub(crate) effort: Option<Effort>,
    /// True or false if the client switches thinking on or off.
    pub(crate) is_on: Option<bool>,
}

impl Effort {
    pub(crate) const ALL: [Self; 7] = [
        Self::None,
        Self::Minimal,
        Self::Low,
        Self::Medium,
        Self::High,
        Self::ExtraHigh,
        Self::Most,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::ExtraHigh => "xhigh",
            Self::Most => "max",
        }
    }

    /// The effort of a word. `auto` and `default` leave the choice to the model.
    fn parse(word: &str, place: &str) -> Result<Option<Self>, Failure> {
        let lower = word.to_ascii_lowercase();
        if ["auto", "default", "adaptive", ""].contains(&lower.as_str()) {
            return Ok(None);
        }
        let known = Self::ALL.into_iter().find(|effort| effort.word() == lower);
        known.map(Some).ok_or_else(|| {
            Failure::field(
                place,
                format!("{word:?} is not known: use none, minimal, low, medium, high, xhigh or max"),
            )
        })
    }

    /// The nearest of several efforts; of two equally near ones the higher.
    pub(crate) fn nearest(self, among: &[Self]) -> Option<Self> {
        let distance = |other: &Self| (*other as i32 - self as i32).abs();
        among
            .iter()
            .copied()
            .min_by_key(|other| (distance(other), std::cmp::Reverse(*other)))
    }
}

impl Thinking {
    /// Takes all fields of OpenAI's clients and other servers for the effort of thinking.
    pub(crate) fn take(fields: &mut Fields) -> Result<Self, Failure> {
        let mut thinking = Self::default();
        thinking.take_word(fields, "reasoning_effort")?;
        if let Some(mut reasoning) = fields.object("reasoning")? {
            thinking.take_word(&mut reasoning, "effort")?;
            if let Some(is_on) = reasoning.flag("enabled")? {
                thinking.is_on = Some(is_on);
            }
            reasoning.ignore("max_tokens", &[], "the length of a thought is not limited");
            reasoning.pass_over(&["summary", "generate_summary", "exclude", "context"]);
            reasoning.ignore_rest();
        }
        thinking.take_switch(fields)?;
        fields.ignore("thinking_budget", &[], "the length of a thought is not limited");
        for name in ["enable_thinking", "think"] {
            match fields.value(name) {
                None => {}
                Some(Value::Bool(is_on)) => thinking.is_on = Some(is_on),
                Some(Value::String(word)) => {
                    thinking.effort = Effort::parse(&word, name)?.or(thinking.effort);
                }
                Some(other) => return Err(unexpected(name, "true or false", &other)),
            }
        }
        fields.pass_over(&["include_reasoning"]);
        Ok(thinking)
    }

    /// Takes `thinking`, the field of Anthropic and others.
    pub(crate) fn take_switch(&mut self, fields: &mut Fields) -> Result<(), Failure> {
        let name = fields.name("thinking");
        let Some(mut thinking) = fields.object("thinking")? else {
            return Ok(());
        };
        self.is_on = match thinking.required_text("type")?.as_str() {
            "enabled" | "adaptive" => Some(true),
            "disabled" => Some(false),
            "auto" => self.is_on,
            other => {
                return Err(Failure::field(
                    format!("{name}.type"),
                    format!("{other:?} is not known: use enabled, disabled or adaptive"),
                ));
            }
        };
        if thinking
            .integer("budget_tokens", 0..=i64::from(i32::MAX))?
            .is_some_and(|budget| budget > 0)
        {
            thinking.warnings().add(
                &format!("{name}.budget_tokens"),
                "the length of a thought is not limited",
            );
        }
        thinking.pass_over(&["display", "clear_thinking"]);
        thinking.ignore_rest();
        Ok(())
    }

    /// Takes the word of an effort.
    pub(crate) fn take_word(&mut self, fields: &mut Fields, name: &str) -> Result<(), Failure> {
        let place = fields.name(name);
        if let Some(word) = fields.text(name)? {
            self.effort = Effort::parse(&word, &place)?.or(self.effort);
        }
        Ok(())
    }

    /// The variables of a template that supports these words (`efforts`) and switches (`switches`, such as
    /// `enable_thinking`).
    pub(crate) fn variables(self, efforts: &[Effort], switches: &[&str]) -> Map<String, Value> {
        let mut variables = Map::new();
        let is_on = self.is_on.or(self.effort.map(|effort| effort != Effort::None));
        if let Some(is_on) = is_on {
            for switch in switches {
                variables.insert((*switch).to_owned(), json!(is_on));
            }
        }
        // A template without a switch gets its lowest effort.
        let wanted = match is_on {
            Some(false) if switches.is_empty() => Some(Effort::None),
            Some(false) => None,
            _ => self.effort,
        };
        if let Some(effort) = wanted.and_then(|effort| effort.nearest(efforts)) {
            variables.insert("reasoning_effort".to_owned(), json!(effort.word()));
        }
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(body: Value) -> Thinking {
        Thinking::take(&mut Fields::of_body(body.to_string().as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn an_effort_becomes_the_nearest_word_that_the_template_takes() {
        let gpt_oss = [Effort::Low, Effort::Medium, Effort::High];
        let qwen = [Effort::Low, Effort::Medium, Effort::ExtraHigh];
        let word = |body: Value, efforts: &[Effort]| taken(body).variables(efforts, &[])["reasoning_effort"].clone();
        for (asked, oss, other) in [
            ("none", "low", "low"),
            ("minimal", "low", "low"),
            ("medium", "medium", "medium"),
            ("high", "high", "xhigh"),
            ("xhigh", "high", "xhigh"),
            ("max", "high", "xhigh"),
        ] {
            assert_eq!(word(json!({"reasoning_effort": asked}), &gpt_oss), oss);
            assert_eq!(word(json!({"reasoning": {"effort": asked}}), &qwen), other);
        }
        assert!(
            taken(json!({"reasoning_effort": "high"}))
                .variables(&[], &[])
                .is_empty()
        );
    }

    #[test]
    fn every_way_to_switch_thinking_off_reaches_the_switch_of_the_template() {
        for body in [
            json!({"reasoning_effort": "none"}),
            json!({"reasoning": {"enabled": false}}),
            json!({"thinking": {"type": "disabled"}}),
            json!({"enable_thinking": false}),
            json!({"think": false}),
        ] {
            let variables = taken(body).variables(&[Effort::Low], &["enable_thinking"]);
            assert_eq!(Value::Object(variables), json!({"enable_thinking": false}));
        }
        let variables = taken(json!({"think": "high"})).variables(&[], &["thinking"]);
        assert_eq!(Value::Object(variables), json!({"thinking": true}));
    }
}
