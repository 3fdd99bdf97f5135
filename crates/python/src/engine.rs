//! A loaded model.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use riffle_engine::{Engine, Session};
use riffle_model::ConversationText;
use serde_json::{Value, json};

use crate::answer::{Prompt, prompt_tokens};
use crate::batch::{Batch, answer_all};
use crate::failure::{Class, Failure};
use crate::items::Items;
use crate::options::{GivenAnswer, GivenEngine, check_tokens, model_path};
use crate::process::{OfProcess, Threads};
use crate::session::PySession;
use crate::watch::{run, run_short};

/// A model in memory and its threads, shared by sessions.
pub(crate) struct Loaded {
    engine: OfProcess<Arc<Engine>>,
    pub(crate) threads: Arc<Threads>,
    is_closed: Arc<AtomicBool>,
}

impl Loaded {
    /// The engine; an error if it is closed, or in a child of `os.fork()`.
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>, Failure> {
        if self.is_closed.load(Ordering::Relaxed) {
            Err(closed("engine"))
        } else {
            self.engine.get()
        }
    }
}

/// Failure for a call on a closed `what`.
pub(crate) fn closed(what: &str) -> Failure {
    Failure::new(Class::Closed, format!("this {what} is closed: make another"))
}

/// Error for an attempt to pickle `what`.
pub(crate) fn unpicklable(what: &str, instead: &str) -> PyErr {
    PyTypeError::new_err(format!("a riffle {what} cannot be pickled or copied: {instead}"))
}

/// A model in memory, wrapped by `riffle.Engine`.
#[pyclass(frozen, module = "riffle._riffle", name = "Engine")]
pub(crate) struct PyEngine {
    loaded: Mutex<Option<Arc<Loaded>>>,
}

impl PyEngine {
    fn wrap(engine: Arc<Engine>, threads: Arc<Threads>) -> Self {
        Self {
            loaded: Mutex::new(Some(Arc::new(Loaded {
                engine: OfProcess::new(engine),
                threads,
                is_closed: Arc::default(),
            }))),
        }
    }

    pub(crate) fn loaded(&self) -> Result<Arc<Loaded>, Failure> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = loaded.clone().ok_or_else(|| closed("engine"))?;
        loaded.engine()?;
        Ok(loaded)
    }

    /// The text of a conversation, by the model's chat template; messages and variables are JSON.
    fn conversation(
        &self,
        py: Python<'_>,
        messages: &str,
        variables: &str,
        add_prompt: bool,
    ) -> Result<ConversationText, Failure> {
        let loaded = self.loaded()?;
        let engine = loaded.engine()?;
        let json = |text: &str| serde_json::from_str::<Value>(text).map_err(|error| Failure::option(error.to_string()));
        let (messages, variables) = (json(messages)?, json(variables)?);
        let Some(template) = engine.chat_template() else {
            let path = engine.path().display();
            return Err(Failure::new(
                Class::Model,
                format!("{path} has no chat template: write the text of the conversation yourself and use generate"),
            ));
        };
        let variables = variables.as_object().cloned().unwrap_or_default();
        run(py, &loaded.threads, None, |watch| {
            Ok(template.render_until(&messages, add_prompt, &variables, &mut || watch.flow())?)
        })
    }
}

#[pymethods]
impl PyEngine {
    #[new]
    #[pyo3(signature = (path, options, threads=None))]
    fn new(py: Python<'_>, path: PathBuf, options: GivenEngine, threads: Option<usize>) -> Result<Self, Failure> {
        let threads = match threads {
            None => Threads::shared()?,
            Some(0) => return Err(Failure::option("threads is 0, but it must be at least 1")),
            Some(count) => Threads::new(count)?,
        };
        let options = options.resolved()?;
        let engine = run(py, &threads, None, |_| Ok(Engine::load(model_path(&path)?, options)?))?;
        Ok(Self::wrap(engine, threads))
    }

    /// The same weights under other options.
    fn with_options(&self, py: Python<'_>, options: GivenEngine) -> Result<Self, Failure> {
        let loaded = self.loaded()?;
        let (engine, options) = (loaded.engine()?, options.resolved()?);
        let other = run_short(py, &loaded.threads, || Ok(engine.with_options(options)?))?;
        Ok(Self::wrap(other, Arc::clone(&loaded.threads)))
    }

