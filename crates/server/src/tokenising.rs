//! Tokenises clients' texts: a few at a time, only while the client waits, and none that is surely too long.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::StatusCode;
use riffle_engine::{Engine, EngineError, largest_text_bytes};
use riffle_model::{ConversationText, ModelError, RankingText, TextTokens, Tokenizer};
use tokio::sync::Semaphore;

use crate::app::aside;
use crate::failure::Failure;

/// Texts that are tokenised at a time.
pub(crate) const TOKENISED_AT_ONCE: usize = 2;

/// A text with fewer bytes per token of the context may fit, because tokens are rarely longer.
const BYTES_PER_TOKEN: usize = 16;

/// A text with fewer bytes is tokenised without a check of the memory.
const SMALL_BYTES: usize = 1 << 20;

/// Tokenisation stops at this many times the tokens of the context. Below that the refusal gives their number.
const GIVEN_UP_CONTEXTS: usize = 2;

static PLACES: Semaphore = Semaphore::const_new(TOKENISED_AT_ONCE);

/// Purpose of a tokenisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A prompt, of at most the tokens of the context.
    Prompt,
    /// A count, of as many tokens as memory allows.
    Count,
}

/// The client of a tokenisation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Client(Arc<AtomicBool>);

/// Marks the client as gone when it is dropped.
struct Waiting(Client);

impl Client {
    fn is_gone(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Runs tokenising work when there is a place. A client that disconnects stops it.
pub(crate) async fn tokenise<T: Send + 'static>(
    work: impl FnOnce(&Client) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let place = PLACES.acquire().await;
    let client = Client::default();
    let _waiting = Waiting(client.clone());
    aside(move || {
        let _place = place;
        work(&client)
    })
    .await
}

/// The tokens of a text, while the client waits.
pub(crate) fn encode_now(
    engine: &Engine,
    text: &ConversationText,
    add_special: bool,
    wanted: Wanted,
    client: &Client,
) -> Result<Vec<u32>, Failure> {
    let bytes = text.text().len();
    let context = engine.plan().context_tokens;
    let most = match wanted {
        Wanted::Prompt => {
            refuse_too_long(engine, bytes)?;
            context.saturating_mul(GIVEN_UP_CONTEXTS)
        }
        Wanted::Count => usize::MAX,
    };
    encode_bytes(engine, (bytes, most), client, |tokenizer, poll| {
        tokenizer.encode_conversation_until(text, add_special, poll)
    })
}

/// The tokens of a query and a document, while the client waits.
pub(crate) fn encode_ranking_now(engine: &Engine, text: &RankingText, client: &Client) -> Result<TextTokens, Failure> {
    encode_bytes(engine, (text.bytes(), usize::MAX), client, |tokenizer, poll| {
        text.encode_until(tokenizer, poll)
    })
}

/// Decides during a tokenisation, from the least number of its tokens, if it goes on.
type Poll<'a> = &'a mut dyn FnMut(usize) -> ControlFlow<()>;

/// The tokens of `bytes` bytes of text, at most `most`, while the client waits.
fn encode_bytes<T>(
    engine: &Engine,
    (bytes, most): (usize, usize),
    client: &Client,
    encode: impl FnOnce(&Tokenizer, Poll<'_>) -> Result<T, ModelError>,
) -> Result<T, Failure> {
    refuse_too_large(engine, bytes)?;
    let tokenizer = engine.tokenizer().map_err(|error| Failure::from_engine(&error))?;
    let mut poll = |tokens: usize| {
        if client.is_gone() || tokens > most {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    match encode(tokenizer, &mut poll) {
        // The client is gone, so nobody reads the error.
        Err(ModelError::TokenizeInterrupted) => {
            let context = engine.plan().context_tokens;
            Err(too_long(bytes, most.saturating_add(1), context))
        }
        encoded => encoded.map_err(|error| Failure::from_engine(&EngineError::from(error))),
    }
}

/// Refuses a text of `bytes` bytes that exceeds the context even with the longest tokens.
///
/// # Errors
/// The least number of its tokens, and the context.
fn refuse_too_long(engine: &Engine, bytes: usize) -> Result<(), Failure> {
    let context = engine.plan().context_tokens;
    if bytes / BYTES_PER_TOKEN <= context {
        return Ok(());
    }
    let tokenizer = engine.tokenizer().map_err(|error| Failure::from_engine(&error))?;
    match tokenizer.fewest_tokens(bytes) {
        least if least > context => Err(too_long(bytes, least, context)),
        _ => Ok(()),
    }
}

fn too_long(bytes: usize, least: usize, context: usize) -> Failure {
    Failure::bad(format!(
        "the text has {bytes} bytes, which are {least} tokens or more, and the server's context holds {context}: shorten it"
    ))
    .with_code("context_length_exceeded")
}

/// Refuses a text whose tokenisation needs more than the free memory.
fn refuse_too_large(engine: &Engine, bytes: usize) -> Result<(), Failure> {
    if bytes < SMALL_BYTES {
        return Ok(());
    }
    let most = largest_text_bytes(engine.options()) / TOKENISED_AT_ONCE as u64;
    if bytes as u64 <= most {
        Ok(())
    } else {
        Err(Failure::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the text has {bytes} bytes and there is memory to tokenise {most}: send a shorter one"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

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

    #[test]
    fn a_text_beyond_the_context_is_counted_and_refused_as_a_prompt() {
        let engine = crate::forms::tests::engine();
        let encode =
            |text: &str, wanted| encode_now(&engine, &text.to_owned().into(), false, wanted, &Client::default());
        let text = "the king and the prophet ".repeat(20_000);
        let counted = encode(&text, Wanted::Count).unwrap();
        assert_eq!(counted, engine.tokenizer().unwrap().encode(&text, false).unwrap());
        let problem = encode(&text, Wanted::Prompt).unwrap_err();
        assert_eq!(problem.code, Some("context_length_exceeded"));
    }

    #[test]
    fn a_client_that_goes_stops_the_work() {
        const LONGEST: Duration = Duration::from_secs(60);
        let engine = crate::forms::tests::engine();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let work = tokenise(move |client: &Client| {
            let text = "the king and the prophet ".repeat(4000).into();
            let began = Instant::now();
            let mut encoded = Ok(Vec::new());
            while encoded.is_ok() && began.elapsed() < LONGEST {
                encoded = encode_now(&engine, &text, false, Wanted::Count, client);
            }
            tell.send(encoded.is_err()).unwrap();
            encoded
        });
        let given_up = runtime.block_on(async { tokio::time::timeout(Duration::from_millis(50), work).await });
        assert!(given_up.is_err());
        assert!(told.recv().unwrap(), "the work went on for {LONGEST:?}");
    }
}
