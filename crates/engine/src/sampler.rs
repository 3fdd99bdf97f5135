//! From logits to the next token.

use std::collections::{BTreeMap, HashSet};

use rand::Rng;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use riffle_model::GenerationDefaults;
use serde::{Deserialize, Serialize};

use crate::EngineError;

/// How the next token is drawn. The steps run in the order of the fields: biases, penalties, top-k, temperature, top-p, min-p.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SamplingOptions {
    /// Terms added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Logits of tokens among the last [`Self::repeat_window`] are divided (if positive) or multiplied by this; 1 is off.
    pub repeat_penalty: f32,
    /// How many recent tokens the penalty looks at.
    pub repeat_window: usize,
    /// Subtracted from the logit of every token that the answer holds already; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token as often as the answer holds it; 0 is off.
    pub frequency_penalty: f32,
    /// Keep the k most likely tokens; 0 is off.
    pub top_k: usize,
    /// Logits are divided by this; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the most likely tokens that together hold this probability; 1 is off.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one; 0 is off.
    pub min_p: f32,
    /// Seed of the generator: equal seeds give equal texts.
    pub seed: u64,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            logit_bias: Vec::new(),
            repeat_penalty: 1.0,
            repeat_window: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            top_k: 0,
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
        }
    }
}

impl SamplingOptions {
    /// The settings of a model's own files; the most likely token where the files say nothing.
    pub fn recommended(defaults: &GenerationDefaults) -> Self {
        let plain = Self::default();
        // A temperature is a recommendation only where the model recommends sampling; a bare "sample" means temperature 1.
        let temperature = (defaults.sample == Some(true)).then(|| defaults.temperature.unwrap_or(1.0));
        Self {
            temperature: temperature.unwrap_or(plain.temperature),
            top_k: defaults.top_k.unwrap_or(plain.top_k),
            top_p: defaults.top_p.unwrap_or(plain.top_p),
            min_p: defaults.min_p.unwrap_or(plain.min_p),
            repeat_penalty: defaults.repeat_penalty.unwrap_or(plain.repeat_penalty),
            ..plain
        }
    }

    /// Checks every range.
    ///
    /// # Errors
    /// [`EngineError::Option`] names the option, its value and what is allowed.
    pub fn validate(&self) -> Result<(), EngineError> {
        let check = |name, value: f32, allowed: bool, requirement: &str| {
            if allowed && value.is_finite() {
                Ok(())
            } else {
                Err(EngineError::option(name, value, requirement))
            }
        };
        check(
            "temperature",
            self.temperature,
            self.temperature >= 0.0,
            "it must be 0 (most likely token) or more",
        )?;
        check(
            "top_p",
            self.top_p,
            self.top_p > 0.0 && self.top_p <= 1.0,
            "it must be above 0 and at most 1",
        )?;
        check(
            "min_p",
            self.min_p,
            (0.0..=1.0).contains(&self.min_p),
            "it must be from 0 to 1",
        )?;
        check(
            "repeat_penalty",
            self.repeat_penalty,
            self.repeat_penalty > 0.0,
            "it must be above 0 (1 is off)",
        )?;
        check(
            "presence_penalty",
            self.presence_penalty,
            true,
            "it must be a number (0 is off)",
        )?;
        check(
            "frequency_penalty",
            self.frequency_penalty,
            true,
            "it must be a number (0 is off)",
        )?;
        for (token, bias) in &self.logit_bias {
            let requirement = format!("the bias of token {token} must be a number");
            check("logit_bias", *bias, true, &requirement)?;
        }
        Ok(())
    }
}

/// The inputs of a draw beside the logits.
#[derive(Debug, Clone, Copy, Default)]
pub struct DrawContext<'a> {
    /// The tokens so far, prompt and answer.
    pub tokens: &'a [u32],
    /// How many of them, at the end, are the answer.
    pub answer_tokens: usize,
    /// Bits of the tokens that may be drawn, 32 to a word, the lowest token in the lowest bit; at least one is set. `None` allows
    /// all.
    pub allowed: Option<&'a [u32]>,
    /// Tokens that may not be drawn in any case.
    pub forbidden: &'a [u32],
}