    /// Frees the model after its sessions are dropped. The sessions refuse further work.
    fn close(&self) {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(loaded) = loaded {
            loaded.is_closed.store(true, Ordering::Relaxed);
        }
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    #[getter]
    fn path(&self) -> Result<PathBuf, Failure> {
        Ok(self.loaded()?.engine()?.path().to_owned())
    }

    /// The model's sizes, as JSON.
    fn model(&self) -> Result<String, Failure> {
        let loaded = self.loaded()?;
        let engine = loaded.engine()?;
        let config = engine.model().config();
        Ok(json!({
            "layers": config.layers,
            "hidden_size": config.hidden_size,
            "heads": config.heads,
            "kv_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "vocabulary": config.vocab_size,
            "most_positions": config.max_position,
            "has_recurrent_layers": config.has_states(),
            "has_chat_template": engine.chat_template().is_some(),
        })
        .to_string())
    }

    /// The engine's memory plan, as JSON.
    fn plan(&self) -> Result<String, Failure> {
        let loaded = self.loaded()?;
        let plan = loaded.engine()?.plan();
        with_verdict(plan.fits(), serde_json::to_value(plan))
    }

    #[getter]
    fn context(&self) -> Result<usize, Failure> {
        Ok(self.loaded()?.engine()?.plan().context_tokens)
    }

    /// Names of the engine's policies: for prompts, for answers.
    #[getter]
    fn policies(&self) -> Result<(String, String), Failure> {
        let loaded = self.loaded()?;
        let options = loaded.engine()?.options();
        Ok((
            options.sequence.prefill.to_string(),
            options.sequence.decode.to_string(),
        ))
    }

    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Failure> {
        Ok(self.loaded()?.engine()?.tokenizer()?.encode(text, add_special)?)
    }

    fn decode(&self, tokens: Items<u32>, special: bool) -> Result<String, Failure> {
        let tokens = tokens.list("tokens")?;
        let loaded = self.loaded()?;
        let engine = loaded.engine()?;
        check_tokens(tokens.iter().copied(), engine.model().config().vocab_size)?;
        let tokenizer = engine.tokenizer()?;
        Ok(if special {
            tokenizer.decode_with_special(&tokens)?
        } else {
            tokenizer.decode(&tokens)?
        })
    }

    /// The tokens at the beginning and at the end of a text.
    #[getter]
    fn end_tokens(&self) -> Result<(Option<u32>, Option<u32>), Failure> {
        let loaded = self.loaded()?;
        let tokenizer = loaded.engine()?.tokenizer()?;
        Ok((tokenizer.bos(), tokenizer.eos()))
    }

    /// The text of a conversation, by the model's chat template; messages and variables are JSON.
    fn render(&self, py: Python<'_>, messages: &str, variables: &str, add_prompt: bool) -> Result<String, Failure> {
        let text = self.conversation(py, messages, variables, add_prompt)?;
        Ok(text.into_text())
    }

    /// The tokens of a conversation up to the start of the answer. Special tokens spelled in messages stay text.
    fn conversation_tokens(&self, py: Python<'_>, messages: &str, variables: &str) -> Result<Vec<u32>, Failure> {
        let text = self.conversation(py, messages, variables, true)?;
        // The template writes the special tokens itself.
        Ok(self
            .loaded()?
            .engine()?
            .tokenizer()?
            .encode_conversation(&text, false)?)
    }

    fn session(&self, py: Python<'_>) -> Result<PySession, Failure> {
        let loaded = self.loaded()?;
        let engine = loaded.engine()?;
        let session = run_short(py, &loaded.threads, || Ok(Session::new(engine)?))?;
        Ok(PySession::wrap(session, loaded))
    }

    fn restore(&self, py: Python<'_>, path: PathBuf) -> Result<PySession, Failure> {
        let loaded = self.loaded()?;
        let engine = loaded.engine()?;
        let session = run(py, &loaded.threads, None, |_| Ok(Session::restore(engine, path)?))?;
        Ok(PySession::wrap(session, loaded))
    }

    /// Answers several prompts, which share the engine: one dictionary each.
    #[pyo3(signature = (prompts, options, progress=None))]
    fn batch<'py>(
        &self,
        py: Python<'py>,
        prompts: Items<Prompt>,
        options: GivenAnswer,
        progress: Option<Py<PyAny>>,
    ) -> Result<Vec<Bound<'py, PyDict>>, Failure> {
        let loaded = self.loaded()?;
        let engine = loaded.engine()?;
        let generate = options.resolved(engine)?;
        let prompts = prompts
            .list("prompts")?
            .into_iter()
            .map(|prompt| prompt_tokens(engine, prompt));
        let batch = Batch {
            prompts: prompts.collect::<Result<_, _>>()?,
            generate,
        };
        let answers = run(py, &loaded.threads, progress.as_ref(), |watch| {
            answer_all(engine, batch, watch)
        })?;
        answers.iter().map(|answer| answer.to_python(py)).collect()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(unpicklable(
            "Engine",
            "hand its path to the other process and load it there",
        ))
    }
}

/// Memory plan of a run under these options, as JSON; nothing is loaded.
#[pyfunction]
pub(crate) fn plan(py: Python<'_>, path: PathBuf, options: GivenEngine) -> Result<String, Failure> {
    let options = options.resolved()?;
    run(py, &*Threads::shared()?, None, |_| {
        options.validate()?;
        let info = options.model.inspect(&model_path(&path)?)?;
        let plan = riffle_engine::plan(&info, &options)?;
        with_verdict(plan.fits(), serde_json::to_value(plan))
    })
}

/// A plan with its verdict, as JSON.
fn with_verdict(fits: bool, plan: serde_json::Result<Value>) -> Result<String, Failure> {
    let mut plan = plan.map_err(|error| Failure::new(Class::Internal, error.to_string()))?;
    plan["fits"] = fits.into();
    Ok(plan.to_string())
}
