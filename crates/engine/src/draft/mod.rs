//! Drafts: the next tokens of an answer are guessed cheaply and verified together, and the answer is the same to the byte.
//!
//! A pass reads the latest token of an answer and, behind it, the tokens of a draft. Row by row the answer draws its next token from the
//! logits, with the random numbers, penalties and forms that it has without drafts. As long as the drawn token is the drafted one, the next
//! row has the bits that reading that token alone gives. At the first other token the sequence is rolled back, and the rest of the draft has
//! changed nothing.
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

use crate::answer::Answer;
use crate::draft_spec::MOST_TOKENS;
use crate::{DraftCount, DraftSpec, EngineError, GenerateOptions, Generation, Sequence, StopReason};
use costs::{Drafts, costs};
use gain::{Acceptance, Balance, Costs, Offer};
use ngram::Ngrams;
use own::OwnDraft;
pub(crate) use step::{AnswerStep, go_on};

/// Classes of matches by their length, and how often their tokens are assumed to agree.
const MATCHES: [(usize, f64); 4] = [(2, 0.3), (4, 0.5), (8, 0.7), (16, 0.85)];
/// How often the model is assumed to draw under a sparse policy what it draws without.
const OWN_AGREES: f64 = 0.85;
/// How often a small model is assumed to draw what the large one draws.
const MODEL_AGREES: f64 = 0.7;
/// How often the layer that predicts further tokens is assumed to draw what the model draws.
const PREDICTOR_AGREES: f64 = 0.75;

/// Tokens by which a sequence grows until its costs are computed again.
const COSTS_HOLD: usize = 64;

/// An answer, and the sources of its drafts, where it has any.
pub(crate) struct DraftedAnswer {
    pub(crate) answer: Answer,
    pub(crate) drafter: Option<Drafter>,
}

