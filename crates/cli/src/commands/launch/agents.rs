//! The settings of each agent: only variables and arguments, so that no file of the user changes.

use std::ffi::OsString;

use serde_json::json;

use crate::launch_args::Agent;

/// Most tokens of an answer, for agents that need this number.
const ANSWER_TOKENS: usize = 4096;

/// The server and the model for an agent.
pub(super) struct Place<'a> {
    /// Address of the server, without a trailing slash.
    pub(super) url: &'a str,
    pub(super) key: Option<&'a str>,
    pub(super) model: &'a str,
    pub(super) context_tokens: usize,
}

/// The program, variables and arguments that start an agent.
#[derive(Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) program: &'static str,
    /// Command that installs the agent.
    pub(super) install: &'static str,
    pub(super) variables: Vec<(&'static str, String)>,
    pub(super) arguments: Vec<String>,
}

impl Settings {
    pub(super) fn new(agent: Agent, place: &Place<'_>) -> Self {
        match agent {
            Agent::Claude => claude(place),
            Agent::Codex => codex(place),
            Agent::Opencode => opencode(place),
            Agent::Aider => aider(place),
        }
    }

    /// The settings as lines of a shell; `more` are further arguments.
    pub(super) fn as_shell(&self, more: &[OsString]) -> String {
        let variables = self.variables.iter();
        let mut lines: String = variables
            .map(|(name, value)| format!("export {name}={}\n", quoted(value)))
            .collect();
        lines += self.program;
        let more = more.iter().map(|argument| argument.to_string_lossy().into_owned());
        for argument in self.arguments.iter().cloned().chain(more) {
            lines += &format!(" {}", quoted(&argument));
        }
        lines + "\n"
    }
}

/// A word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn claude(place: &Place<'_>) -> Settings {
    let mut variables = vec![
        ("ANTHROPIC_BASE_URL", place.url.to_owned()),
        ("ANTHROPIC_AUTH_TOKEN", place.key.unwrap_or("any").to_owned()),
        ("CLAUDE_CODE_AUTO_COMPACT_WINDOW", place.context_tokens.to_string()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
    ];
    // A server with several models has no aliases for Anthropic's names.
    let names = [
        "ANTHROPIC_MODEL",
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    ];
    variables.extend(names.map(|name| (name, place.model.to_owned())));
    Settings {
        program: "claude",
        install: "npm install -g @anthropic-ai/claude-code",
        variables,
        arguments: Vec::new(),
    }
}

fn codex(place: &Place<'_>) -> Settings {
    let text = |value: &str| json!(value).to_string();
    let mut settings = vec![
        format!("model={}", text(place.model)),
        "model_provider=\"riffle\"".to_owned(),
        format!("model_context_window={}", place.context_tokens),
        "check_for_update_on_startup=false".to_owned(),
        "analytics.enabled=false".to_owned(),
        "model_providers.riffle.name=\"Riffle\"".to_owned(),
        format!("model_providers.riffle.base_url={}", text(&format!("{}/v1", place.url))),
        "model_providers.riffle.wire_api=\"responses\"".to_owned(),
    ];
    if place.key.is_some() {
        settings.push(format!("model_providers.riffle.env_key=\"{}\"", super::KEY));
    }
    Settings {
        program: "codex",
        install: "npm install -g @openai/codex",
        variables: key_variable(place, super::KEY),
        arguments: settings
            .into_iter()
            .flat_map(|setting| ["-c".to_owned(), setting])
            .collect(),
    }
}

fn opencode(place: &Place<'_>) -> Settings {
    let mut options = json!({"baseURL": format!("{}/v1", place.url)});
    if let Some(key) = place.key {
        options["apiKey"] = json!(key);
    }
    let config = json!({
        "autoupdate": false,
        "share": "disabled",
        "model": format!("riffle/{}", place.model),
        "provider": {"riffle": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Riffle",
            "options": options,
            "models": {place.model: {
                "name": place.model,
                "limit": {"context": place.context_tokens, "output": ANSWER_TOKENS.min(place.context_tokens)},
            }},
        }},
    });
    Settings {
        program: "opencode",
        install: "npm install -g opencode-ai",
        variables: vec![("OPENCODE_CONFIG_CONTENT", config.to_string())],
        arguments: Vec::new(),
    }
}

fn aider(place: &Place<'_>) -> Settings {
    Settings {
        program: "aider",
        install: "pip install aider-chat",
        variables: vec![
            ("OPENAI_API_BASE", format!("{}/v1", place.url)),
            ("OPENAI_API_KEY", place.key.unwrap_or("any").to_owned()),
        ],
        arguments: vec![
            "--model".to_owned(),
            format!("openai/{}", place.model),
            "--edit-format".to_owned(),
            "diff".to_owned(),
            "--no-show-model-warnings".to_owned(),
        ],
    }
}

/// A variable with the key, if there is one.
fn key_variable(place: &Place<'_>, name: &'static str) -> Vec<(&'static str, String)> {
    place.key.map(|key| (name, key.to_owned())).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    fn settings(agent: Agent, key: Option<&str>) -> Settings {
        Settings::new(
            agent,
            &Place {
                url: "http://127.0.0.1:8080",
                key,
                model: "it's \"mine\"",
                context_tokens: 65_536,
            },
        )
    }

    #[test]
    fn every_agent_is_told_the_server_the_model_and_the_key() {
        for agent in Agent::value_variants() {
            let text = settings(*agent, Some("sk-1")).as_shell(&["-x y".into()]);
            assert!(
                text.contains("http://127.0.0.1:8080") && text.contains("mine"),
                "{text}"
            );
            assert!(text.contains("sk-1") && text.ends_with(" '-x y'\n"), "{text}");
            assert!(!settings(*agent, None).as_shell(&[]).contains("sk-1"));
        }
    }

    #[test]
    fn lines_for_a_shell_are_quoted_and_read_back_as_they_were() {
        assert_eq!(quoted("a-b/c=d"), "a-b/c=d");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
        let codex = settings(Agent::Codex, None);
        let model = codex
            .arguments
            .iter()
            .find_map(|setting| setting.strip_prefix("model="));
        let model: toml::Table = format!("model = {}", model.expect("a model")).parse().expect("TOML");
        assert_eq!(model["model"].as_str(), Some("it's \"mine\""));
    }
}
