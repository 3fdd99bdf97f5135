//! Checks memory and context before a measurement allocates anything.

use riffle_engine::{Engine, available_memory_bytes, human_bytes};

use crate::EvalError;

/// Refuses a measurement that exceeds the available memory. `what` names the user of the bytes, and `smaller` says
/// how to reduce them.
pub(crate) fn check_memory(what: &str, needed_bytes: u64, smaller: &str) -> Result<(), EvalError> {
    let available = available_memory_bytes();
    if needed_bytes <= available {
        return Ok(());
    }
    Err(EvalError::Option(format!(
        "{what} takes {} and {} are available: {smaller}",
        human_bytes(needed_bytes),
        human_bytes(available)
    )))
}

/// Refuses more `tokens` than the engine's context. An endless sequence takes any number and keeps only the ids in
/// memory.
pub(crate) fn check_context(engine: &Engine, what: &'static str, tokens: usize) -> Result<(), EvalError> {
    if engine.options().sequence.window.is_some() {
        let bytes = (tokens as u64).saturating_mul(4 * size_of::<u32>() as u64);
        return check_memory(what, bytes, "use fewer tokens");
    }
    Ok(engine.check_context(what, tokens)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_holds_is_refused_with_what_to_change() {
        assert!(check_memory("a cache", 4096, "use fewer --tokens").is_ok());
        let message = check_memory("a cache", u64::MAX, "use fewer --tokens")
            .unwrap_err()
            .to_string();
        assert!(message.starts_with("a cache takes 16777216 TiB"), "{message}");
        assert!(message.ends_with("use fewer --tokens"), "{message}");
    }
}
