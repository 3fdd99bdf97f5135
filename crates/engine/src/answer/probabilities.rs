//! Probabilities of tokens.

/// The model's probability of a token, before temperature, penalties and biases.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TokenProbabilities {
    /// The drawn or read token.
    pub token: u32,
    /// The natural logarithm of the token's probability.
    pub log_probability: f32,
    /// The likeliest tokens with the logarithms of their probabilities, descending; of equal ones the lower token
    /// first.
    pub likeliest: Vec<(u32, f32)>,
}

impl TokenProbabilities {
    /// The probability of `token`, given its logits `[vocab]`, with the `most` likeliest tokens.
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
