//! Drafts: the next tokens of an answer are guessed cheaply and verified together. The answer stays the same to the
//! byte.
//!
//! A pass reads the latest token of an answer and then the tokens of a draft. Row by row the answer draws its next
//! token from the logits. It uses the same random numbers, penalties and forms as without drafts. While the drawn token
//! equals the drafted one, the next row has the bits of reading this token alone. At the first difference the sequence
//! is rolled back, so the rest of the draft has no effect.
//!
//! | file | |
//! |---|---|
//! | `ngram.rs` | drafts from the text: earlier places with the same latest tokens |
//! | `own.rs` | drafts by the model itself under a sparse policy |
//! | `model.rs` | drafts by a small model with the same tokens |
//! | `predictor.rs` | drafts by the layer of the model's files that predicts further tokens |
//! | `gain.rs` | the length of a draft that pays most |
//! | `costs.rs` | the costs of verified rows and drafted tokens, from stored constants |
//! | `step.rs` | draft, verify, draw and roll back, for all answers of one pass |

mod costs;
mod gain;
mod model;
mod ngram;
mod own;
mod predictor;
mod step;

use crate::answer::{Answer, Guess};
use crate::draft_spec::MOST_TOKENS;
use crate::options::has_indexers;
use crate::{DraftCount, DraftSpec, EngineError, GenerateOptions, Generation, Sequence, StopReason};
use costs::{Drafts, costs};
use gain::{Acceptance, Balance, Costs, Offer};
use ngram::Ngrams;
use own::OwnDraft;
pub(crate) use step::{AnswerStep, go_on};

/// Classes of matches by length, with their assumed acceptance rates.
const MATCHES: [(usize, f64); 4] = [(2, 0.3), (4, 0.5), (8, 0.7), (16, 0.85)];
/// Assumed acceptance rate of drafts by the model under a sparse policy.
const OWN_AGREES: f64 = 0.85;
/// Assumed acceptance rate of drafts by a small model.
const MODEL_AGREES: f64 = 0.7;
/// Assumed acceptance rate of drafts by the predicting layer.
const PREDICTOR_AGREES: f64 = 0.75;

/// Tokens by which a sequence grows before its costs are computed again.
const COSTS_HOLD: usize = 64;

/// An answer, and the sources of its drafts, if it has any.
pub(crate) struct DraftedAnswer {
    pub(crate) answer: Answer,
    pub(crate) drafter: Option<Drafter>,
}

/// The draft sources of one answer, with the acceptance rate learned for each.
pub(crate) struct Drafter {
    ngrams: Option<Box<Ngrams>>,
    own: Option<Box<OwnDraft>>,
    /// Every source. Of equal ones the first is used.
    sources: Vec<(Source, Acceptance)>,
    /// Fixed length of every draft, if set.
    tokens: Option<usize>,
    balance: Balance,
    costs: Option<KnownCosts>,
    /// Cost of the latest draft, in passes.
    cost: f64,
    pub(crate) count: DraftCount,
}

/// The source of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A match of this class.
    Ngram(usize),
    Own,
    Model,
    Predictor,
}

/// Costs that are valid until the sequence has grown by [`COSTS_HOLD`], or the number of sequences in the pass
/// changes.
struct KnownCosts {
    tokens: usize,
    together: usize,
    /// Costs by source.
    costs: Vec<Costs>,
}

/// A draft that is generated token by token.
struct GuessedDraft {
    /// Draws as the answer would.
    guess: Guess,
    tokens: Vec<u32>,
    /// Intended length of the draft.
    wanted: usize,
}

/// The next draft of an answer.
enum Choice {
    /// No draft.
    Nothing,
    /// A draft of these tokens of the text.
    Text(Source, Vec<u32>),
    /// A draft of this many tokens of another source, one by one.
    Draft(Source, usize),
}

impl GuessedDraft {
    fn goes_on(&self) -> bool {
        self.tokens.len() < self.wanted && !self.guess.is_complete()
    }

    /// Draws the next token after `text` from the logits there, `[vocab]`. The draft ends here without logits, or if
    /// the answer's form allows no token that could be guessed.
    fn draw(&mut self, text: &[u32], logits: Option<&[f32]>) -> Option<u32> {
        let token = logits.and_then(|logits| self.guess.draw(text, logits));
        self.tokens.extend(token);
        if token.is_none() {
            self.wanted = self.tokens.len();
        }
        token
    }
}

