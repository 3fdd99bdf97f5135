//! Policies that evict tokens.

use crate::testing::{Scene, best, make};
use riffle_attention::Span;
use riffle_policy::{ColumnMass, Phase, Policy, SelectContext};

/// Mass of each key for rows `from..to`, summed over the group, among the keys that `read` allows.
fn mass(scene: &Scene, rows: Span, read: impl Fn(usize) -> bool) -> Vec<f32> {
    let mut mass = vec![0.0; rows.end];
    for row in rows.range() {
        for head in 0..scene.group {
            let logits = scene.logits(row, head);
            let total: f64 = (0..=row).filter(|key| read(*key)).map(|key| logits[key].exp()).sum();
            for key in (0..=row).filter(|key| read(*key)) {
                mass[key] += (logits[key].exp() / total) as f32;
            }
        }
    }
    mass
}

/// Reads `prompt` tokens densely in chunks, then generates the rest one by one. Returns the tokens that each generated
/// token reads.
fn generate(scene: &Scene, prompt: usize, chunk: usize, policy: &mut Policy) -> Vec<Vec<usize>> {
    go_on(scene, 0, prompt, scene.rows, chunk, policy)
}

/// From token `from` on, reads up to `prompt` densely in chunks, then generates up to `end` one by one.
fn go_on(scene: &Scene, from: usize, prompt: usize, end: usize, chunk: usize, policy: &mut Policy) -> Vec<Vec<usize>> {
    let context = |phase, start: usize, end: usize| SelectContext {
        phase,
        chunk_start: start,
        tokens: end,
        total_tokens: if phase == Phase::Prefill { prompt } else { end },
        ..scene.context(&[])
    };
    let show = |policy: &mut Policy, phase, rows: Span, read: &[usize]| {
        let from = policy.observes_from(&context(phase, rows.start, rows.end));
        if from < rows.end {
            let queries = Span::new(from, rows.end);
            let mass = mass(scene, queries, |key| read.is_empty() || read.contains(&key));
            let group = scene.group;
            policy.observe(&ColumnMass {
                queries,
                group,
                mass: &mass,
            });
        }
    };
    for start in (from..prompt).step_by(chunk) {
        show(
            policy,
            Phase::Prefill,
            Span::new(start, (start + chunk).min(prompt)),
            &[],
        );
    }
    let steps = (prompt..end).map(|row| {
        let (tile, context) = (scene.tile(row, row + 1), context(Phase::Decode, row, row + 1));
        policy.prepare(&tile, &context);
        let selection = policy.select(&tile, &context);
        let read: Vec<usize> = (0..=row).filter(|key| selection.contains(row, *key)).collect();
        show(policy, Phase::Decode, Span::new(row, row + 1), &read);
        read
    });
    steps.collect()
}

fn sequence(seed: u64, tokens: usize, group: usize) -> Scene {
    let mut scene = Scene::new(seed, 0, tokens, group, 64);
    scene.after = 0;
    scene
}

#[test]
fn h2o_keeps_the_tokens_with_most_mass_by_voter_and_those_protected() {
    let (budget, recent, sinks, observed) = (40, 8, 3, 10);
    for (seed, prompt, chunk, group) in [(1, 100, 37, 2), (2, 64, 64, 1), (3, 90, 1, 3)] {
        let scene = sequence(seed, 150, group);
        let spec = format!("h2o:budget={budget},recent={recent},sinks={sinks},observed={observed},protect=20-24");
        let steps = generate(&scene, prompt, chunk, &mut make(&spec, Phase::Decode));
        // The definition.
        let (mut sums, mut voters) = (vec![0.0f64; 150], vec![0.0f64; 150]);
        let vote = |rows: Span, read: &dyn Fn(usize) -> bool, sums: &mut Vec<f64>, voters: &mut Vec<f64>| {
            let mass = mass(&scene, rows, read);
            for key in (0..rows.end).filter(|key| read(*key)) {
                sums[key] += f64::from(mass[key]);
                voters[key] += ((rows.end - rows.start.max(key)) * group) as f64;
            }
        };
        for start in (0..prompt).step_by(chunk) {
            let end = (start + chunk).min(prompt);
            vote(
                Span::new(start.max(end - observed.min(end)), end),
                &|_| true,
                &mut sums,
                &mut voters,
            );
        }
        let mut held: Vec<usize> = (0..prompt).collect();
        for (row, read) in (prompt..150).zip(&steps) {
            held.push(row);
            if held.len() > budget {
                let score = |key: &usize| {
                    if voters[*key] > 0.0 {
                        sums[*key] / voters[*key]
                    } else {
                        0.0
                    }
                };
                let scores: Vec<f64> = held.iter().map(score).collect();
                let safe = |place: usize| {
                    let key = held[place];
                    key < sinks || key + recent > row || (20..=24).contains(&key) || voters[key] == 0.0
                };
                let mut stay = best(&scores, budget, safe);
                stay.sort_unstable();
                held = stay.into_iter().map(|place| held[place]).collect();
            }
            assert_eq!(*read, held, "token {row}");
            assert!(read.len() <= budget);
            vote(
                Span::new(row, row + 1),
                &|key| held.contains(&key),
                &mut sums,
                &mut voters,
            );
        }
    }
}

