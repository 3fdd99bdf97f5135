//! Draws the next token from logits.

use std::collections::{BTreeMap, HashSet};

use rand::Rng;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use riffle_model::GenerationDefaults;
use serde::{Deserialize, Serialize};

use crate::EngineError;
use crate::error::require;

/// Sampling options. The steps run in the order of the fields: biases, penalties, top-k, temperature, top-p, min-p.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SamplingOptions {
    /// Terms added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Logits of tokens among the last [`Self::repeat_window`] are divided (if positive) or multiplied by this; 1
    /// disables it.
    pub repeat_penalty: f32,
    /// Number of recent tokens for the repeat penalty.
    pub repeat_window: usize,
    /// Subtracted from the logit of every token that the answer already contains; 0 disables it.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for each occurrence in the answer; 0 disables it.
    pub frequency_penalty: f32,
    /// Keep the k most likely tokens; 0 disables it.
    pub top_k: usize,
    /// Divisor of logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the most likely tokens that together have this probability; 1 disables it.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one; 0 disables it.
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
    /// The settings in a model's files; greedy decoding if the files have none.
    pub fn recommended(defaults: &GenerationDefaults) -> Self {
        let plain = Self::default();
        // A temperature is a recommendation only with sampling; "sample" alone means temperature 1.
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
        const REQUIREMENTS: [(&str, &str); 6] = [
            ("temperature", "it must be 0 (most likely token) or more"),
            ("top_p", "it must be above 0 and at most 1"),
            ("min_p", "it must be from 0 to 1"),
            ("repeat_penalty", "it must be above 0 (1 is off)"),
            ("presence_penalty", "it must be a number (0 is off)"),
            ("frequency_penalty", "it must be a number (0 is off)"),
        ];
        let values = [
            (self.temperature, self.temperature >= 0.0),
            (self.top_p, self.top_p > 0.0 && self.top_p <= 1.0),
            (self.min_p, (0.0..=1.0).contains(&self.min_p)),
            (self.repeat_penalty, self.repeat_penalty > 0.0),
            (self.presence_penalty, true),
            (self.frequency_penalty, true),
        ];
        for ((name, requirement), (value, allowed)) in REQUIREMENTS.into_iter().zip(values) {
            require(allowed && value.is_finite(), name, value, requirement)?;
        }
        for (token, bias) in &self.logit_bias {
            let requirement = format!("the bias of token {token} must be a number");
            require(bias.is_finite(), "logit_bias", bias, requirement)?;
        }
        Ok(())
    }
}

/// The inputs of a draw besides the logits.
#[derive(Debug, Clone, Copy, Default)]
pub struct DrawContext<'a> {
    /// The tokens so far, prompt and answer.
    pub tokens: &'a [u32],
    /// Number of these, at the end, that are the answer.
    pub answer_tokens: usize,
    /// Bits of the allowed tokens, 32 per word, the lowest token in the lowest bit; at least one is set. `None`
    /// allows all.
    pub allowed: Option<&'a [u32]>,
    /// Tokens that are never allowed.
    pub forbidden: &'a [u32],
}

impl DrawContext<'_> {
    fn allows(&self, token: u32) -> bool {
        let word = |bits: &[u32]| bits.get(token as usize / 32).copied().unwrap_or(0);
        self.allowed.is_none_or(|bits| word(bits) >> (token % 32) & 1 == 1) && !self.forbidden.contains(&token)
    }
}

/// Draws tokens; stores the generator's state between draws.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplingOptions,
    generator: ChaCha8Rng,
    candidates: Vec<Candidate>,
}

/// A sampler's position in its seed's sequence.
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

    /// A sampler that continues after another with the same seed; with another seed, it starts its sequence.
    pub(crate) fn resume(options: SamplingOptions, state: &SamplerState) -> Result<Self, EngineError> {
        let mut sampler = Self::new(options)?;
        if state.seed == sampler.options.seed {
            sampler.generator.set_word_pos(state.words_drawn);
        }
        Ok(sampler)
    }

    /// A copy with the same future draws.
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

    /// Draws the token after the context's tokens, given its logits `[vocab]`. Ties go to the lower token id.
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

    /// Penalises tokens that the text or the answer already contains. Tokens are still in vocabulary order.
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

    /// Drops candidates by top-p and min-p; candidates must be sorted.
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

    /// Probabilities after temperature; candidates are sorted, so the first has the largest logit.
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
