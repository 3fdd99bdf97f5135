//! `/api/version`, `/api/tags`, `/api/ps`, `/api/show`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use riffle_engine::Engine;
use serde_json::{Value, json};

use super::options::take_model_name;
use super::{API_VERSION, time_text};
use crate::api::{read, respond};
use crate::app::{App, aside};
use crate::failure::{Failure, Shape};

/// Time until which the model stays loaded: it does as long as the server runs.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Facts about the model's files, read from their heads once.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelFacts {
    /// Format of the files, such as `gguf`.
    format: String,
    family: String,
    parameters: u64,
    bytes: u64,
    /// Type of most weights, such as `Q4_K`.
    quantisation: String,
    modified: SystemTime,
    /// Hash of the file's place, size and time. Weights are not read for it.
    digest: String,
}

impl ModelFacts {
    fn of(engine: &Engine) -> Result<Self, Failure> {
        let options = &engine.options().model;
        let info = options
            .inspect(engine.path())
            .map_err(|error| Failure::from_engine(&error))?;
        let elements = |shape: &[usize]| shape.iter().map(|size| *size as u64).product::<u64>();
        let mut types: Vec<(String, u64)> = Vec::new();
        for tensor in &info.tensors {
            let name = tensor.element_type.to_string();
            match types.iter_mut().find(|(own, _)| *own == name) {
                Some((_, bytes)) => *bytes += tensor.bytes,
                None => types.push((name, tensor.bytes)),
            }
        }
        let modified = std::fs::metadata(engine.path()).and_then(|metadata| metadata.modified());
        let modified = modified.unwrap_or(SystemTime::UNIX_EPOCH);
        let word = |number: u64| {
            let mut hasher = DefaultHasher::new();
            (number, engine.path(), info.tensor_bytes, modified).hash(&mut hasher);
            format!("{:016x}", hasher.finish())
        };
        Ok(Self {
            format: info.format.to_lowercase(),
            family: family_of(&info.config.architecture),
            parameters: info.tensors.iter().map(|tensor| elements(&tensor.shape)).sum(),
            bytes: info.tensor_bytes,
            quantisation: types
                .into_iter()
                .max_by_key(|(_, bytes)| *bytes)
                .map_or_else(String::new, |(name, _)| name.to_uppercase()),
            modified,
            digest: (0..4).map(word).collect(),
        })
    }

    fn details(&self) -> Value {
        json!({
            "parent_model": "",
            "format": self.format,
            "family": self.family,
            "families": [self.family],
            "parameter_size": rounded(self.parameters),
            "quantization_level": self.quantisation,
        })
    }

    /// Fields that a list of models has for each name.
    fn entry(&self, name: &str) -> Value {
        json!({
            "name": name,
            "model": name,
            "size": self.bytes,
            "digest": self.digest,
            "details": self.details(),
        })
    }
}

/// The family as GGUF files name it: `LlamaForCausalLM` of other files is `llama`.
fn family_of(architecture: &str) -> String {
    let end = architecture.rfind("For").unwrap_or(architecture.len());
    architecture[..end].to_lowercase()
}

/// A count of parameters as Ollama writes it, such as `134.5M`.
fn rounded(parameters: u64) -> String {
    let count = parameters as f64;
    match parameters {
        0..1_000 => parameters.to_string(),
        1_000..1_000_000 => format!("{:.1}K", count / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", count / 1e6),
        _ => format!("{:.1}B", count / 1e9),
    }
}

/// The facts, which are read at the first use.
async fn facts_of(app: &Arc<App>) -> Result<&ModelFacts, Failure> {
    let engine = Arc::clone(&app.engine);
    app.facts
        .get_or_try_init(|| aside(move || ModelFacts::of(&engine)))
        .await
}

pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": API_VERSION, "riffle": env!("CARGO_PKG_VERSION")}))
}

