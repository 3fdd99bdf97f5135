//! The native half of the Python package `riffle`: classes and functions that its Python files wrap.
//!
//! Every long call runs on Riffle's own threads without the interpreter's lock ([`watch`]), and every error is an
//! exception of `riffle.errors` ([`failure`]).

#![forbid(unsafe_code)]
// Structs that may get fields are built from their defaults, field by field.
#![allow(clippy::field_reassign_with_default)]

mod answer;
mod arrays;
mod attend;
mod batch;
mod engine;
mod evaluation;
mod failure;
mod items;
mod options;
mod paged_cache;
mod process;
mod python_policy;
mod selection;
mod session;
mod stream;
mod watch;

use pyo3::prelude::*;

/// Sets the threads for arrays and for engines without a thread count.
#[pyfunction]
fn set_threads(count: usize) -> Result<(), failure::Failure> {
    process::Threads::set_shared(count)
}

/// The number of threads for arrays and for engines without a thread count.
#[pyfunction]
fn threads() -> Result<usize, failure::Failure> {
    Ok(process::Threads::shared()?.pool()?.current_num_threads())
}

/// The known policies, as JSON: name, source, savings, phases, parameters with defaults and meanings.
#[pyfunction]
fn policies() -> String {
    let known = riffle_policy::catalogue().iter().chain(python_policy::known());
    let all: Vec<serde_json::Value> = known
        .map(|info| {
            let parameters: Vec<_> = info.parameters.iter().map(|p| (p.name, p.default, p.meaning)).collect();
            serde_json::json!({
                "name": info.name,
                "source": info.source,
                "saves": info.saves,
                "prefill": info.traits.prefill,
                "decode": info.traits.decode,
                "parameters": parameters,
            })
        })
        .collect();
    serde_json::Value::from(all).to_string()
}

/// A policy's name with all of its parameters.
#[pyfunction]
fn parse_policy(text: &str) -> Result<String, failure::Failure> {
    Ok(options::policy(text)?.to_string())
}

/// The module `riffle._riffle`.
#[pymodule(gil_used = true)]
fn _riffle(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("_MOST_ELEMENTS", items::MOST_ELEMENTS)?;
    module.add_class::<engine::PyEngine>()?;
    module.add_class::<session::PySession>()?;
    module.add_class::<stream::PyStream>()?;
    module.add_class::<paged_cache::PyPagedCache>()?;
    module.add_class::<selection::PySelection>()?;
    module.add_function(wrap_pyfunction!(engine::plan, module)?)?;
    module.add_function(wrap_pyfunction!(attend::attend, module)?)?;
    module.add_function(wrap_pyfunction!(attend::reference, module)?)?;
    module.add_function(wrap_pyfunction!(attend::select, module)?)?;
    module.add_function(wrap_pyfunction!(python_policy::register_policy, module)?)?;
    module.add_function(wrap_pyfunction!(evaluation::run_needle, module)?)?;
    module.add_function(wrap_pyfunction!(evaluation::run_ruler, module)?)?;
    module.add_function(wrap_pyfunction!(evaluation::run_compare, module)?)?;
    module.add_function(wrap_pyfunction!(evaluation::ruler_prompt, module)?)?;
    module.add_function(wrap_pyfunction!(evaluation::task_names, module)?)?;
    module.add_function(wrap_pyfunction!(evaluation::read_record, module)?)?;
    module.add_function(wrap_pyfunction!(set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(threads, module)?)?;
    module.add_function(wrap_pyfunction!(policies, module)?)?;
    module.add_function(wrap_pyfunction!(parse_policy, module)?)?;
    Ok(())
}
