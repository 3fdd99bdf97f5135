//! The sources of drafts.

use std::fmt;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use riffle_policy::{DRAFT_POLICIES, Phase, PolicyRules, PolicySpec};
use serde::Serialize;

use crate::EngineError;

/// The most tokens of a draft: with the answer's latest token they fill the rows of a decode pass.
pub(crate) const MOST_TOKENS: usize = 15;

const REQUIREMENT: &str = "it must be none, auto, ngram, sparse:POLICY, mtp, model:PATH, or ngram+ before one of the last three, with @N for drafts of N tokens, such as sparse:quest@4";

/// The sources that draft an answer's next tokens: none, named ones, or all that pay off ([`Self::auto`]). The answer
/// has the same bytes as without drafts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DraftSpec {
    /// True for `auto`.
    pub(crate) is_auto: bool,
    /// True if an answer without possible drafts continues without; otherwise it is refused.
    pub(crate) is_optional: bool,
    /// The text: the tokens that followed an earlier occurrence of its latest tokens.
    pub(crate) has_ngram: bool,
    /// The model itself, with attention limited to this policy's selection.
    pub(crate) own: Option<PolicyRules>,
    /// The layer in the model's files that predicts further tokens.
    pub(crate) has_predictor: bool,
    /// A small model with the same vocabulary.
    pub(crate) model: Option<PathBuf>,
    /// Fixed length of every draft; `None` for the most profitable length.
    pub(crate) tokens: Option<usize>,
}

impl DraftSpec {
    /// No drafts.
    pub const NONE: Self = Self {
        is_auto: false,
        is_optional: false,
        has_ngram: false,
        own: None,
        has_predictor: false,
        model: None,
        tokens: None,
    };

    /// True if there are no drafts.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// N-grams and the model's own sparse attention, each if it pays off; instead of the second, the predicting
    /// layer, if it is loaded.
    pub fn auto() -> Self {
        Self {
            is_auto: true,
            is_optional: true,
            has_ngram: true,
            own: Some(own_policy()),
            has_predictor: false,
            model: None,
            tokens: None,
        }
    }

    /// The file or folder of the small draft model, for
    /// [`ModelOptions::draft_model`](crate::ModelOptions::draft_model).
    pub fn model(&self) -> Option<&Path> {
        self.model.as_deref()
    }

    /// True if drafts use the layer in the model's files that predicts further tokens, for
    /// [`ModelOptions::draft_predictor`](crate::ModelOptions::draft_predictor).
    pub fn uses_predictor(&self) -> bool {
        self.has_predictor
    }

    /// Replaces the small model's name by the path of its file.
    #[must_use]
    pub fn with_model(self, path: PathBuf) -> Self {
        Self {
            model: Some(path),
            ..self
        }
    }

    /// Allows answers without drafts if drafts are impossible, for example under a learning policy or an audit.
    #[must_use]
    pub fn where_possible(self) -> Self {
        Self {
            is_optional: true,
            ..self
        }
    }

    /// Checks the policy of the model's own drafts: it must support generated tokens and evict none.
    fn check(&self) -> Result<(), EngineError> {
        let Some(rules) = &self.own else {
            return Ok(());
        };
        rules.check(Phase::Decode, 1)?;
        if !rules.specs().any(|spec| spec.info().traits.evicts) {
            Ok(())
        } else {
            Err(EngineError::option(
                "draft",
                self,
                "a draft may be wrong, and its policy must not evict tokens for it: use streaming, quest or mass",
            ))
        }
    }
}

/// The default policy of the model's own drafts.
fn own_policy() -> PolicyRules {
    // The latest text and the answer's own tokens give drafts as good as a search among blocks gives, and cost less.
    "streaming:window=512".parse().expect("a policy of the catalogue")
}

impl FromStr for DraftSpec {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Self, EngineError> {
        let text = text.trim();
        let refused = || EngineError::option("draft", format!("{text:?}"), REQUIREMENT);
        let (sources, tokens) = match text.rsplit_once('@') {
            // A path may contain an @ itself.
            Some((sources, tokens)) if !sources.contains("model:") || tokens.parse::<usize>().is_ok() => {
                let tokens = tokens.parse().ok().filter(|tokens| (1..=MOST_TOKENS).contains(tokens));
                (sources, Some(tokens.ok_or_else(refused)?))
            }
            _ => (text, None),
        };
        let (has_ngram, rest) = match sources {
            "none" if tokens.is_none() => return Ok(Self::NONE),
            "auto" if tokens.is_none() => return Ok(Self::auto()),
            "ngram" => (true, None),
            _ => match sources.strip_prefix("ngram+") {
                Some(rest) => (true, Some(rest)),
                None => (false, Some(sources)),
            },
        };
        let model = rest
            .and_then(|rest| rest.strip_prefix("model:"))
            .filter(|path| !path.is_empty());
        let own = match rest {
            None => None,
            Some(_) if model.is_some() => None,
            Some("mtp") => None,
            Some("sparse") => Some(own_policy()),
            Some(rest) => {
                let policy = rest.strip_prefix("sparse:").ok_or_else(refused)?;
                Some(PolicySpec::parse_among(policy, &DRAFT_POLICIES)?.into())
            }
        };
        let spec = Self {
            is_auto: false,
            is_optional: false,
            has_ngram,
            own,
            has_predictor: rest == Some("mtp"),
            model: model.map(PathBuf::from),
            tokens,
        };
        spec.check()?;
        Ok(spec)
    }
}

impl fmt::Display for DraftSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ngram = self.has_ngram.then(|| "ngram".to_owned());
        let own = self.own.as_ref().map(|own| format!("sparse:{own}"));
        let model = self.model.as_ref().map(|path| format!("model:{}", path.display()));
        let predictor = self.has_predictor.then(|| "mtp".to_owned());
        let sources: Vec<String> = ngram.into_iter().chain(own).chain(predictor).chain(model).collect();
        match (self.is_auto, sources.is_empty()) {
            (true, _) => f.write_str("auto"),
            (false, true) => f.write_str("none"),
            (false, false) => f.write_str(&sources.join("+")),
        }?;
        match self.tokens {
            Some(tokens) => write!(f, "@{tokens}"),
            None => Ok(()),
        }
    }
}

/// Drafted tokens of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DraftCount {
    /// Tokens drafted and verified.
    pub drafted: usize,
    /// Accepted tokens.
    pub accepted: usize,
    /// Passes over the whole model that verified them.
    pub passes: usize,
    /// Pairs of query and key that the drafts and the rejected rows read.
    pub undone_pairs: u64,
}

impl AddAssign for DraftCount {
    fn add_assign(&mut self, more: Self) {
        self.drafted += more.drafted;
        self.accepted += more.accepted;
        self.passes += more.passes;
        self.undone_pairs += more.undone_pairs;
    }
}
