//! Drafts: the next tokens of an answer are guessed cheaply and verified together, and the answer is the same to the byte.
//!
//! A pass reads the latest token of an answer and, behind it, the tokens of a draft. Row by row the answer draws its next token from the
//! logits, with the draws, penalties and forms that it has without drafts. As long as it draws what was drafted, the next row is what
//! reading that token alone would have given, to the bit. At the first other token the sequence is rolled back, and what was drafted behind
//! it has changed nothing.
//!
//! | file | |
//! |---|---|
//! | `spec.rs` | what drafts: `--draft` |
//! | `ngram.rs` | places of the text that the answer repeats |
//! | `own.rs` | the model itself under a sparse policy |
//! | `gain.rs` | how many tokens pay |
//! | `costs.rs` | what rows and drafted tokens cost, from stored constants |
//! | `step.rs` | draft, verify, draw, roll back, for the answers of one pass |

mod costs;
mod gain;
mod ngram;
mod own;
mod spec;
mod step;

use serde::Serialize;

use crate::{EngineError, Sequence};
use costs::costs;
use gain::Acceptance;
use ngram::Ngrams;
use own::OwnDraft;
pub use spec::DraftSpec;
pub(crate) use step::{AnswerStep, go_on};

/// Tokens of a draft at most: with the latest token of the answer they fill the rows of a pass of answers.
const MOST_TOKENS: usize = 15;

/// Classes of matches by their length, and how often their tokens are assumed to agree.
const MATCHES: [(usize, f64); 4] = [(2, 0.3), (4, 0.5), (8, 0.7), (16, 0.85)];
/// How often the model is assumed to draw under a sparse policy what it draws without.
const OWN_AGREES: f64 = 0.85;

/// Drafted tokens of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DraftCount {
    /// Tokens that were drafted and verified.
    pub drafted: usize,
    /// Those of them that the answer drew.
    pub accepted: usize,
    /// Passes over the whole model that verified them.
    pub passes: usize,
}

/// What drafts the tokens of one answer, and what it has learned of it.
pub(crate) struct Drafter {
    ngrams: Option<Box<(Ngrams, [Acceptance; MATCHES.len()])>>,
    own: Option<Box<(OwnDraft, Acceptance)>>,
    /// Tokens of every draft, where that is fixed.
    tokens: Option<usize>,
    pub(crate) count: DraftCount,
}

/// Where a draft comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A match of this class.
    Ngram(usize),
    Own,
}

impl Drafter {
    /// What drafts as `spec` says; `None` where nothing does.
    ///
    /// # Errors
    /// [`EngineError::Option`] where drafts that are asked for by name cannot be made of this sequence.
    pub(crate) fn new(spec: &DraftSpec, sequence: &Sequence) -> Result<Option<Self>, EngineError> {
        if spec.is_none() {
            return Ok(None);
        }
        if let Some(problem) = sequence.cannot_draft() {
            return match spec.is_optional {
                true => Ok(None),
                false => Err(EngineError::option("--draft", spec, problem)),
            };
        }
        let own = match &spec.own {
            Some(rules) => Some(Box::new((
                OwnDraft::new(rules, sequence)?,
                Acceptance::assumed(OWN_AGREES),
            ))),
            None => None,
        };
        let acceptances = MATCHES.map(|(_, agrees)| Acceptance::assumed(agrees));
        Ok(Some(Self {
            ngrams: spec.has_ngram.then(|| Box::new((Ngrams::default(), acceptances))),
            own,
            tokens: spec.tokens,
            count: DraftCount::default(),
        }))
    }

    /// What followed before where the text was as it is at the end of the sequence, with `token` behind it; at most `most` tokens.
    fn of_text(&mut self, sequence: &Sequence, token: u32, together: usize, most: usize) -> Option<(Source, Vec<u32>)> {
        let (ngrams, acceptances) = &mut **self.ngrams.as_mut()?;
        ngrams.extend(&sequence.tokens()[ngrams.text().len()..]);
        ngrams.extend(&[token]);
        let (text, found) = (ngrams.text(), ngrams.find()?);
        let class = MATCHES.partition_point(|(tokens, _)| *tokens <= found.tokens) - 1;
        // Where the text behind the match is shorter, it repeats itself.
        let period = text.len() - found.place;
        let length = match self.tokens {
            Some(tokens) => tokens.min(most),
            None => acceptances[class].length(&costs(sequence, None, together), most),
        };
        let draft: Vec<u32> = (0..length).map(|token| text[found.place + token % period]).collect();
        (!draft.is_empty()).then_some((Source::Ngram(class), draft))
    }

    /// Tokens that the model is to draft itself, at most `most`.
    fn own_length(&mut self, sequence: &Sequence, together: usize, most: usize) -> usize {
        match self.own.as_deref_mut() {
            None => 0,
            Some(_) if self.tokens.is_some() => self.tokens.unwrap_or(0).min(most),
            Some((own, acceptance)) => acceptance.length(&costs(sequence, Some(own.rules()), together), most),
        }
    }

    fn learn(&mut self, source: Source, drafted: usize, agreed: usize) {
        self.count.drafted += drafted;
        self.count.accepted += agreed;
        match (source, self.ngrams.as_deref_mut(), self.own.as_deref_mut()) {
            (Source::Ngram(class), Some((_, acceptances)), _) => acceptances[class].learn(drafted, agreed),
            (Source::Own, _, Some((_, acceptance))) => acceptance.learn(drafted, agreed),
            _ => {}
        }
    }
}

impl Sequence {
    /// Why tokens of this sequence cannot be drafted, if they cannot.
    fn cannot_draft(&self) -> Option<&'static str> {
        if self.engine.options().device.is_some() {
            Some("drafts are made on the CPU alone: leave out --draft or --device")
        } else if self.options.window.is_some() {
            Some("an endless window moves with every token and cannot go back: leave out --draft or --window-size")
        } else if self.statistics.audit.is_some() {
            Some("an audit compares tokens that are read one by one: leave out --draft or --audit")
        } else if self.learns() {
            Some("a policy that learns from every query cannot go back: leave out --draft, or choose another policy")
        } else {
            None
        }
    }
}
