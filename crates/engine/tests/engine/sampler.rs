//! Draws of tokens from logits.

use riffle_engine::{DrawContext, Sampler, SamplingOptions};

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
    // Token 0 occurs twice in the prompt and once in the answer, token 1 twice in the answer.
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
