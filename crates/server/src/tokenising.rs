//! Tokenises texts of clients: a few at a time, and none that cannot fit.

use riffle_engine::Engine;
use tokio::sync::Semaphore;

use crate::app::aside;
use crate::failure::Failure;

/// Texts that are tokenised at a time. Each takes about 64 bytes of memory for each byte of its longest word.
const TOKENISED_AT_ONCE: usize = 2;

/// A text with fewer bytes for each token of the context may fit: tokens are rarely shorter.
const BYTES_PER_TOKEN: usize = 16;

static PLACES: Semaphore = Semaphore::const_new(TOKENISED_AT_ONCE);

/// Does work that tokenises, once there is a place. A client that goes before takes its work with it.
pub(crate) async fn tokenise<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let place = PLACES.acquire().await;
    aside(move || {
        let _place = place;
        work()
    })
    .await
}

/// Refuses a text of `bytes` bytes whose tokens cannot all be in the context, however long they are.
///
/// # Errors
/// How many tokens it has at least and how many the context holds.
pub(crate) fn refuse_too_long(engine: &Engine, bytes: usize) -> Result<(), Failure> {
    let context = engine.plan().context_tokens;
    if bytes / BYTES_PER_TOKEN <= context {
        return Ok(());
    }
    let tokenizer = engine.tokenizer().map_err(|error| Failure::of(&error))?;
    match tokenizer.fewest_tokens(bytes) {
        least if least > context => Err(Failure::bad(format!(
            "the text has {bytes} bytes, which are {least} tokens or more, and the server's context holds {context}: shorten it"
        ))
        .with_code("context_length_exceeded")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_cannot_fit_is_refused_before_it_is_tokenised() {
        let engine = crate::forms::tests::engine();
        let tokenizer = engine.tokenizer().unwrap();
        let problem = refuse_too_long(&engine, 31 << 20).unwrap_err();
        assert!(problem.message.contains("tokens or more"), "{}", problem.message);
        assert!(refuse_too_long(&engine, 8 << 10).is_ok());
        for text in [
            " ".repeat(3000),
            "the and ".repeat(400),
            "\u{1F600}e\u{301}".repeat(300),
            "\u{0}\n\n\t".repeat(500),
        ] {
            let tokens = tokenizer.encode(&text, false).unwrap().len();
            let least = tokenizer.fewest_tokens(text.len());
            assert!((1..=tokens).contains(&least), "{least} of {tokens}");
        }
    }
}
