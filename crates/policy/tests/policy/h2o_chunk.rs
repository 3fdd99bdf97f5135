//! Two-phase chunked prefill with heavy hitters: its memory sets, its votes, and the outputs of both phases.

use std::collections::BTreeSet;

use crate::testing::{Scene, make};
use riffle_attention::{
    AttendJob, AttendOptions, KvView, PageView, Partial, QueryTile, Selection, Span, add_column_mass, attend, reference,
};
use riffle_policy::{ColumnMass, Phase, Policy, PolicyError, PolicySpec, SelectContext};

/// Sizes of a run: chunk, local, heavy, sinks.
#[derive(Clone, Copy)]
struct Sizes {
    chunk: usize,
    local: usize,
    heavy: usize,
    sinks: usize,
}

const SMALL: Sizes = Sizes {
    chunk: 32,
    local: 6,
    heavy: 9,
    sinks: 2,
};

/// Result of one chunk.
struct ChunkResult {
    rows: Span,
    memory: Vec<usize>,
    /// Normalised outputs, `[rows, group, head_dim]`.
    output: Vec<f32>,
    pairs: usize,
    /// (position, mass, voters) of every candidate after the chunk's votes; empty for the last chunk, which has none.
    votes: Vec<(usize, f32, f32)>,
}

fn policy(sizes: Sizes) -> Policy {
    let Sizes {
        local, heavy, sinks, ..
    } = sizes;
    make(
        &format!("h2o-chunk:local={local},heavy={heavy},sinks={sinks}"),
        Phase::Prefill,
    )
}

fn options(scene: &Scene) -> AttendOptions<'static> {
    AttendOptions::new(scene.scale)
}

/// Reads the scene's tokens as a prompt: the first phase of all chunks, then the second phase chunk by chunk.
fn run(scene: &Scene, sizes: Sizes, policy: &mut Policy) -> Vec<ChunkResult> {
    let pages = scene.pages();
    let chunks: Vec<Span> = (0..scene.rows)
        .step_by(sizes.chunk)
        .map(|first| Span::new(first, (first + sizes.chunk).min(scene.rows)))
        .collect();
    assert!(policy.traits().two_phases);
    let mut first_phase: Vec<(Selection, Partial)> = chunks
        .iter()
        .map(|rows| {
            let tile = scene.tile(rows.start, rows.end);
            let own = policy.select_own(&context(scene, &pages, *rows));
            let mut partial = Partial::new(tile.rows, tile.group, tile.head_dim);
            attend(&tile, &kv(scene, &pages), &own, &options(scene), &mut partial).unwrap();
            (own, partial)
        })
        .collect();
    let mut steps = Vec::new();
    for (rows, (own, partial)) in chunks.iter().zip(&mut first_phase) {
        let (tile, context) = (scene.tile(rows.start, rows.end), context(scene, &pages, *rows));
        policy.prepare(&tile, &context);
        let selection = policy.select(&tile, &context);
        attend(&tile, &kv(scene, &pages), &selection, &options(scene), partial).unwrap();
        let from = policy.observes_from(&context);
        let mut votes = Vec::new();
        if from < rows.end {
            assert_eq!(from, rows.start);
            let mass = column_mass(scene, &pages, &tile, &[own, &selection], partial);
            policy.observe(&ColumnMass {
                queries: *rows,
                group: scene.group,
                mass: &mass[..rows.end],
            });
            votes = saved_votes(policy);
        }
        let mut output = vec![0.0; tile.rows * tile.group * tile.head_dim];
        partial
            .finish_into(&mut output, tile.group * tile.head_dim, None)
            .unwrap();
        steps.push(ChunkResult {
            rows: *rows,
            memory: selection.spans().iter().flat_map(Span::range).collect(),
            output,
            pairs: own.pair_count(rows.start, rows.len()) + selection.pair_count(rows.start, rows.len()),
            votes,
        });
    }
    steps
}

