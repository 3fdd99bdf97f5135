//! Forecasts the remaining time of a prefill.

use riffle_policy::{CostModel, Phase, PolicyShape, PolicySpec};

use crate::attention::Heads;
use crate::{Engine, PrefillProgress};

/// Number of lengths at which the cost of a range of tokens is evaluated.
const STEPS: usize = 48;

/// Factor on the weight of earlier logical batches for each later one, so that a slowdown shows quickly.
const MEMORY: f64 = 0.8;

/// Seconds of work before a rate is used for a forecast.
const LEAST_SECONDS: f64 = 2.0;

/// Forecasts the time of a prompt, from the layers of the model, the prefill policy and two measured rates.
///
/// Linear work costs the same for every token. Attention costs the estimate of [`CostModel`] for each layer's pairs
/// under its policy, times a factor. The two rates are measured separately: the first batch of a long prompt has few
/// pairs, so it alone would not predict the growth of the cost.
#[derive(Debug, Clone)]
pub struct TimeLeft {
    layers: Vec<LayerCost>,
    cost: CostModel,
    /// Totals of the finished batches; earlier ones weigh less.
    before: Totals,
    /// Totals including the current batch.
    now: Totals,
    batch: Option<BatchCost>,
    /// Seconds until the latest record.
    elapsed_s: f64,
    progress: Option<PrefillProgress>,
}

/// The current logical batch.
#[derive(Debug, Clone, Copy)]
struct BatchCost {
    /// First token of the batch.
    first: usize,
    /// Seconds before the batch.
    began_s: f64,
    /// Estimated nanoseconds of all attention of the batch on one thread, computed once because progress arrives every
    /// few milliseconds.
    attention_ns: f64,
}

/// Layers with equal attention.
#[derive(Debug, Clone, PartialEq)]
struct LayerCost {
    count: f64,
    shape: PolicyShape,
    window: Option<usize>,
    policy: PolicySpec,
}

/// Work done, and its seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    tokens: f64,
    linear_s: f64,
    /// Estimated nanoseconds of the attention on one thread.
    attention_ns: f64,
    attention_s: f64,
}

impl TimeLeft {
    /// A forecast for prompts of this engine's sequences under its options.
    pub fn new(engine: &Engine) -> Self {
        let (config, options) = (engine.model().config(), engine.options());
        let mut layers: Vec<LayerCost> = Vec::new();
        for layer in (0..config.layers).filter(|layer| config.cache_layer(*layer).is_some()) {
            let own = LayerCost {
                count: 1.0,
                shape: Heads::of_layer(config, layer).for_policies(options.machine.chunk_tokens),
                window: config.windows.get(layer).copied().flatten(),
                policy: options.sequence.prefill.policy(layer, 0).clone(),
            };
            let alike = layers
                .iter_mut()
                .find(|other| (other.shape, other.window, &other.policy) == (own.shape, own.window, &own.policy));
            match alike {
                Some(other) => other.count += 1.0,
                None => layers.push(own),
            }
        }
        Self::over(layers, options.machine.cost)
    }

    fn over(layers: Vec<LayerCost>, cost: CostModel) -> Self {
        Self {
            layers,
            cost,
            before: Totals::default(),
            now: Totals::default(),
            batch: None,
            elapsed_s: 0.0,
            progress: None,
        }
    }

    /// Records the progress of a reading, `elapsed_s` seconds after its start.
    pub fn record(&mut self, progress: PrefillProgress, elapsed_s: f64) {
        self.progress = Some(progress);
        if let Some(batch) = progress.batch {
            let known = self.batch.filter(|known| known.first == batch.first);
            let cost = known.unwrap_or_else(|| {
                self.before = self.now.aged();
                BatchCost {
                    first: batch.first,
                    began_s: self.elapsed_s,
                    attention_ns: self.attention_ns(batch.first, batch.first + batch.tokens),
                }
            });
            self.batch = Some(cost);
            self.now = Totals {
                tokens: self.before.tokens + batch.share * batch.tokens as f64,
                linear_s: self.before.linear_s + (elapsed_s - cost.began_s - batch.attention_s).max(0.0),
                attention_ns: self.before.attention_ns + batch.share * cost.attention_ns,
                attention_s: self.before.attention_s + batch.attention_s,
            };
        }
        self.elapsed_s = elapsed_s;
    }

    /// Seconds until the recorded reading ends; `None` while too little is known.
    pub fn seconds(&self) -> Option<f64> {
        let progress = self.progress?;
        let left = progress.tokens as f64 - progress.tokens_done;
        let Some(batch) = progress.batch else {
            // For other kinds of work, the current rate is extrapolated.
            let is_known = self.elapsed_s >= LEAST_SECONDS && progress.tokens_done > 0.0;
            return is_known.then(|| self.elapsed_s * left / progress.tokens_done);
        };
        // The current batch counts with its remaining share, and all later ones in full.
        let end = batch.first + batch.tokens;
        let behind = (left - (1.0 - batch.share) * batch.tokens as f64).max(0.0).round() as usize;
        let rest = self.seconds_for(batch.first, end)? * (1.0 - batch.share);
        Some(rest + self.seconds_for(end, end + behind)?)
    }

