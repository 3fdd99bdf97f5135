//! Several answers to one request, with their events as they arrive.

use std::future::poll_fn;
use std::task::Poll;

use crate::driver::{Answer, DriverEvent, Finished, Token};
use crate::failure::Failure;
use crate::speech::{AnswerPiece, Speech};

/// Running answers, by their index.
#[derive(Debug, Default)]
pub(crate) struct Answers(Vec<Option<Answer>>);

impl Answers {
    pub(crate) fn new(answers: Vec<Answer>) -> Self {
        Self(answers.into_iter().map(Some).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Waits for the next event of any answer; `None` when all have ended. Dropping `self` cancels the running answers.
    pub(crate) async fn next(&mut self) -> Option<(usize, DriverEvent)> {
        poll_fn(|context| {
            let mut has_more = false;
            for (index, place) in self.0.iter_mut().enumerate() {
                let Some(answer) = place else {
                    continue;
                };
                match answer.poll(context) {
                    Poll::Ready(Some(told)) => {
                        if matches!(told, DriverEvent::Finished(_) | DriverEvent::Failed(_)) {
                            *place = None;
                        }
                        return Poll::Ready(Some((index, told)));
                    }
                    // The engine's thread has ended without an event.
                    Poll::Ready(None) => {
                        *place = None;
                        return Poll::Ready(Some((index, DriverEvent::Failed(Failure::stopping()))));
                    }
                    Poll::Pending => has_more = true,
                }
            }
            if has_more { Poll::Pending } else { Poll::Ready(None) }
        })
        .await
    }
}

/// A complete answer, assembled from its events.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) text: String,
    pub(crate) thought: String,
    pub(crate) thought_tokens: usize,
    pub(crate) calls: Vec<crate::speech::Call>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) prompt_probabilities: Vec<riffle_engine::TokenProbabilities>,
    pub(crate) finished: Option<Box<Finished>>,
}

impl Whole {
    fn new() -> Self {
        Self {
            text: String::new(),
            thought: String::new(),
            thought_tokens: 0,
            calls: Vec::new(),
            tokens: Vec::new(),
            prompt_probabilities: Vec::new(),
            finished: None,
        }
    }

    fn take(&mut self, pieces: Vec<AnswerPiece>) {
        for piece in pieces {
            match piece {
                AnswerPiece::Text(text) => self.text.push_str(&text),
                AnswerPiece::Thought(text) => self.thought.push_str(&text),
                AnswerPiece::Call(call) => self.calls.push(call),
            }
        }
    }
}

/// The text of a token for a [`Speech`]: marks that are special tokens are not part of the answer's text.
pub(crate) fn spoken(engine: &riffle_engine::Engine, speech: &Speech, token: &Token) -> String {
    let Ok(tokenizer) = engine.tokenizer() else {
        return token.text.clone();
    };
    if tokenizer.is_special(token.token)
        && let Some(special) = tokenizer.token_text(token.token)
        && speech.is_mark(&special)
    {
        return format!("{}{special}", token.text);
    }
    token.text.clone()
}

/// Waits for all answers to end. The first that fails ends the request.
pub(crate) async fn collect(
    engine: &riffle_engine::Engine,
    mut answers: Answers,
    speech: &Speech,
) -> Result<Vec<Whole>, Failure> {
    let mut speeches = vec![speech.clone(); answers.len()];
    let mut wholes: Vec<Whole> = (0..answers.len()).map(|_| Whole::new()).collect();
    while let Some((index, told)) = answers.next().await {
        let (whole, speech) = (&mut wholes[index], &mut speeches[index]);
        match told {
            DriverEvent::Accepted | DriverEvent::Reading(_) | DriverEvent::Session(_) => {}
            DriverEvent::PromptProbabilities(probabilities) => whole.prompt_probabilities.extend(probabilities),
            DriverEvent::Token(token) => {
                let pieces = speech.push(&spoken(engine, speech, &token));
                whole.take(pieces);
                whole.tokens.push(token);
            }
            DriverEvent::Finished(finished) => {
                whole.take(speech.finish());
                whole.thought_tokens = speech.thought_tokens();
                whole.finished = Some(finished);
            }
            DriverEvent::Failed(failure) => return Err(failure),
        }
    }
    Ok(wholes)
}
