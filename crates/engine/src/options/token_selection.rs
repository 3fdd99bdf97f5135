//! Token-selective prefill: upper layers read only the tokens that the end of a prompt attends to.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use riffle_model::ModelConfig;

use crate::{EngineError, EngineOptions};

/// The name of the option.
const OPTION: &str = "token_selection";

/// First tokens of a prompt that the upper layers always read: attention sinks.
const SINK_TOKENS: usize = 4;

/// Selection of the prompt tokens that the upper layers of a model read. Linear layers and attention of the upper
/// layers cost proportionally less. These layers store keys and values of the selected tokens alone.
///
/// The lower layers read all tokens. In the last of them the queries of the latest tokens attend to the whole prompt;
/// the mass of each token, averaged over its neighbours, ranks the tokens. It is lossy: the tokens that a later
/// question needs may not be selected. Method: FastKV, Jo et al. 2025, arXiv:2502.01068.
///
/// ```
/// use riffle_engine::TokenSelection;
///
/// let selection: TokenSelection = "0.2,layers=14".parse()?;
/// assert_eq!((selection.share, selection.lower_layers), (0.2, Some(14)));
/// assert!("1.5".parse::<TokenSelection>().is_err());
/// # Ok::<(), riffle_engine::EngineError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenSelection {
    /// Share of a prompt's tokens that the upper layers read, above 0 and at most 1.
    pub share: f64,
    /// Number of layers that read all tokens; `None` means half of the model's.
    pub lower_layers: Option<usize>,
    /// Number of latest prompt tokens whose queries rank the tokens; the upper layers read all of them.
    pub observed_tokens: usize,
    /// Neighbouring tokens over which masses are averaged before ranking, an odd number.
    pub pooled_tokens: usize,
}

impl TokenSelection {
    /// A selection of a share of the tokens, with the defaults of everything else.
    pub fn keeping(share: f64) -> Self {
        Self {
            share,
            lower_layers: None,
            observed_tokens: 64,
            pooled_tokens: 31,
        }
    }

    /// The layers that read only selected tokens.
    pub(crate) fn upper_layers(&self, config: &ModelConfig) -> Range<usize> {
        self.lower_layers.unwrap_or(config.layers / 2)..config.layers
    }

    /// Bytes of the hidden states that wait for the selection, for a prompt that fills the context.
    pub(crate) fn hidden_bytes(config: &ModelConfig, options: &EngineOptions, context_tokens: usize) -> u64 {
        let rows = context_tokens + options.machine.batch_tokens.min(context_tokens);
        (rows * config.hidden_size * size_of::<f32>()) as u64
    }

    /// Refuses models and options whose upper layers cannot read fewer tokens.
    pub(crate) fn check(&self, config: &ModelConfig, options: &EngineOptions) -> Result<(), EngineError> {
        let refused = |why: String| Err(EngineError::option(OPTION, self, why));
        if config.has_states() {
            return refused("recurrent layers read every token: leave it out for this model".to_owned());
        }
        if config.windows.iter().any(Option::is_some) {
            return refused(
                "layers with a sliding window read neighbouring tokens: leave it out for this model".to_owned(),
            );
        }
        if config.attention.iter().any(|layer| layer.shares.is_some()) {
            return refused("layers read the keys of others: leave it out for this model".to_owned());
        }
        if config.streams > 1 {
            return refused("layers have several residual streams: leave it out for this model".to_owned());
        }
        let upper = self.upper_layers(config);
        if upper.start == 0 || upper.is_empty() {
            return refused(format!("layers must be from 1 to {} for this model", config.layers - 1));
        }
        let conflicts = [
            (options.machine.device.is_some(), "`device=cuda`"),
            (options.sequence.window.is_some(), "`window`"),
            (options.sequence.audit, "`audit`, which compares with all tokens"),
            (options.sequence.score_pairs, "`score_pairs`, which scores all tokens"),
            (
                options.sequence.auto_target.is_some(),
                "`auto_target`, which compares with all tokens",
            ),
        ];
        match conflicts.iter().find(|(is_set, _)| *is_set) {
            Some((_, other)) => refused(format!("it does not go with {other}: leave one of them out")),
            None => Ok(()),
        }
    }

