//! From logits to the next token.

use std::collections::HashSet;

use rand::Rng;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::EngineError;

/// How the next token is drawn. The steps run in the order of the fields: penalty, top-k, temperature, top-p, min-p.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SamplingOptions {
    /// Logits of tokens among the last [`Self::repeat_window`] are divided (if positive) or multiplied by this; 1 is off.
    pub repeat_penalty: f32,
    /// How many recent tokens the penalty looks at.
    pub repeat_window: usize,
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
            repeat_penalty: 1.0,
            repeat_window: 64,
            top_k: 0,
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
        }
    }
}

impl SamplingOptions {
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
            "--temperature",
            self.temperature,
            self.temperature >= 0.0,
            "it must be 0 (most likely token) or more",
        )?;
        check(
            "--top-p",
            self.top_p,
            self.top_p > 0.0 && self.top_p <= 1.0,
            "it must be above 0 and at most 1",
        )?;
        check(
            "--min-p",
            self.min_p,
            (0.0..=1.0).contains(&self.min_p),
            "it must be from 0 to 1",
        )?;
        check(
            "--repeat-penalty",
            self.repeat_penalty,
            self.repeat_penalty > 0.0,
            "it must be above 0 (1 is off)",
        )
    }
}

/// Draws tokens; holds the generator's state between draws.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplingOptions,
    generator: ChaCha8Rng,
    candidates: Vec<Candidate>,
}

/// Where a sampler stands in its seed's sequence.
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

    pub(crate) fn state(&self) -> SamplerState {
        SamplerState {
            seed: self.options.seed,
            words_drawn: self.generator.get_word_pos(),
        }
    }

    /// Draws the token after `history`, given its logits `[vocab]`. Ties go to the lower token id.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> u32 {
        let options = self.options.clone();
        self.candidates.clear();
        self.candidates
            .extend(logits.iter().enumerate().map(|(token, &logit)| Candidate {
                token: token as u32,
                logit,
                probability: 0.0,
            }));
        if options.repeat_penalty != 1.0 {
            let recent = &history[history.len().saturating_sub(options.repeat_window)..];
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
        let by_logit = |a: &Candidate, b: &Candidate| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token));
        if options.temperature == 0.0 {
            return self
                .candidates
                .iter()
                .min_by(|a, b| by_logit(a, b))
                .map_or(0, |candidate| candidate.token);
        }
        if options.top_k > 0 && options.top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(options.top_k - 1, by_logit);
            self.candidates.truncate(options.top_k);
        }
        self.candidates.sort_unstable_by(by_logit);
        self.normalise();
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
        self.draw()
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

    fn shares(options: SamplingOptions, logits: &[f32], draws: usize) -> Vec<f64> {
        let mut sampler = sampler(options);
        let mut counts = vec![0usize; logits.len()];
        for _ in 0..draws {
            counts[sampler.sample(logits, &[]) as usize] += 1;
        }
        counts.iter().map(|&n| n as f64 / draws as f64).collect()
    }

    #[test]
    fn temperature_zero_takes_the_most_likely_token_and_the_lower_id_on_a_tie() {
        let mut greedy = sampler(SamplingOptions::default());
        assert_eq!(greedy.sample(&[0.0, 3.0, 1.0, 3.0], &[]), 1);
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
        assert_eq!(penalised.sample(&[4.0, 3.0], &[0, 1, 1]), 0);
        assert_eq!(penalised.sample(&[4.0, 3.0], &[1, 0]), 0);
        assert_eq!(penalised.sample(&[4.0, 3.0], &[2, 0]), 1);
        assert_eq!(penalised.sample(&[-1.0, -1.5], &[0]), 1);
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
            (0..32).map(|_| s.sample(&logits, &[])).collect::<Vec<_>>()
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
                "--temperature",
            ),
            (
                SamplingOptions {
                    temperature: f32::NAN,
                    ..Default::default()
                },
                "--temperature",
            ),
            (
                SamplingOptions {
                    top_p: 0.0,
                    ..Default::default()
                },
                "--top-p",
            ),
            (
                SamplingOptions {
                    min_p: 1.5,
                    ..Default::default()
                },
                "--min-p",
            ),
            (
                SamplingOptions {
                    repeat_penalty: 0.0,
                    ..Default::default()
                },
                "--repeat-penalty",
            ),
        ] {
            let message = Sampler::new(options).unwrap_err().to_string();
            assert!(message.starts_with(name), "{message}");
        }
    }
}
