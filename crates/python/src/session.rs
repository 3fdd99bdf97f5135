//! One text with its pages, policies and answer.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use riffle_engine::{CompressOptions, GenerateOptions, Session, TokenProbabilities};
use serde_json::json;

use crate::answer::{Answered, Prompt, prompt_tokens};
use crate::engine::{Loaded, closed, unpicklable};
use crate::failure::{Class, Failure};
use crate::items::Items;
use crate::options::GivenAnswer;
use crate::process::OfProcess;
use crate::stream::PyStream;
use crate::watch::{Watch, run};

/// Maximum bytes of logits per call.
const MOST_LOGIT_BYTES: u64 = 4 << 30;

/// A session, until it is closed; one call at a time uses it.
pub(crate) type Held = Mutex<Option<OfProcess<Session>>>;

/// A session of an engine, wrapped by `riffle.Session`.
#[pyclass(frozen, module = "riffle._riffle", name = "Session")]
pub(crate) struct PySession {
    loaded: Arc<Loaded>,
    held: Arc<Held>,
}

/// Start of an answer: the tokens to read before it, and the generation options.
pub(crate) struct Begun {
    pub(crate) tokens: Vec<u32>,
    pub(crate) generate: GenerateOptions,
    /// True if the session first forgets everything that differs from the tokens.
    pub(crate) replaces: bool,
}

impl PySession {
    pub(crate) fn wrap(session: Session, loaded: Arc<Loaded>) -> Self {
        Self {
            loaded,
            held: Arc::new(Mutex::new(Some(OfProcess::new(session)))),
        }
    }

    /// Runs long work on the session.
    fn work<T: Send>(
        &self,
        py: Python<'_>,
        progress: Option<&Py<PyAny>>,
        work: impl FnOnce(&mut Session, &Watch) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        self.loaded.engine()?;
        let mut held = lock(&self.held)?;
        let session = open(&mut held)?;
        run(py, &self.loaded.threads, progress, |watch| work(session, watch))
    }

    /// Reads from the session without long work.
    fn look<T>(&self, look: impl FnOnce(&Session) -> T) -> Result<T, Failure> {
        self.loaded.engine()?;
        let mut held = lock(&self.held)?;
        Ok(look(open(&mut held)?))
    }

    fn tokens_of(&self, prompt: Prompt) -> Result<Vec<u32>, Failure> {
        let engine = self.loaded.engine()?;
        match prompt {
            // Only a text's beginning has the token that begins texts.
            Prompt::Text(text) if self.look(|session| !session.tokens().is_empty())? => {
                Ok(engine.tokenizer()?.encode(&text, false)?)
            }
            prompt => prompt_tokens(engine, prompt),
        }
    }

    fn begun(&self, prompt: Option<Prompt>, options: GivenAnswer, replaces: bool) -> Result<Begun, Failure> {
        let engine = self.loaded.engine()?;
        let generate = options.resolved(engine)?;
        if generate.probabilities.is_some() {
            return Err(Failure::option(
                "probabilities are told of answers of an engine, not of a session: use Engine.generate",
            ));
        }
        let tokens = match prompt {
            None => Vec::new(),
            Some(prompt) if replaces => prompt_tokens(engine, prompt)?,
            Some(prompt) => self.tokens_of(prompt)?,
        };
        Ok(Begun {
            tokens,
            generate,
            replaces,
        })
    }
}

/// The session for one call; an error if another call uses it.
pub(crate) fn lock(held: &Held) -> Result<MutexGuard<'_, Option<OfProcess<Session>>>, Failure> {
    match held.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Failure::new(
            Class::Session,
            "this session is in use by another call: wait for it, close its stream, or fork the session before",
        )),
    }
}

pub(crate) fn open(held: &mut Option<OfProcess<Session>>) -> Result<&mut Session, Failure> {
    held.as_mut().ok_or_else(|| closed("session"))?.get_mut()
}

/// Reads the tokens before an answer and generates it; `show` receives its text.
pub(crate) fn answer(
    session: &mut Session,
    begun: &Begun,
    watch: &Watch,
    show: &mut dyn FnMut(&str),
) -> Result<Answered, Failure> {
    let began = Instant::now();
    let kept = if begun.replaces {
        session.keep_shared(&begun.tokens)?
    } else {
        0
    };
    if kept < begun.tokens.len() {
        session.prefill(&begun.tokens[kept..], &mut |progress| watch.note_prefill(progress))?;
    }
    let (prompt_tokens, read_s) = (session.tokens().len(), began.elapsed().as_secs_f64());
    let generation = session.generate(&begun.generate, &mut |text| {
        show(text);
        watch.flow()
    })?;
    Ok(Answered {
        generation,
        prompt_tokens,
        reused_tokens: if begun.replaces {
            kept
        } else {
            prompt_tokens - begun.tokens.len()
        },
        probabilities: Vec::new(),
        read_s,
        answered_s: began.elapsed().as_secs_f64() - read_s,
    })
}