impl Drafter {
    /// The draft sources in `spec`; `None` if there are none.
    ///
    /// # Errors
    /// [`EngineError::Option`] if explicitly requested drafts are impossible for this sequence.
    pub(crate) fn new(spec: &DraftSpec, sequence: &Sequence) -> Result<Option<Self>, EngineError> {
        if spec.is_none() {
            return Ok(None);
        }
        if let Some(problem) = refusal(sequence) {
            return if spec.is_optional {
                Ok(None)
            } else {
                Err(EngineError::option("draft", spec, problem))
            };
        }
        if let Some(path) = &spec.model
            && sequence.engine().options().model.draft_model.as_ref() != Some(path)
        {
            let problem = "this small model was not loaded beside the model: name it when the program starts, as `draft=model:PATH`";
            return Err(EngineError::option("draft", spec, problem));
        }
        if spec.has_predictor && sequence.answer().drafts.predictor.is_none() {
            let problem = "the layer that predicts further tokens was not loaded: name it when the program starts, as `draft=mtp`";
            return Err(EngineError::option("draft", spec, problem));
        }
        let has_predictor = spec.has_predictor || (spec.is_auto && sequence.answer().drafts.predictor.is_some());
        let model_chooses = has_indexers(sequence.engine().model().config());
        if model_chooses && spec.own.is_some() && !spec.is_auto {
            let problem = "the model's own indexer chooses what its layers read: draft with ngram";
            return Err(EngineError::option("draft", spec, problem));
        }
        let own = spec.own.as_ref().filter(|_| !has_predictor && !model_chooses);
        let own = own.map(|rules| OwnDraft::new(rules, sequence)).transpose()?;
        let classes = MATCHES.iter().enumerate().filter(|_| spec.has_ngram);
        let classes = classes.map(|(class, (_, agrees))| (true, Source::Ngram(class), *agrees));
        let others = [
            (own.is_some(), Source::Own, OWN_AGREES),
            (spec.model.is_some(), Source::Model, MODEL_AGREES),
            (has_predictor, Source::Predictor, PREDICTOR_AGREES),
        ];
        let sources = classes.chain(others).filter(|(is_there, ..)| *is_there);
        Ok(Some(Self {
            ngrams: spec.has_ngram.then(Box::default),
            own: own.map(Box::new),
            sources: sources
                .map(|(_, source, agrees)| (source, Acceptance::assumed(agrees)))
                .collect(),
            tokens: spec.tokens,
            balance: Balance::default(),
            costs: None,
            cost: 0.0,
            count: DraftCount::default(),
        }))
    }

    /// Chooses the next draft of at most `most` tokens. `token` is the latest token of the answer, which the sequence
    /// has not read yet; `together` answers share one pass.
    fn choose(&mut self, sequence: &Sequence, token: u32, together: usize, most: usize) -> Choice {
        self.balance.count_pass();
        let found = self.ngrams.as_deref_mut().and_then(|ngrams| {
            ngrams.extend(&sequence.tokens()[ngrams.text.len()..]);
            ngrams.extend(&[token]);
            ngrams.find()
        });
        let class = found.map(|found| MATCHES.partition_point(|(tokens, _)| *tokens <= found.tokens) - 1);
        let (source, tokens) = match (self.tokens, class, self.source_beside_text()) {
            (Some(tokens), Some(class), _) => (Source::Ngram(class), tokens.min(most)),
            (Some(tokens), None, Some(source)) => (source, tokens.min(most)),
            (Some(_), None, None) => return Choice::Nothing,
            (None, ..) => self.most_worth(sequence, class, together, most),
        };
        match (source, found, &self.ngrams) {
            (_, _, _) if tokens == 0 => Choice::Nothing,
            (Source::Ngram(_), Some(found), Some(ngrams)) => Choice::Text(source, ngrams.behind(found, tokens)),
            _ => Choice::Draft(source, tokens),
        }
    }

    /// The source of drafts other than the text.
    fn source_beside_text(&self) -> Option<Source> {
        let sources = [Source::Own, Source::Predictor, Source::Model];
        let is_there = |wanted: &Source| self.sources.iter().any(|(source, _)| source == wanted);
        sources.into_iter().find(is_there)
    }