impl DrawContext<'_> {
    fn allows(&self, token: u32) -> bool {
        let word = |bits: &[u32]| bits.get(token as usize / 32).copied().unwrap_or(0);
        self.allowed.is_none_or(|bits| word(bits) >> (token % 32) & 1 == 1) && !self.forbidden.contains(&token)
    }
}

/// Draws tokens; holds the generator's state between draws.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplingOptions,
    generator: ChaCha8Rng,
    candidates: Vec<Candidate>,
}

/// The place of a sampler in its seed's sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SamplerState {
    seed: u64,
    words_drawn: u128,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: u32,
    logit: f32,
    probability: f32,
}

impl Sampler {
    /// A sampler at the start of its seed's sequence.
    ///
    /// # Errors
    /// [`EngineError::Option`] when a value is out of range.
    pub fn new(options: SamplingOptions) -> Result<Self, EngineError> {
        options.validate()?;
        Ok(Self {
            generator: ChaCha8Rng::seed_from_u64(options.seed),
            options,
            candidates: Vec::new(),
        })
    }

    /// A sampler that goes on where another with the same seed stood; at the start of its sequence with another seed.
    pub(crate) fn resume(options: SamplingOptions, state: &SamplerState) -> Result<Self, EngineError> {
        let mut sampler = Self::new(options)?;
        if state.seed == sampler.options.seed {
            sampler.generator.set_word_pos(state.words_drawn);
        }
        Ok(sampler)
    }

    /// A sampler with the same draws ahead.
    pub(crate) fn fork(&self) -> Self {
        Self {
            options: self.options.clone(),
            generator: self.generator.clone(),
            candidates: Vec::new(),
        }
    }

    pub(crate) fn state(&self) -> SamplerState {
        SamplerState {
            seed: self.options.seed,
            words_drawn: self.generator.get_word_pos(),
        }
    }

