//! Every policy of the catalogue: its spelling, its refusals, and its selections.

use crate::testing::Scene;
use proptest::prelude::*;
use riffle_attention::{QueryTile, Selection, Span};
use riffle_policy::{
    CostModel, Phase, PolicyError, PolicyRule, PolicyRules, PolicySet, PolicyShape, PolicySpec, SelectContext, build,
    catalogue, dense_below,
};

/// Keys that each query reads, `[rows][start + rows]`, in layer 1 of a prompt of `total` tokens.
fn mask(spec: &str, phase: Phase, start: usize, rows: usize, total: usize) -> Vec<Vec<bool>> {
    let selection = select(spec, phase, start, rows, total);
    (start..start + rows)
        .map(|query| (0..start + rows).map(|key| selection.contains(query, key)).collect())
        .collect()
}

fn select(spec: &str, phase: Phase, start: usize, rows: usize, total: usize) -> Selection {
    let policy = build(&spec.parse().unwrap(), phase).unwrap();
    let data = vec![0.0; rows * 32];
    let queries = QueryTile {
        data: &data,
        rows,
        row_stride: 32,
        group: 1,
        head_dim: 32,
        start,
    };
    let context = SelectContext {
        phase,
        layer: 1,
        layers: 2,
        kv_head: 0,
        chunk_start: start,
        tokens: start + rows,
        total_tokens: total,
        page_tokens: 64,
        scale: 0.2,
        soft_cap: None,
        pages: &[],
        signs: None,
    };
    policy.select(&queries, &context)
}

#[test]
fn full_reads_every_earlier_token_and_no_later_one() {
    for (offset, row) in mask("full", Phase::Prefill, 40, 10, 50).into_iter().enumerate() {
        for (key, read) in row.into_iter().enumerate() {
            assert_eq!(read, key <= 40 + offset);
        }
    }
}

proptest! {
    #[test]
    fn streaming_reads_sinks_and_window_exactly(
        sinks in 0usize..40, window in 1usize..40, start in 0usize..100, rows in 1usize..20, decode: bool,
    ) {
        let phase = if decode { Phase::Decode } else { Phase::Prefill };
        let spec = format!("streaming:sinks={sinks},window={window}");
        for (offset, row) in mask(&spec, phase, start, rows, start + rows).into_iter().enumerate() {
            let query = start + offset;
            for (key, read) in row.into_iter().enumerate() {
                prop_assert_eq!(read, key <= query && (key < sinks || query - key < window));
            }
        }
    }

    #[test]
    fn tri_shape_is_dense_in_its_tail_and_streaming_before_it(
        sinks in 0usize..40, window in 1usize..40, tail in 0usize..30,
        start in 0usize..100, rows in 1usize..20, after in 0usize..60,
    ) {
        let total = start + rows + after;
        let spec = format!("tri-shape:sinks={sinks},window={window},tail={tail}");
        let dense = after < tail;
        for (offset, row) in mask(&spec, Phase::Prefill, start, rows, total).into_iter().enumerate() {
            let query = start + offset;
            for (key, read) in row.into_iter().enumerate() {
                prop_assert_eq!(read, key <= query && (dense || key < sinks || query - key < window));
            }
        }
        let spec = format!("{spec},dense_layers=2");
        prop_assert_eq!(select(&spec, Phase::Prefill, start, rows, total), Selection::full(start + rows));
    }

    #[test]
    fn log_stride_reads_window_globals_and_powers_of_two_back(
        window in 1usize..40, globals in proptest::collection::vec(0usize..150, 0..4),
        start in 0usize..400, rows in 1usize..20, decode: bool,
    ) {
        let phase = if decode { Phase::Decode } else { Phase::Prefill };
        let texts: Vec<String> = globals.iter().map(usize::to_string).collect();
        let list = if texts.is_empty() { "none".to_owned() } else { texts.join("+") };
        let spec = format!("log-stride:window={window},globals={list}");
        for (offset, row) in mask(&spec, phase, start, rows, start + rows).into_iter().enumerate() {
            let query = start + offset;
            for (key, read) in row.into_iter().enumerate() {
                let listed = globals.contains(&key) || (key < query && (query - key).is_power_of_two());
                prop_assert_eq!(read, key <= query && (query - key < window || listed));
            }
        }
    }

    #[test]
    fn landmarks_stand_for_every_block_a_query_reads_nothing_of(
        window in 1usize..40, block in 1usize..30, start in 0usize..200, rows in 1usize..20,
    ) {
        let spec = format!("log-stride:window={window},block={block},landmarks=1");
        let selection = select(&spec, Phase::Prefill, start, rows, start + rows);
        for query in start..start + rows {
            for number in 0..(start + rows).div_ceil(block) {
                let span = Span::new(number * block, (number + 1) * block);
                let unread = span.end <= query && span.range().all(|key| !selection.contains(query, key));
                let named = selection.summaries().contains(&span) && selection.summarized(query, span, true) > 0;
                prop_assert_eq!(named, unread);
            }
        }
    }

    #[test]
    fn any_text_is_a_policy_or_a_typed_error(text in "[a-z0-9:=, -]{0,30}") {
        if let Ok(spec) = text.parse::<PolicySpec>() {
            prop_assert_eq!(spec.to_string().parse::<PolicySpec>().unwrap().to_string(), spec.to_string());
        }
    }
}