    /// The error for a feature that needs every token in every layer.
    pub(crate) fn refuse(self, what: &str) -> EngineError {
        EngineError::option(OPTION, self, format!("{what}: leave one of them out"))
    }

    /// The tokens that upper layers read, ascending, by the mass of every token. Ties go to the earlier token.
    pub(crate) fn choose(&self, mass: &[f32]) -> Vec<usize> {
        let tokens = mass.len();
        let latest = tokens.saturating_sub(self.observed_tokens);
        let always = |token: usize| token < SINK_TOKENS || token >= latest;
        let asked = (tokens as f64 * self.share).ceil() as usize;
        let mut chosen: Vec<usize> = (0..tokens).filter(|token| always(*token)).collect();
        let pooled = pooled(mass, self.pooled_tokens / 2);
        let mut ranked: Vec<usize> = (0..tokens).filter(|token| !always(*token)).collect();
        ranked.sort_by(|a, b| pooled[*b].total_cmp(&pooled[*a]).then(a.cmp(b)));
        ranked.truncate(asked.saturating_sub(chosen.len()));
        chosen.extend(ranked);
        chosen.sort_unstable();
        chosen
    }
}

/// The mean of each mass and `reach` neighbours on both sides, in f64, so that sums do not depend on their order.
fn pooled(mass: &[f32], reach: usize) -> Vec<f64> {
    let means = (0..mass.len()).map(|token| {
        let near = &mass[token.saturating_sub(reach)..(token + reach + 1).min(mass.len())];
        near.iter().map(|mass| f64::from(*mass)).sum::<f64>() / near.len() as f64
    });
    means.collect()
}

impl fmt::Display for TokenSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.share)?;
        if let Some(layers) = self.lower_layers {
            write!(f, ",layers={layers}")?;
        }
        let defaults = Self::keeping(self.share);
        if self.observed_tokens != defaults.observed_tokens {
            write!(f, ",observed={}", self.observed_tokens)?;
        }
        if self.pooled_tokens != defaults.pooled_tokens {
            write!(f, ",pooled={}", self.pooled_tokens)?;
        }
        Ok(())
    }
}

impl FromStr for TokenSelection {
    type Err = EngineError;

    /// A share, optionally with parameters: `0.2`, `0.2,layers=14,observed=64,pooled=31`.
    fn from_str(text: &str) -> Result<Self, EngineError> {
        let bad = |why: &str| EngineError::option(OPTION, format!("{text:?}"), why);
        let mut parts = text.split(',');
        let share: f64 = parts.next().unwrap_or_default().trim().parse().unwrap_or(f64::NAN);
        if !(share > 0.0 && share <= 1.0) {
            let requirement = "it begins with a share of the tokens, above 0 and at most 1, e.g. 0.2";
            return Err(bad(requirement));
        }
        let requirement = "behind the share come layers=N, observed=N and pooled=N, each at least 1";
        let mut selection = Self::keeping(share);
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let count = value.trim().parse().ok().filter(|count: &usize| *count > 0);
            let count = count.ok_or_else(|| bad(requirement))?;
            match name.trim() {
                "layers" => selection.lower_layers = Some(count),
                "observed" => selection.observed_tokens = count,
                "pooled" => selection.pooled_tokens = count,
                _ => return Err(bad(requirement)),
            }
        }
        Ok(selection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinks_the_latest_tokens_and_those_of_the_largest_mass_are_chosen() {
        let selection = TokenSelection {
            observed_tokens: 3,
            pooled_tokens: 3,
            ..TokenSelection::keeping(0.5)
        };
        let mut mass = vec![0.0; 20];
        mass[10] = 1.0;
        // 4 sinks, the 3 latest, and 10 - 7 others: the token and its neighbours.
        assert_eq!(selection.choose(&mass), [0, 1, 2, 3, 9, 10, 11, 17, 18, 19]);
        // Without any difference the earlier tokens are chosen.
        assert_eq!(selection.choose(&[0.0; 20]), [0, 1, 2, 3, 4, 5, 6, 17, 18, 19]);
    }

    #[test]
    fn short_prompts_are_read_whole() {
        let selection = TokenSelection::keeping(0.1);
        assert_eq!(selection.choose(&[0.5; 60]), Vec::from_iter(0..60));
        assert_eq!(TokenSelection::keeping(1.0).choose(&[0.5; 900]).len(), 900);
    }
}