    /// Draws the token after those of the context, given its logits `[vocab]`. Ties go to the lower token id.
    pub fn sample(&mut self, logits: &[f32], context: &DrawContext<'_>) -> u32 {
        self.candidates.clear();
        self.candidates
            .extend(logits.iter().enumerate().map(|(token, &logit)| Candidate {
                token: token as u32,
                logit,
                probability: 0.0,
            }));
        self.bias();
        self.penalise(context);
        if context.allowed.is_some() || !context.forbidden.is_empty() {
            self.candidates.retain(|candidate| context.allows(candidate.token));
        }
        let by_logit = |a: &Candidate, b: &Candidate| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token));
        if self.options.temperature == 0.0 {
            return self
                .candidates
                .iter()
                .min_by(|a, b| by_logit(a, b))
                .map_or(0, |candidate| candidate.token);
        }
        let top_k = self.options.top_k;
        if top_k > 0 && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k - 1, by_logit);
            self.candidates.truncate(top_k);
        }
        self.candidates.sort_unstable_by(by_logit);
        self.normalise();
        self.cut_tail();
        self.draw()
    }

    fn bias(&mut self) {
        for (token, bias) in &self.options.logit_bias {
            if let Some(candidate) = self.candidates.get_mut(*token as usize) {
                candidate.logit += bias;
            }
        }
    }

    /// Makes tokens less likely that the text or the answer holds already. Every token still stands at its own place.
    fn penalise(&mut self, context: &DrawContext<'_>) {
        let (options, tokens) = (&self.options, context.tokens);
        if options.repeat_penalty != 1.0 {
            let recent = &tokens[tokens.len().saturating_sub(options.repeat_window)..];
            for token in recent.iter().copied().collect::<HashSet<_>>() {
                if let Some(candidate) = self.candidates.get_mut(token as usize) {
                    candidate.logit = if candidate.logit > 0.0 {
                        candidate.logit / options.repeat_penalty
                    } else {
                        candidate.logit * options.repeat_penalty
                    };
                }
            }
        }
        if options.presence_penalty != 0.0 || options.frequency_penalty != 0.0 {
            let mut counts: BTreeMap<u32, f32> = BTreeMap::new();
            for token in &tokens[tokens.len().saturating_sub(context.answer_tokens)..] {
                *counts.entry(*token).or_default() += 1.0;
            }
            for (token, count) in counts {
                if let Some(candidate) = self.candidates.get_mut(token as usize) {
                    candidate.logit -= options.presence_penalty + options.frequency_penalty * count;
                }
            }
        }
    }

    /// Drops candidates by top-p and min-p; they are sorted.
    fn cut_tail(&mut self) {
        let options = &self.options;
        if options.top_p < 1.0 {
            let mut mass = 0.0;
            let kept = self
                .candidates
                .iter()
                .position(|candidate| {
                    mass += candidate.probability;
                    mass >= options.top_p
                })
                .map_or(self.candidates.len(), |last| last + 1);
            self.candidates.truncate(kept);
        }
        if options.min_p > 0.0 {
            let floor = options.min_p * self.candidates[0].probability;
            let kept = self
                .candidates
                .partition_point(|candidate| candidate.probability >= floor);
            self.candidates.truncate(kept.max(1));
        }
    }

    /// Probabilities after temperature; candidates are sorted, so the first holds the largest logit.
    fn normalise(&mut self) {
        let largest = self.candidates[0].logit;
        let temperature = self.options.temperature;
        let mut sum = 0.0;
        for candidate in &mut self.candidates {
            candidate.probability = ((candidate.logit - largest) / temperature).exp();
            sum += candidate.probability;
        }
        for candidate in &mut self.candidates {
            candidate.probability /= sum;
        }
    }

    fn draw(&mut self) -> u32 {
        let mass: f32 = self.candidates.iter().map(|c| c.probability).sum();
        let mut remaining = self.generator.random::<f32>() * mass;
        for candidate in &self.candidates {
            remaining -= candidate.probability;
            if remaining < 0.0 {
                return candidate.token;
            }
        }
        self.candidates[self.candidates.len() - 1].token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(options: SamplingOptions) -> Sampler {
        Sampler::new(options).unwrap()
    }

    fn after(tokens: &[u32]) -> DrawContext<'_> {
        DrawContext {
            tokens,
            ..DrawContext::default()
        }
    }

    fn shares(options: SamplingOptions, logits: &[f32], draws: usize) -> Vec<f64> {
        let mut sampler = sampler(options);
        let mut counts = vec![0usize; logits.len()];
        for _ in 0..draws {
            counts[sampler.sample(logits, &DrawContext::default()) as usize] += 1;
        }
        counts.iter().map(|&n| n as f64 / draws as f64).collect()
    }

    #[test]
    fn temperature_zero_takes_the_most_likely_token_and_the_lower_id_on_a_tie() {
        let mut greedy = sampler(SamplingOptions::default());
        assert_eq!(greedy.sample(&[0.0, 3.0, 1.0, 3.0], &DrawContext::default()), 1);
    }

    #[test]
    fn draws_follow_the_softmax_at_the_given_temperature() {
        let logits = [1.0f32, 0.0, -1.0];
        let temperature = 0.7f64;
        let shares = shares(
            SamplingOptions {
                temperature: 0.7,
                ..Default::default()
            },
            &logits,
            40_000,
        );
        let weights: Vec<f64> = logits.iter().map(|&x| (f64::from(x) / temperature).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for (share, weight) in shares.iter().zip(&weights) {
            // Three standard deviations of 40,000 draws are under 0.0075.
            assert!(
                (share - weight / sum).abs() < 0.0075,
                "{share} against {}",
                weight / sum
            );
        }
    }

    #[test]
    fn top_k_top_p_and_min_p_cut_the_tail() {
        let logits = [3.0f32, 2.0, 1.0, 0.0];
        let base = SamplingOptions {
            temperature: 1.0,
            ..Default::default()
        };
        let top_k = shares(
            SamplingOptions {
                top_k: 2,
                ..base.clone()
            },
            &logits,
            2000,
        );
        assert!(top_k[1] > 0.0 && top_k[2] == 0.0 && top_k[3] == 0.0);
        // Probabilities 0.644, 0.237, 0.087, 0.032: the first two reach 0.8.
        let top_p = shares(
            SamplingOptions {
                top_p: 0.8,
                ..base.clone()
            },
            &logits,
            2000,
        );
        assert!(top_p[1] > 0.0 && top_p[2] == 0.0);
        let min_p = shares(SamplingOptions { min_p: 0.1, ..base }, &logits, 2000);
        assert!(min_p[2] > 0.0 && min_p[3] == 0.0);
    }

    #[test]
    fn the_repeat_penalty_only_touches_recent_tokens() {
        let options = SamplingOptions {
            repeat_penalty: 2.0,
            repeat_window: 2,
            ..Default::default()
        };
        let mut penalised = sampler(options);
        assert_eq!(penalised.sample(&[4.0, 3.0], &after(&[0, 1, 1])), 0);
        assert_eq!(penalised.sample(&[4.0, 3.0], &after(&[1, 0])), 0);
        assert_eq!(penalised.sample(&[4.0, 3.0], &after(&[2, 0])), 1);
        assert_eq!(penalised.sample(&[-1.0, -1.5], &after(&[0])), 1);
    }

    #[test]
    fn presence_and_frequency_penalties_count_the_answer_alone() {
        let options = |presence_penalty, frequency_penalty| SamplingOptions {
            presence_penalty,
            frequency_penalty,
            ..Default::default()
        };
        // Token 0 stands twice in the prompt and once in the answer, token 1 twice in the answer.
        let context = DrawContext {
            tokens: &[0, 0, 0, 1, 1],
            answer_tokens: 3,
            ..DrawContext::default()
        };
        let logits = [2.0, 2.5, 1.0];
        assert_eq!(sampler(options(0.0, 0.0)).sample(&logits, &context), 1);
        assert_eq!(sampler(options(0.0, 0.6)).sample(&logits, &context), 0);
        assert_eq!(sampler(options(1.6, 0.0)).sample(&logits, &context), 2);
        assert_eq!(sampler(options(-1.0, 0.0)).sample(&[2.0, 2.5, 3.2], &context), 1);
    }

    #[test]
    fn biases_move_single_tokens_and_what_is_not_allowed_is_never_drawn() {
        let biased = SamplingOptions {
            logit_bias: vec![(2, 5.0), (0, -100.0), (999, 1.0)],
            ..Default::default()
        };
        let mut logits = vec![0.0; 40];
        (logits[0], logits[35], logits[2]) = (9.0, 4.0, 0.0);
        assert_eq!(sampler(biased).sample(&logits, &DrawContext::default()), 2);
        let context = |allowed: Option<&'static [u32]>, forbidden: &'static [u32]| DrawContext {
            allowed,
            forbidden,
            ..DrawContext::default()
        };
        let mut greedy = sampler(SamplingOptions::default());
        assert_eq!(greedy.sample(&logits, &context(None, &[0])), 35);
        assert_eq!(greedy.sample(&logits, &context(Some(&[0b110, 0b1000]), &[])), 35);
        assert_eq!(greedy.sample(&logits, &context(Some(&[0b110, 0]), &[1])), 2);
        let mut drawn = sampler(SamplingOptions {
            temperature: 5.0,
            ..Default::default()
        });
        for _ in 0..500 {
            let token = drawn.sample(&logits, &context(Some(&[0b1010, 0b10]), &[3]));
            assert!(token == 1 || token == 33, "{token}");
        }
    }

    #[test]
    fn equal_seeds_give_equal_draws_and_other_seeds_other_draws() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.37).sin()).collect();
        let draw = |seed| {
            let mut s = sampler(SamplingOptions {
                temperature: 1.0,
                seed,
                ..Default::default()
            });
            (0..32)
                .map(|_| s.sample(&logits, &DrawContext::default()))
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        for (options, name) in [
            (
                SamplingOptions {
                    temperature: -1.0,
                    ..Default::default()
                },
                "temperature",
            ),
            (
                SamplingOptions {
                    temperature: f32::NAN,
                    ..Default::default()
                },
                "temperature",
            ),
            (
                SamplingOptions {
                    top_p: 0.0,
                    ..Default::default()
                },
                "top_p",
            ),
            (
                SamplingOptions {
                    min_p: 1.5,
                    ..Default::default()
                },
                "min_p",
            ),
            (
                SamplingOptions {
                    repeat_penalty: 0.0,
                    ..Default::default()
                },
                "repeat_penalty",
            ),
        ] {
            let message = Sampler::new(options).unwrap_err().to_string();
            assert!(message.starts_with(&format!("`{name}` is ")), "{message}");
        }
    }
}
