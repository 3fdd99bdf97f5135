//! How likely tokens were.

/// How likely the model found a token, before temperature, penalties and biases.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TokenProbabilities {
    /// The token that was drawn or read.
    pub token: u32,
    /// The natural logarithm of its probability.
    pub log_probability: f32,
    /// The likeliest tokens and the logarithms of their probabilities, the likeliest first; the lower token first on a tie.
    pub likeliest: Vec<(u32, f32)>,
}

impl TokenProbabilities {
    /// Of `token`, given the logits `[vocab]` it was drawn from, with the `most` likeliest tokens.
    pub fn from_logits(logits: &[f32], token: u32, most: usize) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let log_sum = f64::from(largest) + sum.ln();
        let log_probability = |token: u32| (f64::from(logits[token as usize]) - log_sum) as f32;
        let by_logit = |a: &u32, b: &u32| {
            let (first, second) = (logits[*a as usize], logits[*b as usize]);
            second.total_cmp(&first).then(a.cmp(b))
        };
        let mut likeliest: Vec<u32> = (0..logits.len() as u32).collect();
        let most = most.min(likeliest.len());
        if most > 0 && most < likeliest.len() {
            likeliest.select_nth_unstable_by(most - 1, by_logit);
        }
        likeliest.truncate(most);
        likeliest.sort_unstable_by(by_logit);
        Self {
            token,
            log_probability: log_probability(token),
            likeliest: likeliest
                .into_iter()
                .map(|token| (token, log_probability(token)))
                .collect(),
        }
    }
}