    /// The source that gives most tokens per cost, and the length of its draft: 0 if none pays off. `class` is the
    /// class of the match in the text.
    fn most_worth(
        &mut self,
        sequence: &Sequence,
        class: Option<usize>,
        together: usize,
        most: usize,
    ) -> (Source, usize) {
        let known = self.costs(sequence, together);
        let balance = &self.balance;
        let is_found = |source: Source| !matches!(source, Source::Ngram(other) if class != Some(other));
        let sources = self.sources.iter_mut().zip(&known.costs);
        let mut sources: Vec<_> = sources.filter(|((source, _), _)| is_found(*source)).collect();
        let offers = sources
            .iter()
            .map(|((_, acceptance), costs)| acceptance.best(costs, balance, most));
        let best = offers
            .enumerate()
            .reduce(|best, other| if other.1.rate > best.1.rate { other } else { best });
        let (mut chosen, mut offer) = best.unwrap_or((0, Offer::NONE));
        for (place, ((_, acceptance), costs)) in sources.iter_mut().enumerate() {
            if offer.tokens == 0 {
                (chosen, offer) = (place, acceptance.trial(costs, balance, most));
            }
        }
        let chosen = sources
            .get(chosen)
            .map(|((source, _), costs)| (*source, costs.of_draft(offer.tokens)));
        let (source, cost) = chosen.unwrap_or((Source::Own, self.cost));
        self.costs = Some(known);
        self.cost = cost;
        (source, offer.tokens)
    }

    /// The costs of drafts from each source.
    fn costs(&mut self, sequence: &Sequence, together: usize) -> KnownCosts {
        let tokens = sequence.tokens().len();
        let holds = |known: &KnownCosts| known.together == together && tokens < known.tokens + COSTS_HOLD;
        if let Some(known) = self.costs.take().filter(holds) {
            return known;
        }
        let drafts = |source: Source| match (source, &self.own, sequence.engine().draft_model.as_ref()) {
            (Source::Own, Some(own), _) => Drafts::Own(&own.rules),
            (Source::Model, _, Some(model)) => Drafts::Model(&model.engine),
            (Source::Predictor, ..) => Drafts::Predictor,
            _ => Drafts::Text,
        };
        let costs = self
            .sources
            .iter()
            .map(|(source, _)| costs(sequence, &drafts(*source), together));
        KnownCosts {
            tokens,
            together,
            costs: costs.collect(),
        }
    }

    /// Disables a draft source.
    fn drop_source(&mut self, dropped: Source) {
        if let Some(place) = self.sources.iter().position(|(source, _)| *source == dropped) {
            self.sources.remove(place);
            if let Some(known) = &mut self.costs {
                known.costs.remove(place);
            }
        }
    }

    fn learn(&mut self, source: Source, drafted: usize, agreed: usize) {
        self.count.drafted += drafted;
        self.count.accepted += agreed;
        self.balance.count_draft(self.cost, agreed);
        let learning = self.sources.iter_mut().filter(|(other, _)| *other == source);
        learning.for_each(|(_, acceptance)| acceptance.learn(drafted, agreed));
    }
}

impl DraftedAnswer {
    /// The next answer of a sequence, with the drafts in its options.
    pub(crate) fn new(sequence: &Sequence, options: GenerateOptions) -> Result<Self, EngineError> {
        let drafter = Drafter::new(&options.draft, sequence)?;
        Ok(Self {
            answer: Answer::new(sequence, options)?,
            drafter,
        })
    }

    /// The generated answer, and the counts of its drafts.
    pub(crate) fn end(self, stop: StopReason) -> Generation {
        let drafts = self.drafter.map(|drafter| drafter.count);
        Generation {
            drafts: drafts.unwrap_or_default(),
            ..self.answer.end(stop)
        }
    }
}

/// Maximum number of rows of an answer in a pass: the latest token and a draft.
pub(crate) const MOST_ROWS: usize = MOST_TOKENS + 1;

/// Number of rows of an answer that one pass can read with the same bits as one by one.
pub(crate) fn rows_alike(sequence: &Sequence) -> usize {
    if refusal(sequence).is_none() && sequence.options().decode.follows_from_keys() {
        MOST_ROWS
    } else {
        1
    }
}

/// The reason drafts are impossible for a sequence, if they are.
fn refusal(sequence: &Sequence) -> Option<&'static str> {
    if sequence.engine().compute().host().is_none() {
        Some("drafts are made on the CPU alone: leave out `draft` or `device`")
    } else if sequence.options().window.is_some() {
        Some("an endless window moves with every token and cannot go back: leave out `draft` or `window`")
    } else if sequence.attention().audit.is_some() {
        Some("an audit compares tokens that are read one by one: leave out `draft` or `audit`")
    } else {
        None
    }
}