fn column_mass(
    scene: &Scene,
    pages: &[PageView<'_>],
    tile: &QueryTile<'_>,
    read: &[&Selection],
    partial: &Partial,
) -> Vec<f32> {
    let log_sum_exp: Vec<f32> = (0..tile.rows)
        .flat_map(|row| (0..tile.group).map(move |head| partial.log_sum_exp(row, head)))
        .collect();
    let mut mass = vec![0.0; scene.tokens];
    for selection in read {
        let job = AttendJob {
            queries: *tile,
            kv: kv(scene, pages),
            selection,
        };
        add_column_mass(&job, &options(scene), &log_sum_exp, 0, &mut mass).unwrap();
    }
    mass
}

fn kv<'a>(scene: &Scene, pages: &'a [PageView<'a>]) -> KvView<'a> {
    KvView {
        head_dim: scene.head_dim,
        pages,
    }
}

fn context<'a>(scene: &Scene, pages: &'a [PageView<'a>], rows: Span) -> SelectContext<'a> {
    SelectContext {
        chunk_start: rows.start,
        tokens: rows.end,
        total_tokens: scene.rows,
        ..scene.context(pages)
    }
}

/// The state that the policy would save: positions, then mass and voters of each.
fn saved_votes(policy: &Policy) -> Vec<(usize, f32, f32)> {
    let state = policy.save_state();
    let number = |at: usize| u64::from_le_bytes(state[at..at + 8].try_into().unwrap()) as usize;
    let score = |at: usize| f32::from_le_bytes(state[at..at + 4].try_into().unwrap());
    let count = number(0);
    let scores = 8 + 8 * count + 8;
    (0..count)
        .map(|n| (number(8 + 8 * n), score(scores + 8 * n), score(scores + 8 * n + 4)))
        .collect()
}

fn prompt(seed: u64, tokens: usize, group: usize) -> Scene {
    let mut scene = Scene::new(seed, 0, tokens, group, 48);
    scene.after = 0;
    scene
}

fn largest_logit(scene: &Scene) -> f64 {
    (0..scene.rows)
        .flat_map(|row| (0..scene.group).flat_map(move |head| scene.logits(row, head)))
        .fold(0.0, |top, logit| logit.abs().max(top))
}

/// Position, mass and voters.
type Vote = (usize, f64, f64);

/// The memory sets and votes by their definition, in f64 with sorting.
fn defined(scene: &Scene, sizes: Sizes) -> Vec<(Vec<usize>, Vec<Vote>)> {
    let (mut votes, mut steps) = (Vec::<Vote>::new(), Vec::new());
    for start in (0..scene.rows).step_by(sizes.chunk) {
        let end = (start + sizes.chunk).min(scene.rows);
        let local = start.saturating_sub(sizes.local);
        let mut older: Vec<&Vote> = votes.iter().filter(|vote| vote.0 < local).collect();
        let rank = |vote: &Vote| {
            if vote.0 < sizes.sinks {
                f64::INFINITY
            } else {
                vote.1 / vote.2
            }
        };
        older.sort_by(|a, b| rank(b).total_cmp(&rank(a)).then(a.0.cmp(&b.0)));
        let mut memory: Vec<usize> = older.iter().take(sizes.heavy).map(|vote| vote.0).collect();
        memory.extend(local..start);
        memory.sort_unstable();
        let before = |position: usize| votes.iter().find(|vote| vote.0 == position).copied();
        let mut next: Vec<Vote> = memory.iter().filter_map(|position| before(*position)).collect();
        next.extend((start..end).map(|position| (position, 0.0, 0.0)));
        for row in start..end {
            for head in 0..scene.group {
                let logits = scene.logits(row, head);
                let read = |position: usize| memory.contains(&position) || (start..=row).contains(&position);
                let total: f64 = (0..=row).filter(|j| read(*j)).map(|j| logits[j].exp()).sum();
                for (position, mass, voters) in &mut next {
                    if read(*position) {
                        *mass += logits[*position].exp() / total;
                        *voters += 1.0;
                    }
                }
            }
        }
        votes = next;
        steps.push((memory, votes.clone()));
    }
    steps
}

#[test]
fn memory_sets_and_votes_are_those_of_the_definition() {
    for (seed, tokens, group) in [(1, 200, 1), (2, 171, 2), (3, 128, 4)] {
        let scene = prompt(seed, tokens, group);
        let steps = run(&scene, SMALL, &mut policy(SMALL));
        for (step, (memory, votes)) in steps.iter().zip(defined(&scene, SMALL)) {
            assert_eq!(step.memory, memory, "chunk at {}", step.rows.start);
            if !step.votes.is_empty() {
                assert_eq!(step.votes.len(), votes.len());
            }
            for (ours, exact) in step.votes.iter().zip(votes) {
                assert_eq!(ours.0, exact.0);
                assert!((f64::from(ours.1) - exact.1).abs() < 1e-4, "{ours:?} for {exact:?}");
                assert_eq!(f64::from(ours.2), exact.2);
            }
        }
    }
}

#[test]
fn a_memory_is_local_and_heavy_sorted_in_bounds_and_exactly_as_large_as_it_can_be() {
    let Sizes {
        chunk, local, heavy, ..
    } = SMALL;
    // Shorter than a chunk, one chunk, slightly more, 2S − 1, partial and whole last chunks.
    for tokens in [1, 20, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk, 5 * chunk + 3] {
        let scene = prompt(7, tokens, 2);
        for step in run(&scene, SMALL, &mut policy(SMALL)) {
            let start = step.rows.start;
            assert!(step.memory.windows(2).all(|pair| pair[0] < pair[1]), "ascending");
            assert!(step.memory.iter().all(|position| *position < start), "in bounds");
            assert_eq!(step.memory.len(), (local + heavy).min(start), "exactly M");
            let latest: Vec<usize> = (start.saturating_sub(local)..start).collect();
            assert!(step.memory.ends_with(&latest), "the local part is the tail");
        }
    }
}

#[test]
fn important_tokens_survive_across_chunks_and_heads_choose_for_themselves() {
    let mut scene = prompt(4, 192, 1);
    // Token 10 has a large response to every query.
    let mean: Vec<f32> = (0..scene.head_dim)
        .map(|channel| scene.queries.iter().skip(channel).step_by(scene.head_dim).sum::<f32>() / scene.rows as f32)
        .collect();
    scene.keys[10 * scene.head_dim..11 * scene.head_dim]
        .iter_mut()
        .zip(&mean)
        .for_each(|(key, mean)| *key = 4.0 * mean);
    let scene = scene.paged(48);
    let steps = run(&scene, SMALL, &mut policy(SMALL));
    assert!(steps[1..].iter().all(|step| step.memory.contains(&10)));
    let other = run(&prompt(5, 192, 1), SMALL, &mut policy(SMALL));
    assert_ne!(steps[3].memory, other[3].memory);
}

#[test]
fn votes_only_grow_are_finite_and_come_once_a_chunk() {
    let mut scene = prompt(6, 330, 2);
    scene.scale *= (100.0 / largest_logit(&scene)) as f32;
    let steps = run(&scene, SMALL, &mut policy(SMALL));
    let voted = steps.iter().filter(|step| !step.votes.is_empty()).count();
    assert_eq!(voted, steps.len() - 1);
    for pair in steps.windows(2) {
        for (position, mass, voters) in &pair[1].votes {
            assert!(mass.is_finite() && voters.is_finite());
            if let Some(before) = pair[0].votes.iter().find(|before| before.0 == *position) {
                assert!(*mass >= before.1 && *voters > before.2);
            }
        }
    }
    assert!(
        steps
            .iter()
            .flat_map(|step| &step.output)
            .all(|value| value.is_finite())
    );
}

#[test]
fn a_rollback_goes_back_to_the_votes_of_a_chunk_before() {
    let scene = prompt(11, 5 * 32, 2);
    for chunks in 1..4 {
        let mut policy = policy(SMALL);
        let steps = run(&scene, SMALL, &mut policy);
        policy.truncate(chunks * 32);
        assert_eq!(saved_votes(&policy), steps[chunks - 1].votes, "{chunks} chunks");
        // A truncation within a chunk restores the state after the previous chunk.
        policy.truncate(chunks * 32 - 5);
        let expected = if chunks > 1 { &steps[chunks - 2].votes[..] } else { &[] };
        let found = saved_votes(&policy);
        let voted = found.iter().filter(|(_, _, voters)| *voters > 0.0).count();
        assert_eq!(voted, expected.len(), "{chunks} chunks");
    }
}

#[test]
fn fused_phases_equal_one_pass_over_the_chosen_keys() {
    for (seed, tokens, group, largest) in [(1, 150, 2, 10.0), (2, 95, 1, 5.0), (3, 150, 2, 100.0)] {
        let mut scene = prompt(seed, tokens, group);
        scene.scale *= (largest / largest_logit(&scene)) as f32;
        // A weight has the rounding error of its logit.
        let tolerance = 1e-5 + 4.0 * largest * f64::from(f32::EPSILON);
        let pages = scene.pages();
        for step in run(&scene, SMALL, &mut policy(SMALL)) {
            let memory = step.memory.iter().map(|position| Span::new(*position, position + 1));
            let all = Selection::from_spans(memory.chain([step.rows]));
            let tile = scene.tile(step.rows.start, step.rows.end);
            let exact = reference::attend(&tile, &kv(&scene, &pages), &all, &options(&scene), None).unwrap();
            for (ours, exact) in step.output.iter().zip(&exact.output) {
                assert!((f64::from(*ours) - exact).abs() < tolerance, "{ours} for {exact}");
            }
        }
    }
}

#[test]
fn nothing_later_is_seen_and_a_run_repeats_itself() {
    let scene = prompt(8, 160, 2);
    let steps = run(&scene, SMALL, &mut policy(SMALL));
    let mut changed = prompt(8, 160, 2);
    let (d, width) = (changed.head_dim, changed.group * changed.head_dim);
    changed.keys[100 * d..].iter_mut().for_each(|key| *key = -*key);
    changed.queries[100 * width..]
        .iter_mut()
        .for_each(|query| *query += 1.0);
    let changed = run(&changed.paged(48), SMALL, &mut policy(SMALL));
    for (a, b) in steps.iter().zip(&changed) {
        let rows = 100usize.saturating_sub(a.rows.start).min(a.rows.len());
        assert_eq!(a.output[..rows * width], b.output[..rows * width]);
    }
    // A policy that forgets its sequence equals a new one.
    let mut again = policy(SMALL);
    run(&prompt(9, 200, 2), SMALL, &mut again);
    again.reset();
    let again = run(&scene, SMALL, &mut again);
    for (a, b) in steps.iter().zip(&again) {
        let (first, second): (BTreeSet<_>, BTreeSet<_>) = (a.memory.iter().collect(), b.memory.iter().collect());
        assert_eq!(first, second, "heavy hitters are the same in every run");
        assert_eq!(a.output, b.output);
    }
}

#[test]
fn pair_counts_and_state_are_those_of_the_published_sizes() {
    let sizes = Sizes {
        chunk: 1024,
        local: 256,
        heavy: 256,
        sinks: 4,
    };
    let scene = prompt(1, 4096, 1);
    let mut policy = policy(sizes);
    let steps = run(&scene, sizes, &mut policy);
    assert_eq!(steps.iter().map(|step| step.pairs).sum::<usize>(), 3_672_064);
    // The state has positions, masses and voters of a memory and a chunk. It takes less than 5% of f16 KV, for any
    // prompt length.
    let state = policy.save_state().len();
    assert!(state <= 16 * (512 + 1024) + 16, "{state} bytes");
    assert!(state * 20 < 4096 * 2 * 2 * 128);
}

#[test]
fn chunks_that_are_too_short_for_a_memory_are_refused() {
    let rules: riffle_policy::PolicyRules = "h2o-chunk".parse().unwrap();
    assert_eq!(rules.preferred_chunk_tokens(), Some(1024));
    assert!(rules.check(Phase::Prefill, 513).is_ok());
    let refused = rules.check(Phase::Prefill, 512).unwrap_err();
    assert!(matches!(refused, PolicyError::ChunkTooShort { above: 512, .. }));
    assert!(refused.to_string().contains("`chunk_tokens=1024`"), "{refused}");
    let smaller: PolicySpec = "h2o-chunk".parse::<PolicySpec>().unwrap().with("heavy", "100").unwrap();
    assert!(
        riffle_policy::PolicyRules::from(smaller)
            .check(Phase::Prefill, 512)
            .is_ok()
    );
}
