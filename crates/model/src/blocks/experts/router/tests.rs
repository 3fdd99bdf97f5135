use super::*;

/// Logits without ties, of some size.
fn logits(seed: u32, experts: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    (0..experts)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect()
}

fn rules(used: usize, scoring: Scoring) -> RouterRules {
    RouterRules {
        used,
        scoring,
        groups: None,
        sum: None,
        scale: 1.0,
    }
}

/// Experts by descending key, the lower number first for equal keys.
fn best(keys: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|a, b| keys[*b].total_cmp(&keys[*a]).then(a.cmp(b)));
    order.truncate(count);
    order
}

/// The choice according to its definition.
fn expected(rules: &RouterRules, logits: &[f32], bias: Option<&[f32]>) -> Vec<(usize, f64)> {
    let logits: Vec<f64> = logits.iter().map(|logit| f64::from(*logit)).collect();
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    let scores: Vec<f64> = match rules.scoring {
        Scoring::Softmax => logits.iter().map(|logit| logit.exp() / sum).collect(),
        Scoring::Sigmoid => logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
        _ => logits.clone(),
    };
    let bias = |expert: usize| bias.map_or(0.0, |bias| f64::from(bias[expert]));
    let mut keys: Vec<f64> = scores.iter().enumerate().map(|(at, score)| score + bias(at)).collect();
    if let Some(ExpertGroups {
        count,
        used,
        best: most,
    }) = rules.groups
    {
        let size = keys.len() / count;
        let of_group = |group: &[f64]| -> f64 { best(group, most).iter().map(|at| group[*at]).sum() };
        let groups: Vec<f64> = keys.chunks(size).map(of_group).collect();
        let chosen = best(&groups, used);
        for (expert, key) in keys.iter_mut().enumerate() {
            if !chosen.contains(&(expert / size)) {
                *key = f64::NEG_INFINITY;
            }
        }
    }
    let chosen = best(&keys, rules.used);
    let mut weights: Vec<f64> = chosen.iter().map(|expert| scores[*expert]).collect();
    if rules.scoring == Scoring::SigmoidOfChosen {
        weights
            .iter_mut()
            .for_each(|weight| *weight = 1.0 / (1.0 + (-*weight).exp()));
    }
    if rules.scoring == Scoring::SoftmaxOfChosen {
        let sum: f64 = weights.iter().map(|weight| weight.exp()).sum();
        weights.iter_mut().for_each(|weight| *weight = weight.exp() / sum);
    }
    if let Some(WeightSum { added, least }) = rules.sum {
        let sum = (weights.iter().sum::<f64>() + f64::from(added)).max(f64::from(least));
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    let scaled = weights.iter().map(|weight| weight * f64::from(rules.scale));
    chosen.into_iter().zip(scaled).collect()
}

#[track_caller]
fn check(rules: &RouterRules, experts: usize, biased: bool) {
    for seed in 0..40 {
        let bias = logits(seed + 1000, experts);
        let bias = biased.then_some(&bias[..]);
        let mut row = logits(seed, experts);
        let wanted = expected(rules, &row, bias);
        let mut found = vec![Choice::default(); rules.used];
        rules.choose(&mut row, bias, &mut found);
        for (found, (expert, weight)) in found.iter().zip(wanted) {
            assert_eq!(found.expert as usize, expert, "{rules:?}");
            let apart = (f64::from(found.weight) - weight).abs();
            assert!(apart < 2e-6 * weight.abs().max(1e-2), "{rules:?}: {apart}");
        }
    }
}

#[test]
fn experts_are_chosen_and_weighed_by_definition() {
    for scoring in [
        Scoring::Softmax,
        Scoring::Sigmoid,
        Scoring::SoftmaxOfChosen,
        Scoring::SigmoidOfChosen,
    ] {
        for (experts, used) in [(5, 1), (5, 5), (128, 8), (60, 4)] {
            check(&rules(used, scoring), experts, false);
            check(&rules(used, scoring), experts, true);
            let divided = RouterRules {
                sum: Some(WeightSum {
                    added: 1e-3,
                    least: 0.3,
                }),
                scale: 2.5,
                ..rules(used, scoring)
            };
            if scoring != Scoring::SoftmaxOfChosen {
                check(&divided, experts, true);
            }
        }
    }
}

#[test]
fn only_the_best_groups_are_chosen_from() {
    for best in [1, 2] {
        for (count, used) in [(8, 3), (4, 1), (2, 2)] {
            let groups = Some(ExpertGroups { count, used, best });
            let rules = RouterRules {
                groups,
                ..rules(4, Scoring::Sigmoid)
            };
            check(&rules, 32, true);
        }
    }
}

#[test]
fn the_lower_expert_is_chosen_of_equal_scores() {
    let mut row = vec![0.5; 12];
    let mut found = vec![Choice::default(); 3];
    rules(3, Scoring::Softmax).choose(&mut row, None, &mut found);
    assert_eq!(found.iter().map(|choice| choice.expert).collect::<Vec<_>>(), [0, 1, 2]);
    let groups = Some(ExpertGroups {
        count: 4,
        used: 2,
        best: 2,
    });
    let mut row = vec![0.5; 12];
    let grouped = RouterRules {
        groups,
        ..rules(3, Scoring::Sigmoid)
    };
    grouped.choose(&mut row, None, &mut found);
    assert_eq!(found.iter().map(|choice| choice.expert).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn logits_that_are_not_finite_still_choose_different_experts() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for scoring in [
            Scoring::Softmax,
            Scoring::Sigmoid,
            Scoring::SigmoidOfChosen,
            Scoring::SparseMixer { jitter: 0.01 },
        ] {
            let mut row = vec![bad; 6];
            let mut found = vec![Choice::default(); 2];
            rules(2, scoring).choose(&mut row, None, &mut found);
            assert_ne!(found[0].expert, found[1].expert);
        }
    }
}

/// The definition of `sparsemixer` in transformers, outside of training.
#[test]
fn a_sparse_mixer_takes_softmax_over_the_logits_near_the_largest() {
    let jitter = 0.2f32;
    for seed in 0..60 {
        let row = logits(seed, 16);
        let exact: Vec<f64> = row.iter().map(|logit| f64::from(*logit)).collect();
        let mut found = vec![Choice::default(); 2];
        rules(2, Scoring::SparseMixer { jitter }).choose(&mut row.clone(), None, &mut found);
        let mut left = exact.clone();
        for choice in &found {
            let expert = best(&left, 1)[0];
            let most = left[expert];
            let near = |at: usize| (most - exact[at]) / exact[at].abs().max(most) <= 2.0 * f64::from(jitter);
            let sum: f64 = (0..16).filter(|at| near(*at)).map(|at| (left[at] - most).exp()).sum();
            assert_eq!(choice.expert as usize, expert);
            assert!((f64::from(choice.weight) - 1.0 / sum).abs() < 1e-6, "{}", choice.weight);
            left[expert] = f64::NEG_INFINITY;
        }
    }
}