    /// Seconds for tokens `first..end` of a sequence; `None` while too little is known.
    pub fn seconds_for(&self, first: usize, end: usize) -> Option<f64> {
        let Totals {
            tokens,
            linear_s,
            attention_ns,
            attention_s,
        } = self.now;
        if linear_s + attention_s < LEAST_SECONDS || tokens <= 0.0 {
            return None;
        }
        let attention = match attention_ns {
            0.0 => 0.0,
            known_ns => attention_s / known_ns * self.attention_ns(first, end),
        };
        Some(linear_s / tokens * (end - first) as f64 + attention)
    }

    /// Estimated nanoseconds of the attention of tokens `first..end`, on one thread.
    fn attention_ns(&self, first: usize, end: usize) -> f64 {
        let step = (end - first).div_ceil(STEPS).max(1);
        let parts = (first..end).step_by(step).map(|start| (start, (start + step).min(end)));
        let of_part = |(start, end): (usize, usize)| {
            let middle = (start + end).div_ceil(2);
            let of_layer = |layer: &LayerCost| layer.count * layer.token_ns(&self.cost, middle);
            (end - start) as f64 * self.layers.iter().map(of_layer).sum::<f64>()
        };
        parts.map(of_part).sum()
    }
}

impl LayerCost {
    /// Nanoseconds of one query position after `keys` others.
    fn token_ns(&self, cost: &CostModel, keys: usize) -> f64 {
        let seen = self.window.map_or(keys, |window| window.min(keys));
        let shape = &self.shape;
        let dense = (seen * shape.kv_heads * shape.group * shape.head_dim) as f64 * cost.attend_ns;
        dense * cost.relative_cost(&self.policy, Phase::Prefill, shape, seen.max(1), None)
    }
}

impl Totals {
    fn aged(self) -> Self {
        Self {
            tokens: MEMORY * self.tokens,
            linear_s: MEMORY * self.linear_s,
            attention_ns: MEMORY * self.attention_ns,
            attention_s: MEMORY * self.attention_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BatchProgress;

    const TOKEN_S: f64 = 0.01;

    /// A machine whose attention takes three times the estimate.
    const FACTOR: f64 = 3e-9;

    fn forecast(windows: &[Option<usize>]) -> TimeLeft {
        let layer = |window: &Option<usize>| LayerCost {
            count: 1.0,
            shape: PolicyShape {
                kv_heads: 8,
                group: 4,
                head_dim: 128,
                chunk_tokens: 512,
            },
            window: *window,
            policy: PolicySpec::full(),
        };
        TimeLeft::over(windows.iter().map(layer).collect(), CostModel::default())
    }

    /// Reads `tokens` up to `share` of the batch at `last`, and returns the elapsed seconds.
    fn read(forecast: &mut TimeLeft, tokens: usize, batch: usize, last: usize, share: f64) -> f64 {
        let mut elapsed_s = 0.0;
        for first in (0..=last).step_by(batch) {
            let attention_s = FACTOR * forecast.attention_ns(first, first + batch);
            let shares: &[f64] = if first == last { &[share] } else { &[0.5, 1.0] };
            for share in shares {
                let progress = PrefillProgress {
                    tokens_done: first as f64 + share * batch as f64,
                    tokens,
                    batch: Some(BatchProgress {
                        first,
                        tokens: batch,
                        share: *share,
                        attention_s: share * attention_s,
                    }),
                };
                forecast.record(progress, elapsed_s + share * (TOKEN_S * batch as f64 + attention_s));
            }
            elapsed_s += shares[shares.len() - 1] * (TOKEN_S * batch as f64 + attention_s);
        }
        elapsed_s
    }

    #[test]
    fn nothing_is_claimed_before_the_first_record() {
        assert_eq!(forecast(&[None]).seconds(), None);
    }

    #[test]
    fn part_of_the_first_batch_foretells_a_long_prompt() {
        for windows in [&[None, None][..], &[Some(1024), None]] {
            let (tokens, batch) = (262_144, 2048);
            let mut early = forecast(windows);
            let taken_s = read(&mut early, tokens, batch, 0, 0.25);
            let mut whole = forecast(windows);
            let total_s = read(&mut whole, tokens, batch, tokens - batch, 1.0);
            let foretold_s = taken_s + early.seconds().unwrap();
            assert!((foretold_s / total_s - 1.0).abs() < 0.01, "{foretold_s} of {total_s}");
            assert!(whole.seconds().unwrap() < 1e-6);
        }
    }

    #[test]
    fn a_window_makes_the_cost_of_a_token_constant() {
        let forecast = forecast(&[Some(1024)]);
        let (near, far) = (forecast.attention_ns(8192, 9216), forecast.attention_ns(81_920, 82_944));
        assert!((near / far - 1.0).abs() < 1e-9);
    }

    #[test]
    fn work_that_tells_no_batches_goes_on_as_it_went() {
        let mut forecast = forecast(&[None]);
        let progress = PrefillProgress {
            tokens_done: 250.0,
            tokens: 1000,
            batch: None,
        };
        forecast.record(progress, 5.0);
        assert_eq!(forecast.seconds(), Some(15.0));
    }
}
