//! Policies written in Python, in addition to the catalogue: for research, not for speed.

use std::sync::{Mutex, PoisonError};

use numpy::{IntoPyArray, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use riffle_attention::{QueryTile, Selection, read_keys};
use riffle_policy::{KeyUse, ParameterInfo, PolicyError, PolicyInfo, SelectContext, SparsePolicy, Traits, catalogue};

use crate::failure::Failure;
use crate::selection::PySelection;

/// The hidden parameter that identifies a policy's object.
const NUMBER: &str = "object";

/// The source of registered policies.
pub(crate) const SOURCE: &str = "Python";

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    objects: Vec::new(),
    infos: &[],
    error: None,
});

/// The registered policies.
struct Registry {
    /// The Python object of each policy. The flag is true if the policy reads keys.
    objects: Vec<(Py<PyAny>, bool)>,
    /// One for each name. Specs keep references to them, so they are never freed.
    infos: &'static [PolicyInfo],
    /// Exception that a policy raised in the current call.
    error: Option<PyErr>,
}

/// Traits that a policy in Python declares.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct GivenTraits {
    prefill: bool,
    decode: bool,
    reads_keys: bool,
    follows_from_keys: bool,
}

/// Named policies in addition to the catalogue.
pub(crate) fn known() -> &'static [PolicyInfo] {
    registry().infos
}

/// Takes the exception that a Python policy raised since the last call.
pub(crate) fn take_error() -> Option<PyErr> {
    registry().error.take()
}

fn registry() -> std::sync::MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers an object with a method `select(queries, context)` under a name. If the name is taken, it now means this
/// object; engines loaded before keep the old one.
#[pyfunction]
pub(crate) fn register_policy(name: &str, policy: Py<PyAny>, traits: GivenTraits) -> Result<(), Failure> {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(is_word) {
        return Err(Failure::option(format!(
            "policy name {name:?} must be of lower case letters, digits, - and _"
        )));
    }
    if catalogue().iter().any(|info| info.name == name) {
        return Err(Failure::option(format!(
            "policy {name} is one of Riffle's own: choose another name"
        )));
    }
    if !traits.prefill && !traits.decode {
        return Err(Failure::option(format!(
            "policy {name} must select in a phase: prefill, decode or both"
        )));
    }
    let mut registry = registry();
    let number = registry.objects.len();
    registry.objects.push((policy, traits.reads_keys));
    let parameter = ParameterInfo::count(
        NUMBER,
        Box::leak(number.to_string().into_boxed_str()),
        "number of the Python object that selects",
        0,
        u32::MAX as usize,
    );
    let mut info = catalogue()[0];
    info.name = Box::leak(name.to_owned().into_boxed_str());
    info.source = SOURCE;
    info.saves = "nothing: it is for research";
    info.traits = Traits::PLAIN;
    info.traits.prefill = traits.prefill;
    info.traits.decode = traits.decode;
    info.traits.follows_from_keys = traits.follows_from_keys;
    // The object receives the starts of chunks.
    info.traits.depends_on_chunks = true;
    info.traits.keys = if traits.reads_keys {
        KeyUse::Scanned
    } else {
        KeyUse::Unread
    };
    info.parameters = Box::leak(Box::new([parameter]));
    info.build = |parameters| {
        Box::new(PythonPolicy {
            number: parameters.count(NUMBER),
        })
    };
    let others = registry.infos.iter().filter(|other| other.name != name);
    let infos: Vec<PolicyInfo> = others.copied().chain([info]).collect();
    registry.infos = Vec::leak(infos);
    Ok(())
}

/// A policy of the registry.
struct PythonPolicy {
    number: usize,
}

impl SparsePolicy for PythonPolicy {
    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        Python::attach(|py| {
            let object = registry()
                .objects
                .get(self.number)
                .map(|(object, reads)| (object.clone_ref(py), *reads));
            let selected = match object {
                Some((object, true)) => ask(py, &object, tile, context),
                // Some pages may exist for other policies.
                Some((object, false)) => ask(py, &object, tile, &SelectContext { pages: &[], ..*context }),
                None => Err(Failure::from(PolicyError::BadState).into()),
            };
            selected.unwrap_or_else(|error| {
                registry().error.get_or_insert(error);
                Selection::full(context.tokens)
            })
        })
    }
}

/// Calls the object's `select`. Queries are `[rows, group, head_dim]`; keys are `[tokens, head_dim]` for a policy that
/// reads them.
fn ask(py: Python<'_>, object: &Py<PyAny>, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> PyResult<Selection> {
    let width = tile.head_dim;
    let mut queries = Vec::with_capacity(tile.rows * tile.group * width);
    for row in 0..tile.rows {
        for head in 0..tile.group {
            queries.extend_from_slice(tile.query(row, head));
        }
    }
    let queries = queries.into_pyarray(py).reshape([tile.rows, tile.group, width])?;
    let fields = PyDict::new(py);
    fields.set_item("phase", context.phase.to_string())?;
    fields.set_item("layer", context.layer)?;
    fields.set_item("layers", context.layers)?;
    fields.set_item("kv_head", context.kv_head)?;
    fields.set_item("start", tile.start)?;
    fields.set_item("rows", tile.rows)?;
    fields.set_item("chunk_start", context.chunk_start)?;
    fields.set_item("tokens", context.tokens)?;
    fields.set_item("total_tokens", context.total_tokens)?;
    fields.set_item("page_tokens", context.page_tokens)?;
    fields.set_item("scale", context.scale)?;
    fields.set_item("soft_cap", context.soft_cap)?;
    if context.pages.is_empty() {
        fields.set_item("keys", py.None())?;
    } else {
        let mut keys = vec![0.0f32; context.tokens * width];
        for page in context.pages {
            let tokens = page.tokens.min(context.tokens.saturating_sub(page.start));
            if tokens > 0 {
                read_keys(&page.keys, width, 0, tokens, &mut keys[page.start * width..], width)
                    .map_err(Failure::from)?;
            }
        }
        fields.set_item("keys", keys.into_pyarray(py).reshape([context.tokens, width])?)?;
    }
    let context = py
        .import("riffle._policies")?
        .getattr("SelectContext")?
        .call((), Some(&fields))?;
    let answer = object.call_method1(py, "select", (queries, context))?;
    let selection = answer.bind(py).cast::<PySelection>().map_err(|_| {
        let message = "a policy's select must return a riffle.Selection";
        PyErr::from(Failure::option(message))
    })?;
    Ok(selection.get().selection().clone())
}