#[test]
fn every_policy_is_built_in_the_phases_it_supports_and_refused_in_the_others() {
    for info in catalogue() {
        let spec: PolicySpec = info.name.parse().unwrap();
        for phase in [Phase::Prefill, Phase::Decode] {
            match build(&spec, phase) {
                Ok(_) => assert!(info.supports(phase)),
                Err(PolicyError::UnsupportedPhase { .. }) => assert!(!info.supports(phase)),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_spec_prints_with_all_its_parameters_and_reads_back() {
    let spec: PolicySpec = "streaming:window=7".parse().unwrap();
    assert_eq!(spec.to_string(), "streaming:sinks=64,window=7");
    assert_eq!(spec.to_string().parse::<PolicySpec>().unwrap(), spec);
    assert_eq!(PolicySpec::full().to_string(), "full");
    let text = "tri-shape:sinks=1,window=2,tail=3,dense_layers=4,delta=64,means=32,from=9";
    let spec: PolicySpec = text.parse().unwrap();
    assert_eq!((spec.delta(), spec.from_tokens()), (Some(64), Some(9)));
    assert_eq!(spec.summary_tokens(), Some(32));
    assert_eq!(spec.to_string(), text);
    let off = spec.with("delta", "off").unwrap();
    assert_eq!(off.to_string(), text.replace(",delta=64", ""));
    assert_eq!(off.with("delta", "64").unwrap(), spec);
}

#[test]
fn means_stand_for_every_whole_block_before_the_end_under_any_policy_that_keeps_what_it_leaves_out() {
    let mut scene = Scene::new(4, 210, 1, 2, 64);
    let blocks = |count| -> Vec<Span> {
        (0..count)
            .map(|number| Span::new(32 * number, 32 * number + 32))
            .collect()
    };
    for spec in [
        "signs:peak=1000",
        "quest:topk=1",
        "twilight",
        "certified",
        "streaming",
        "log-stride:landmarks=0",
    ] {
        scene.phase = Phase::Decode;
        let selected = |means: &str| {
            scene.select(
                &format!(
                    "{}{means}",
                    spec.to_owned() + if spec.contains(':') { "," } else { ":" }
                ),
                1,
            )
        };
        let (with, without) = (&selected("means=32")[0].2, &selected("means=off")[0].2);
        assert_eq!(with.summaries(), blocks(6), "{spec}");
        assert!(with.summarizes_parts(), "{spec}");
        assert_eq!(without.summaries(), [], "{spec}");
        assert_eq!(with.clone().with_summaries([]), *without, "{spec}");
    }
    // Of a prompt, the blocks that end before a tile's last query.
    let mut prompt = Scene::new(4, 90, 40, 2, 64);
    prompt.phase = Phase::Prefill;
    let tiles = prompt.select("xattention:means=32", 20);
    let named: Vec<usize> = tiles
        .iter()
        .map(|(_, _, selection)| selection.summaries().len())
        .collect();
    assert_eq!(named, [3, 4]);
}

#[test]
fn misspelled_policies_say_what_there_is() {
    for (text, parts) in [
        ("psychic", &["\"psychic\"", "full", "streaming"][..]),
        ("", &["\"\"", "full"]),
        ("streaming:windw=3", &["\"windw\"", "sinks, window"]),
        ("full:window=3", &["\"window\"", "none"]),
        ("streaming:window", &["such as streaming:sinks=64"]),
        ("streaming:", &["such as streaming:sinks=64"]),
        ("streaming:window=0", &["\"0\"", "from 1 on"]),
        ("streaming:window=-3", &["\"-3\"", "whole number"]),
        ("streaming:window=99999999999999999999", &["whole number"]),
        ("streaming:window=1,window=2", &["twice"]),
        ("log-stride:globals=1+x", &["\"1+x\"", "joined by +"]),
        ("log-stride:landmarks=2", &["\"2\"", "from 0 to 1"]),
        ("h2o:protect=9-3", &["\"9-3\"", "ranges joined by +"]),
        ("quest:from=soon", &["\"soon\"", "tokens, or auto"]),
        ("streaming:delta=0", &["\"0\"", "from 1 on, or off"]),
        ("full:delta=64", &["\"64\"", "sparse attention to prompts"]),
        ("quest:delta=64", &["\"64\"", "sparse attention to prompts"]),
        ("quest:means=0", &["\"0\"", "from 1 on, or off"]),
        ("full:means=64", &["\"64\"", "leaves out and keeps"]),
        ("snapkv:means=64", &["\"64\"", "leaves out and keeps"]),
        ("log-stride:means=64", &["\"64\"", "already reads means"]),
    ] {
        let message = text.parse::<PolicySpec>().unwrap_err().to_string();
        for part in parts {
            assert!(message.contains(part), "{text}: no {part:?} in {message}");
        }
    }
}

const SHAPE: PolicyShape = PolicyShape {
    kv_heads: 2,
    group: 4,
    head_dim: 64,
    chunk_tokens: 512,
};

fn context_of(tokens: usize, layer: usize) -> SelectContext<'static> {
    SelectContext {
        phase: Phase::Prefill,
        layer,
        layers: 3,
        kv_head: 0,
        chunk_start: tokens - 1,
        tokens,
        total_tokens: tokens,
        page_tokens: 64,
        scale: 0.2,
        soft_cap: None,
        pages: &[],
        signs: None,
    }
}

#[test]
fn short_sequences_are_read_densely_up_to_the_length_given_or_the_break_even() {
    let cost = CostModel::default();
    for info in catalogue() {
        for phase in [Phase::Prefill, Phase::Decode]
            .into_iter()
            .filter(|phase| info.supports(*phase))
        {
            let spec: PolicySpec = info.name.parse().unwrap();
            let from = dense_below(&spec, phase, &SHAPE, &cost);
            assert_eq!(
                from,
                cost.break_even_tokens(&spec, phase, &SHAPE).unwrap_or(0),
                "{spec}"
            );
            assert_eq!(dense_below(&spec.with("from", "7").unwrap(), phase, &SHAPE, &cost), 7);
        }
    }
    // A slower estimate pays only for longer texts, a free one always.
    let vertical: PolicySpec = "vertical-slash".parse().unwrap();
    let even = |score_ns: f64| CostModel { score_ns, ..cost }.break_even_tokens(&vertical, Phase::Prefill, &SHAPE);
    assert!(even(1e-9) <= even(cost.score_ns));
    assert_eq!(even(1e9), None);

    // The cost of queries that read everything grows with their number.
    let cost_of = |spec: &str| {
        let spec: PolicySpec = spec.parse().unwrap();
        cost.relative_cost(&spec, Phase::Prefill, &SHAPE, 16_384, None)
    };
    let (plain, few) = (cost_of("xattention"), cost_of("xattention:delta=64"));
    assert!(plain < few && few < plain + 0.05 && few < cost_of("xattention:delta=16"));
    // So does that of means.
    assert!((cost_of("xattention:means=64") - plain - 1.0 / 64.0).abs() < 1e-9);

    let rules: PolicyRules = "streaming:sinks=2,window=3,from=50".parse().unwrap();
    assert_eq!(rules.to_string(), "streaming:sinks=2,window=3,from=50");
    let set = PolicySet::new(&rules, Phase::Prefill, &[SHAPE; 3], &cost).unwrap();
    let data = [0.0; 64];
    let select = |tokens: usize| {
        let query = QueryTile {
            data: &data,
            rows: 1,
            row_stride: 64,
            group: 1,
            head_dim: 64,
            start: tokens - 1,
        };
        set.layer(1)[0].select(&query, &context_of(tokens, 1))
    };
    assert_eq!(select(49), Selection::full(49));
    let corrected: PolicyRules = "streaming:delta=8,from=50".parse().unwrap();
    let corrected = PolicySet::new(&corrected, Phase::Prefill, &[SHAPE; 3], &cost).unwrap();
    let delta = |tokens: usize| corrected.layer(1)[0].delta(&context_of(tokens, 1));
    assert_eq!([delta(49), delta(50)], [None, Some(8)]);
    assert_eq!(set.layer(1)[0].delta(&context_of(50, 1)), None);
    assert_eq!(select(50).pair_count(49, 1), 5);
}

#[test]
fn rules_give_layers_and_heads_policies_of_their_own() {
    let streaming = |window: usize| format!("streaming:window={window}").parse::<PolicySpec>().unwrap();
    let rules = PolicyRules {
        base: streaming(1),
        rules: vec![
            PolicyRule {
                layers: vec![1..=1],
                kv_heads: vec![],
                policy: streaming(2),
            },
            PolicyRule {
                layers: vec![1..=1, 2..=9],
                kv_heads: vec![1..=1],
                policy: streaming(3),
            },
        ],
    };
    let names = [(0, 0, 1), (0, 1, 1), (1, 0, 2), (1, 1, 3), (2, 0, 1), (2, 1, 3)];
    for (layer, kv_head, window) in names {
        assert_eq!(*rules.policy(layer, kv_head), streaming(window));
    }
    assert_eq!(rules.to_string(), "streaming:sinks=64,window=1 and 2 rules");
    let refused = PolicyRules {
        base: PolicySpec::full(),
        rules: vec![PolicyRule {
            layers: vec![],
            kv_heads: vec![0..=0],
            policy: "quest".parse().unwrap(),
        }],
    };
    let refused = refused.check(Phase::Prefill, 512).unwrap_err();
    assert!(matches!(refused, PolicyError::UnsupportedPhase { policy: "quest", .. }));
}