/// The draft sources of one answer, with the acceptance rate learned for each.
pub(crate) struct Drafter {
    ngrams: Option<Box<(Ngrams, [Acceptance; MATCHES.len()])>>,
    own: Option<Box<(OwnDraft, Acceptance)>>,
    /// Of the small model.
    model: Option<Acceptance>,
    /// Of the layer that predicts further tokens.
    predictor: Option<Acceptance>,
    /// Length of every draft, where the length is fixed.
    tokens: Option<usize>,
    balance: Balance,
    costs: Option<KnownCosts>,
    /// Passes that the latest draft cost.
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

/// Costs that hold until the sequence has grown by [`COSTS_HOLD`], or others join the pass.
#[derive(Clone, Copy)]
struct KnownCosts {
    tokens: usize,
    together: usize,
    of_text: Costs,
    of_own: Costs,
    of_model: Costs,
    of_predictor: Costs,
}

/// The next draft of an answer.
enum Choice {
    /// No draft.
    Nothing,
    /// These tokens of the text.
    Text(Source, Vec<u32>),
    /// So many tokens of another source, which are drafted one by one.
    Draft(Source, usize),
}

impl Drafter {
    /// The draft sources that `spec` names; `None` for none.
    ///
    /// # Errors
    /// [`EngineError::Option`] where drafts that are asked for by name cannot be made of this sequence.
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
        let own = match &spec.own {
            Some(_) if has_predictor => None,
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
            model: spec.model.as_ref().map(|_| Acceptance::assumed(MODEL_AGREES)),
            predictor: has_predictor.then(|| Acceptance::assumed(PREDICTOR_AGREES)),
            tokens: spec.tokens,
            balance: Balance::default(),
            costs: None,
            cost: 0.0,
            count: DraftCount::default(),
        }))
    }

    /// Chooses the next draft of at most `most` tokens. `token` is the latest token of the answer, which the sequence has not read yet; the
    /// answers of `together` sequences go through the layers in one pass.
    fn choose(&mut self, sequence: &Sequence, token: u32, together: usize, most: usize) -> Choice {
        self.balance.count_pass();
        let found = self.ngrams.as_deref_mut().and_then(|(ngrams, _)| {
            ngrams.extend(&sequence.tokens()[ngrams.text().len()..]);
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
            (Source::Ngram(_), Some(found), Some(ngrams)) => Choice::Text(source, ngrams.0.behind(found, tokens)),
            _ => Choice::Draft(source, tokens),
        }
    }

    /// The source that drafts where the text does not.
    fn source_beside_text(&self) -> Option<Source> {
        let named = [
            (self.own.is_some(), Source::Own),
            (self.predictor.is_some(), Source::Predictor),
            (self.model.is_some(), Source::Model),
        ];
        named
            .into_iter()
            .find_map(|(is_there, source)| is_there.then_some(source))
    }

    /// The source that brings most tokens for its cost, and the length of its draft: 0 where none pays. `class` is that of the match in the
    /// text.
    fn most_worth(
        &mut self,
        sequence: &Sequence,
        class: Option<usize>,
        together: usize,
        most: usize,
    ) -> (Source, usize) {
        let known = self.costs(sequence, together);
        let balance = &self.balance;
        let ngrams = self.ngrams.as_deref_mut().zip(class).map(|((_, acceptances), class)| {
            let acceptance = &mut acceptances[class];
            (Source::Ngram(class), acceptance, known.of_text)
        });
        let own = self.own.as_deref_mut();
        let own = own.map(|(_, acceptance)| (Source::Own, acceptance, known.of_own));
        let model = self
            .model
            .as_mut()
            .map(|acceptance| (Source::Model, acceptance, known.of_model));
        let predictor = self
            .predictor
            .as_mut()
            .map(|acceptance| (Source::Predictor, acceptance, known.of_predictor));
        let mut sources: Vec<_> = ngrams.into_iter().chain(own).chain(model).chain(predictor).collect();
        let offers = sources
            .iter()
            .map(|(_, acceptance, costs)| acceptance.best(costs, balance, most));
        let best = offers
            .enumerate()
            .reduce(|best, other| if other.1.rate > best.1.rate { other } else { best });
        let (mut chosen, mut offer) = best.unwrap_or((0, Offer::NONE));
        for (place, (_, acceptance, costs)) in sources.iter_mut().enumerate() {
            if offer.tokens == 0 {
                (chosen, offer) = (place, acceptance.trial(costs, balance, most));
            }
        }
        let Some((source, _, costs)) = sources.get(chosen) else {
            return (Source::Own, 0);
        };
        self.cost = costs.of_draft(offer.tokens);
        (*source, offer.tokens)
    }

    /// The costs of drafts from each source.
    fn costs(&mut self, sequence: &Sequence, together: usize) -> KnownCosts {
        let tokens = sequence.tokens().len();
        let holds = |known: &KnownCosts| known.together == together && tokens < known.tokens + COSTS_HOLD;
        if let Some(known) = self.costs.filter(holds) {
            return known;
        }
        let own = self
            .own
            .as_deref()
            .map_or(Drafts::Text, |(own, _)| Drafts::Own(own.rules()));
        let model = sequence.engine().draft_model().filter(|_| self.model.is_some());
        let model = model.map_or(Drafts::Text, |model| Drafts::Model(model.engine()));
        let predictor = match self.predictor {
            Some(_) => Drafts::Predictor,
            None => Drafts::Text,
        };
        *self.costs.insert(KnownCosts {
            tokens,
            together,
            of_text: costs(sequence, &Drafts::Text, together),
            of_own: costs(sequence, &own, together),
            of_model: costs(sequence, &model, together),
            of_predictor: costs(sequence, &predictor, together),
        })
    }

    fn learn(&mut self, source: Source, drafted: usize, agreed: usize) {
        self.count.drafted += drafted;
        self.count.accepted += agreed;
        self.balance.count_draft(self.cost, agreed);
        match (source, self.ngrams.as_deref_mut(), self.own.as_deref_mut()) {
            (Source::Ngram(class), Some((_, acceptances)), _) => acceptances[class].learn(drafted, agreed),
            (Source::Own, _, Some((_, acceptance))) => acceptance.learn(drafted, agreed),
            (Source::Model, ..) => self
                .model
                .iter_mut()
                .for_each(|acceptance| acceptance.learn(drafted, agreed)),
            (Source::Predictor, ..) => self
                .predictor
                .iter_mut()
                .for_each(|acceptance| acceptance.learn(drafted, agreed)),
            _ => {}
        }
    }
}

impl DraftedAnswer {
    /// The answer that a sequence goes on with, with the drafts that its options name.
    ///
    /// # Errors
    /// As [`Answer::new`]; [`EngineError::Option`] for drafts that cannot be made of the sequence.
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

/// Most rows of an answer in a pass: the latest token and a draft.
pub(crate) const MOST_ROWS: usize = MOST_TOKENS + 1;

/// Rows of an answer that may be read in one pass with the bits that they have one by one.
pub(crate) fn rows_alike(sequence: &Sequence) -> usize {
    if refusal(sequence).is_none() && sequence.options().decode.follows_from_keys() {
        MOST_ROWS
    } else {
        1
    }
}

/// Why tokens of a sequence cannot be drafted, if they cannot.
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