pub(crate) async fn tags(State(app): State<Arc<App>>) -> Response {
    let list = async {
        let facts = facts_of(&app).await?;
        Ok(listed(&app, |name| {
            let mut entry = facts.entry(name);
            entry["modified_at"] = json!(time_text(facts.modified));
            entry
        }))
    };
    respond(Shape::Ollama, list.await)
}

pub(crate) async fn running(State(app): State<Arc<App>>) -> Response {
    let list = async {
        let facts = facts_of(&app).await?;
        let expires = time_text(SystemTime::now() + FOR_EVER);
        let on_device = app.engine.options().machine.device.is_some();
        Ok(listed(&app, |name| {
            let mut entry = facts.entry(name);
            entry["expires_at"] = json!(expires);
            entry["size_vram"] = json!(if on_device { facts.bytes } else { 0 });
            entry["context_length"] = json!(app.engine.plan().context_tokens);
            entry
        }))
    };
    respond(Shape::Ollama, list.await)
}

/// Entries of all names of the model and its adapters.
fn listed(app: &App, entry: impl Fn(&str) -> Value) -> Response {
    let names = app.model_names().chain(app.adapter_names().map(|(_, name)| name));
    let models: Vec<Value> = names.map(entry).collect();
    Json(json!({"models": models})).into_response()
}

pub(crate) async fn show(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::Ollama, shown(&app, request).await)
}

async fn shown(app: &Arc<App>, request: Request) -> Result<Response, Failure> {
    let name = read(app, request, |app, fields| {
        if fields.peek("model").is_none() {
            fields.rename("name", "model")?;
        }
        take_model_name(app, fields)?;
        fields.pass_over(&["name", "verbose", "system", "template", "options"]);
        app.take_model(fields)
    });
    let name = name.await?.unwrap_or_default();
    let facts = facts_of(app).await?;
    let config = app.engine.model().config();
    let family = &facts.family;
    let mut info = json!({
        "general.architecture": family,
        "general.parameter_count": facts.parameters,
    });
    for (field, value) in [
        ("context_length", config.max_position),
        ("embedding_length", config.hidden_size),
        ("block_count", config.layers),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
        ("vocab_size", config.vocab_size),
    ] {
        info[format!("{family}.{field}")] = json!(value);
    }
    let template = app.engine.chat_template();
    let mut capabilities = Vec::new();
    if config.predicts_tokens {
        capabilities.push("completion");
    } else if app.engine.embedding().is_ok() {
        capabilities.push("embedding");
    }
    if app.engine.infill_tokens().is_some() {
        capabilities.push("insert");
    }
    if template.is_some_and(|template| template.mentions("tools")) {
        capabilities.push("tools");
    }
    if template.is_some() && app.markup.has_thoughts() {
        capabilities.push("thinking");
    }
    let body = json!({
        "modelfile": format!("FROM {name}\n"),
        "parameters": format!("num_ctx {}", app.engine.plan().context_tokens),
        "template": "",
        "details": facts.details(),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": time_text(facts.modified),
    });
    Ok(Json(body).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_models_are_rounded_as_ollama_writes_them() {
        for (parameters, text) in [
            (12, "12"),
            (747_000, "747.0K"),
            (134_515_008, "134.5M"),
            (7_615_616_512, "7.6B"),
        ] {
            assert_eq!(rounded(parameters), text);
        }
    }

    #[test]
    fn families_have_the_names_of_gguf_files() {
        for (architecture, family) in [
            ("llama", "llama"),
            ("LlamaForCausalLM", "llama"),
            ("Qwen2ForCausalLM", "qwen2"),
        ] {
            assert_eq!(family_of(architecture), family);
        }
    }

    #[test]
    fn facts_come_from_the_heads_of_the_files() {
        let facts = ModelFacts::of(&crate::forms::tests::engine()).unwrap();
        assert!(facts.parameters > 100_000 && facts.bytes > 2 << 20, "{facts:?}");
        assert_eq!(facts.digest.len(), 64);
        assert_eq!(facts, ModelFacts::of(&crate::forms::tests::engine()).unwrap());
    }
}