#[pymethods]
impl PySession {
    fn close(&self) -> Result<(), Failure> {
        lock(&self.held)?.take();
        Ok(())
    }

    #[getter]
    fn is_closed(&self) -> bool {
        match self.held.try_lock() {
            Ok(held) => held.is_none(),
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned).is_none(),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    #[getter]
    fn tokens(&self) -> Result<Vec<u32>, Failure> {
        self.look(|session| session.tokens().to_vec())
    }

    fn __len__(&self) -> Result<usize, Failure> {
        self.look(|session| session.tokens().len())
    }

    #[getter]
    fn density(&self) -> Result<f64, Failure> {
        self.look(|session| session.sequence().counts().pairs.density())
    }

    /// Memory of the session's pages, as JSON.
    fn usage(&self) -> Result<String, Failure> {
        self.look(|session| {
            let usage = session.sequence().usage();
            json!({
                "tokens": usage.tokens,
                "pages": usage.pages,
                "ram_bytes": usage.bytes_by_tier.device + usage.bytes_by_tier.ram,
                "disk_bytes": usage.bytes_by_tier.disk,
                "shared_bytes": usage.shared_bytes,
            })
            .to_string()
        })
    }

    /// Attention mass that the policies kept, as JSON; `None` without an audit.
    fn audit(&self) -> Result<Option<String>, Failure> {
        let report = self.look(|session| session.sequence().audit())?;
        let report = report.map(|report| serde_json::to_string(&report));
        report
            .transpose()
            .map_err(|error| Failure::new(Class::Internal, error.to_string()))
    }

    /// Logits after the last token, `[vocabulary]`.
    fn logits<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyArray1<f32>>, Failure> {
        let logits = self.look(|session| session.logits().to_vec())?;
        if logits.is_empty() {
            Err(Failure::new(
                Class::Session,
                "the session has read nothing yet: prefill it first",
            ))
        } else {
            Ok(logits.into_pyarray(py))
        }
    }

    #[pyo3(signature = (prompt, progress=None))]
    fn prefill(&self, py: Python<'_>, prompt: Prompt, progress: Option<Py<PyAny>>) -> Result<usize, Failure> {
        let tokens = self.tokens_of(prompt)?;
        self.work(py, progress.as_ref(), |session, watch| {
            session.prefill(&tokens, &mut |progress| watch.note_prefill(progress))?;
            Ok(tokens.len())
        })
    }

    /// Reads a prompt and returns the logits after its tokens from index `first` on, `[tokens, vocabulary]`.
    #[pyo3(signature = (prompt, first=0, progress=None))]
    fn prefill_logits<'py>(
        &self,
        py: Python<'py>,
        prompt: Prompt,
        first: usize,
        progress: Option<Py<PyAny>>,
    ) -> Result<Bound<'py, PyArray2<f32>>, Failure> {
        let tokens = self.tokens_of(prompt)?;
        let vocabulary = self.loaded.engine()?.model().config().vocab_size;
        if first >= tokens.len() {
            return Err(Failure::option(format!(
                "first is {first}, but the prompt has {} tokens",
                tokens.len()
            )));
        }
        let rows = tokens.len() - first;
        let bytes = (rows as u64 * vocabulary as u64).saturating_mul(4);
        if bytes > MOST_LOGIT_BYTES {
            return Err(Failure::new(
                Class::OutOfMemory,
                format!(
                    "logits of {rows} tokens take {}: ask for those from a later token on (first), or for log_probabilities",
                    riffle_engine::human_bytes(bytes)
                ),
            ));
        }
        let logits = self.work(py, progress.as_ref(), |session, watch| {
            let held = session.tokens().len();
            let mut logits = Vec::with_capacity(rows * vocabulary);
            let wanted = held + first..held + tokens.len();
            session.prefill_with_logits_at(
                &tokens,
                &[wanted],
                &mut |progress| watch.note_prefill(progress),
                &mut |_, rows| {
                    logits.extend_from_slice(rows);
                    watch.flow()
                },
            )?;
            Ok(logits)
        })?;
        Ok(logits.into_pyarray(py).reshape([rows, vocabulary])?)
    }

    /// The log probabilities of `tokens[first..]`, each given everything before it, and true for each that is the
    /// likeliest token. The session then holds `tokens`; the shared beginning is not read again.
    #[pyo3(signature = (tokens, first, progress=None))]
    #[expect(clippy::type_complexity, reason = "a pair of arrays")]
    fn log_probabilities<'py>(
        &self,
        py: Python<'py>,
        tokens: Items<u32>,
        first: usize,
        progress: Option<Py<PyAny>>,
    ) -> Result<(Bound<'py, PyArray1<f32>>, Bound<'py, PyArray1<bool>>), Failure> {
        let tokens = tokens.list("tokens")?;
        crate::options::check_tokens(
            tokens.iter().copied(),
            self.loaded.engine()?.model().config().vocab_size,
        )?;
        if first == 0 || first >= tokens.len() {
            return Err(Failure::option(format!(
                "first is {first}, but it must be from 1 to {}: a token needs others before it",
                tokens.len().saturating_sub(1)
            )));
        }
        let (found, likeliest) = self.work(py, progress.as_ref(), |session, watch| {
            log_probabilities(session, &tokens, first, watch)
        })?;
        Ok((found.into_pyarray(py), likeliest.into_pyarray(py)))
    }

    /// Reads a prompt, or forgets the differing tokens, and answers: the fields of `riffle.Generation`.
    #[pyo3(signature = (prompt, options, replaces=false, progress=None))]
    fn generate<'py>(
        &self,
        py: Python<'py>,
        prompt: Option<Prompt>,
        options: GivenAnswer,
        replaces: bool,
        progress: Option<Py<PyAny>>,
    ) -> Result<Bound<'py, PyDict>, Failure> {
        let begun = self.begun(prompt, options, replaces)?;
        let answered = self.work(py, progress.as_ref(), |session, watch| {
            answer(session, &begun, watch, &mut |_| ())
        })?;
        answered.to_python(py)
    }

    /// Like [`generate`](Self::generate), piece by piece.
    #[pyo3(signature = (prompt, options, replaces=false, progress=None))]
    fn stream(
        &self,
        prompt: Option<Prompt>,
        options: GivenAnswer,
        replaces: bool,
        progress: Option<Py<PyAny>>,
    ) -> Result<PyStream, Failure> {
        let begun = self.begun(prompt, options, replaces)?;
        self.look(|_| ())?;
        PyStream::begin(&self.loaded, &self.held, begun, progress)
    }

    /// Reads one token as a generated one.
    fn advance(&self, py: Python<'_>, token: u32) -> Result<(), Failure> {
        crate::options::check_tokens([token], self.loaded.engine()?.model().config().vocab_size)?;
        self.work(py, None, |session, _| Ok(session.advance(token)?))
    }

    fn truncate(&self, py: Python<'_>, tokens: usize) -> Result<(), Failure> {
        self.work(py, None, |session, _| Ok(session.truncate(tokens)?))
    }

    fn fork(&self, py: Python<'_>) -> Result<Self, Failure> {
        let fork = self.work(py, None, |session, _| Ok(session.fork()?))?;
        Ok(Self::wrap(fork, Arc::clone(&self.loaded)))
    }

    /// Writes the session to a file; returns its bytes.
    fn save(&self, py: Python<'_>, path: PathBuf) -> Result<u64, Failure> {
        self.work(py, None, |session, _| Ok(session.sequence().save(path)?.len()))
    }

    /// Evicts the pairs that later questions need least; returns the kept amount, as JSON.
    #[pyo3(signature = (options, progress=None))]
    fn compress(&self, py: Python<'_>, options: &str, progress: Option<Py<PyAny>>) -> Result<String, Failure> {
        let options: CompressOptions = options.parse()?;
        let compressed = self.work(py, progress.as_ref(), |session, watch| {
            Ok(session.compress(&options, &mut |progress| watch.note_prefill(progress))?)
        })?;
        serde_json::to_string(&compressed).map_err(|error| Failure::new(Class::Internal, error.to_string()))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(unpicklable("Session", "save it to a file and restore it there"))
    }
}

/// Log probabilities of `tokens[first..]`, and true for each that is the likeliest token. The session then holds
/// `tokens`.
fn log_probabilities(
    session: &mut Session,
    tokens: &[u32],
    first: usize,
    watch: &Watch,
) -> Result<(Vec<f32>, Vec<bool>), Failure> {
    let vocabulary = session.engine().model().config().vocab_size;
    // The logits that predict the first requested token follow the token before it, which is read again.
    let kept = session.keep_shared(&tokens[..first - 1])?;
    let (mut found, mut likeliest) = (Vec::new(), Vec::new());
    let mut take = |position: usize, logits: &[f32]| {
        for (row, logits) in logits.chunks_exact(vocabulary).enumerate() {
            let next = tokens[position + row + 1];
            let probabilities = TokenProbabilities::from_logits(logits, next, 1);
            found.push(probabilities.log_probability);
            likeliest.push(probabilities.likeliest[0].0 == next);
        }
        watch.flow()
    };
    let wanted = first - 1..tokens.len() - 1;
    session.prefill_with_logits_at(
        &tokens[kept..],
        &[wanted],
        &mut |progress| watch.note_prefill(progress),
        &mut take,
    )?;
    Ok((found, likeliest))
}