#[test]
fn snapkv_keeps_what_the_prompts_last_queries_looked_at_and_its_neighbours() {
    let (budget, window, pool, sinks) = (40, 12, 5, 3);
    for (seed, prompt, chunk, group) in [(1, 100, 37, 2), (2, 64, 64, 1), (3, 90, 5, 4)] {
        let scene = sequence(seed, 120, group);
        let spec = format!("snapkv:budget={budget},window={window},pool={pool},sinks={sinks},protect=20-24");
        let steps = generate(&scene, prompt, chunk, &mut make(&spec, Phase::Decode));
        let mass = mass(&scene, Span::new(prompt - window, prompt), |_| true);
        let pooled: Vec<f64> = (0..prompt)
            .map(|key| {
                let around = key.saturating_sub(pool / 2)..(key + pool / 2 + 1).min(prompt);
                let count = around.len() as f64;
                mass[around].iter().map(|mass| f64::from(*mass)).sum::<f64>() / count
            })
            .collect();
        let mut kept = best(&pooled, budget, |key| {
            key < sinks || key + window >= prompt || (20..=24).contains(&key)
        });
        kept.sort_unstable();
        for (row, read) in (prompt..120).zip(&steps) {
            let expected: Vec<usize> = kept.iter().copied().chain(prompt..=row).collect();
            assert_eq!(*read, expected, "token {row}");
        }
    }
}

#[test]
fn prompts_shorter_than_the_budget_lose_nothing() {
    let scene = sequence(5, 60, 2);
    for spec in [
        "h2o:budget=60,recent=4",
        "snapkv:budget=30,window=4",
        "h2o:budget=1,recent=500",
    ] {
        for (row, read) in (30..60).zip(generate(&scene, 30, 16, &mut make(spec, Phase::Decode))) {
            assert_eq!(read, (0..=row).collect::<Vec<_>>(), "{spec}");
        }
    }
}

#[test]
fn protected_ranges_outlive_any_budget() {
    let scene = sequence(6, 140, 1);
    for spec in [
        "h2o:budget=10,recent=4,sinks=2,protect=30-49",
        "snapkv:budget=10,window=4,sinks=2,protect=30-49",
    ] {
        for read in generate(&scene, 100, 50, &mut make(spec, Phase::Decode)) {
            assert!(
                (30..50).chain([0, 1]).all(|key| read.contains(&key)),
                "{spec}: {read:?}"
            );
            assert!(!read.contains(&60), "{spec}: the budget holds");
        }
    }
}

#[test]
fn a_rollback_forgets_what_came_after_it_and_a_reset_everything() {
    let scene = sequence(7, 120, 2);
    for spec in ["h2o:budget=30,recent=4", "snapkv:budget=30,window=4"] {
        let mut policy = make(spec, Phase::Decode);
        let first = generate(&scene, 100, 50, &mut policy);
        policy.truncate(105);
        let (tile, context) = (
            scene.tile(105, 106),
            SelectContext {
                phase: Phase::Decode,
                chunk_start: 105,
                tokens: 106,
                total_tokens: 106,
                ..scene.context(&[])
            },
        );
        policy.prepare(&tile, &context);
        let selection = policy.select(&tile, &context);
        assert!(selection.contains(105, 105) && !selection.spans().iter().any(|span| span.end > 106));
        policy.reset();
        assert_eq!(generate(&scene, 100, 50, &mut policy), first);
    }
}

#[test]
fn votes_of_queries_that_were_rolled_back_do_not_count() {
    let scene = sequence(8, 130, 2);
    // Nothing is evicted, so only votes can differ.
    let read = |answer: usize| {
        let mut policy = make("h2o:budget=500,observed=20,recent=4", Phase::Decode);
        go_on(&scene, 0, 80, 80 + answer, 40, &mut policy);
        policy
    };
    // Truncating the whole answer must restore the state before it.
    let mut rolled = read(30);
    rolled.truncate(80);
    assert_eq!(rolled.save_state(), read(0).save_state());
    // A partly read second prompt must do the same.
    let mut rolled = read(1);
    go_on(&scene, 81, 120, 120, 13, &mut rolled);
    rolled.truncate(81);
    assert_eq!(rolled.save_state(), read(1).save_state());
    // There are no votes before the oldest stored ones.
    rolled.truncate(70);
    let mut nobody = make("h2o", Phase::Decode);
    nobody.prepare(
        &scene.tile(69, 70),
        &SelectContext {
            chunk_start: 69,
            tokens: 70,
            ..scene.context(&[])
        },
    );
    assert_eq!(rolled.save_state(), nobody.save_state());
}

#[test]
fn a_rollback_to_where_the_prompt_ends_keeps_what_its_last_queries_looked_at() {
    let scene = sequence(8, 130, 2);
    let select = |rolled: bool| {
        let mut policy = make("snapkv:budget=30,window=8", Phase::Decode);
        go_on(&scene, 0, 80, 80, 40, &mut policy);
        if rolled {
            policy.truncate(80);
        }
        go_on(&scene, 80, 80, 81, 40, &mut policy)
    };
    assert_eq!(select(true), select(false));
}

#[test]
fn after_a_rollback_evictions_go_by_the_votes_that_remain() {
    let scene = sequence(9, 130, 2);
    let spec = "h2o:budget=60,observed=20,recent=4";
    // Other queries after token 90 are rolled back before their votes evict anything.
    let mut other = sequence(9, 130, 2);
    for query in &mut other.queries[91 * 2 * 32..] {
        *query *= -3.0;
    }
    let mut rolled = make("h2o:budget=120,observed=20,recent=4", Phase::Decode);
    go_on(&other, 0, 90, 110, 40, &mut rolled);
    rolled.truncate(90);
    let mut kept = make(spec, Phase::Decode);
    kept.restore_state(&rolled.save_state()).unwrap();
    let mut never = make(spec, Phase::Decode);
    go_on(&scene, 0, 90, 90, 40, &mut never);
    let steps = |policy: &mut Policy| go_on(&scene, 90, 90, 130, 40, policy);
    assert_eq!(steps(&mut kept), steps(&mut never));
}
