//! `Arithmetic::Rounded`: its error, and the dependencies of a row's bits.

use crate::laws;
use crate::testing::*;
use proptest::prelude::*;
use riffle_attention::*;

fn rounded(shape: &Shape) -> AttendOptions<'static> {
    shape.options().with_arithmetic(Arithmetic::Rounded)
}

/// Largest error of an output of a random [`Shape`], from the bounds in the documentation of [`Arithmetic::Rounded`].
/// Elements of queries lie in −3..3, of keys in −2..2 (less the block's first key in −4..4), of values in −1..1. An
/// element's error is uniform between its bounds, so a logit's error has a deviation of √6/L. The output error is
/// largest, √3/L, if two keys share the weight and have opposite values. The bounds of values and weights are below
/// 1/1000.
pub(crate) fn six_deviations(head_dim: usize) -> f64 {
    let levels = (2f64.powi(31) / head_dim as f64).sqrt();
    6.0 * 3f64.sqrt() / levels + 1e-3
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn outputs_are_those_of_the_reference_up_to_six_deviations_of_the_rounding(shape in shape()) {
        laws::equals_the_reference(&shape, &rounded(&shape), six_deviations(shape.head_dim));
    }

    #[test]
    fn page_by_page_gives_the_same_bits_as_one_call(shape in shape()) {
        laws::pages_may_come_one_by_one(&shape, &rounded(&shape));
    }

    #[test]
    fn rows_have_the_same_bits_in_any_tile(shape in shape(), cut in 0usize..40) {
        prop_assume!(shape.rows > 1);
        let (pages, queries) = (shape.pages(), shape.queries());
        let views: Vec<_> = pages.iter().map(Page::view).collect();
        let kv = shape.kv(&views);
        let whole = laws::attended(&shape, &pages, &rounded(&shape));
        let cut = cut % shape.rows;
        for (first, rows) in [(0, cut), (cut, shape.rows - cut)] {
            let tile = QueryTile {
                data: &queries[first * shape.row_stride()..],
                rows,
                start: shape.start + first,
                ..shape.tile(&queries)
            };
            let mut part = Partial::new(rows, shape.group, shape.value_dim);
            attend(&tile, &kv, &shape.selection, &rounded(&shape), &mut part).unwrap();
            let heads = first * shape.group..(first + rows) * shape.group;
            prop_assert_eq!(&part.m, &whole.m[heads.clone()]);
            prop_assert_eq!(&part.l, &whole.l[heads.clone()]);
            prop_assert_eq!(&part.o, &whole.o[heads.start * shape.value_dim..heads.end * shape.value_dim]);
        }
    }

    #[test]
    fn a_later_token_never_changes_an_earlier_row(shape in shape(), from in 0usize..600) {
        prop_assume!(shape.causal);
        laws::later_tokens_change_no_earlier_row(&shape, &rounded(&shape), from);
    }
}

/// One head with `tokens` keys in pages of 256, and the outputs of two rows at the end, rounded and exact.
fn outputs(keys: &[f32], values: &[f32], queries: &[f32], head_dim: usize) -> (Vec<f32>, Vec<f64>) {
    let tokens = keys.len() / head_dim;
    let pages = keys
        .chunks(256 * head_dim)
        .zip(values.chunks(256 * head_dim))
        .enumerate();
    let pages = pages.map(|(number, (keys, values))| {
        let tokens = keys.len() / head_dim;
        let mut page = Page {
            start: number * 256,
            tokens,
            keys: plane(Format::F32, 256, head_dim),
            values: plane(Format::F32, 256, head_dim),
        };
        write_keys(&mut page.keys.plane_mut(), head_dim, 0, tokens, keys, head_dim).unwrap();
        write_values(&mut page.values.plane_mut(), head_dim, 0, tokens, values, head_dim).unwrap();
        page
    });
    let pages: Vec<Page> = pages.collect();
    let views: Vec<_> = pages.iter().map(Page::view).collect();
    let kv = KvView {
        head_dim,
        pages: &views,
    };
    let rows = queries.len() / head_dim;
    let tile = QueryTile {
        data: queries,
        rows,
        row_stride: head_dim,
        group: 1,
        head_dim,
        start: tokens - rows,
    };
    let (selection, options) = (Selection::full(tokens), AttendOptions::for_head_dim(head_dim));
    let mut partial = Partial::new(rows, 1, head_dim);
    let rounding = options.with_arithmetic(Arithmetic::Rounded);
    attend(&tile, &kv, &selection, &rounding, &mut partial).unwrap();
    let mut out = vec![0.0; rows * head_dim];
    partial.finish_into(&mut out, head_dim, None).unwrap();
    let exact = reference::attend(&tile, &kv, &selection, &options, None).unwrap();
    (out, exact.output)
}

/// ‖found − exact‖ / ‖exact‖.
fn relative_error((found, exact): (Vec<f32>, Vec<f64>)) -> f64 {
    let (mut error, mut norm) = (0.0, 0.0);
    for (found, exact) in found.iter().zip(&exact) {
        error += (f64::from(*found) - exact).powi(2);
        norm += exact.powi(2);
    }
    (error / norm).sqrt()
}

#[test]
fn outputs_are_off_by_a_thousandth_of_their_length_where_logits_spread_by_two() {
    for (head_dim, most) in [(64, 8e-4), (128, 1e-3), (256, 1.2e-3)] {
        let mut noise = Noise::new(head_dim as u64);
        let keys: Vec<f32> = noise.values(700 * head_dim).iter().map(|k| k * 2.0).collect();
        let values = noise.values(700 * head_dim);
        let queries: Vec<f32> = noise.values(40 * head_dim).iter().map(|q| q * 3.0).collect();
        let error = relative_error(outputs(&keys, &values, &queries, head_dim));
        assert!(error < most, "{error} at head_dim {head_dim}");
    }
}

#[test]
fn what_all_keys_have_in_common_costs_no_bits() {
    // One channel of every key is hundreds of times larger than the others, as in models with biased keys.
    let (head_dim, tokens) = (64, 1000);
    let mut noise = Noise::new(3);
    let mut keys = noise.values(tokens * head_dim);
    keys.chunks_exact_mut(head_dim).for_each(|key| key[7] += 300.0);
    let values = noise.values(tokens * head_dim);
    let queries: Vec<f32> = noise.values(4 * head_dim).iter().map(|q| q * 8.0).collect();
    let error = relative_error(outputs(&keys, &values, &queries, head_dim));
    assert!(error < 2e-3, "{error}");
}

#[test]
fn a_long_tail_beside_one_heavy_key_keeps_its_mass() {
    // 1023 weights, each below half a unit of the heavy one's integer: in its block all would round to zero.
    let (head_dim, tokens) = (32, 1024);
    let mut keys = vec![0.0; tokens * head_dim];
    keys[5 * head_dim] = 11.0 * (head_dim as f32).sqrt();
    let mut values = vec![1.0; tokens * head_dim];
    values[5 * head_dim..6 * head_dim].fill(0.0);
    let mut query = vec![0.0; head_dim];
    query[0] = 1.0;
    let (out, exact) = outputs(&keys, &values, &query, head_dim);
    for (out, exact) in out.iter().zip(&exact) {
        assert!((f64::from(*out) - exact).abs() < 0.02 * exact, "{out} for {exact}");
    }
}

#[test]
fn values_of_any_size_and_of_none_are_weighed_right() {
    // The heavy key's value is zero; other values range from 10⁻⁶ to 10⁶.
    let (head_dim, tokens) = (32, 300);
    let mut noise = Noise::new(9);
    let keys = noise.values(tokens * head_dim);
    let mut values = noise.values(tokens * head_dim);
    for (token, value) in values.chunks_exact_mut(head_dim).enumerate() {
        let size = [0.0, 1e-6, 1.0, 1e6][token % 4];
        value.iter_mut().for_each(|x| *x = (*x + 2.0) * size);
    }
    let queries = noise.values(3 * head_dim);
    let error = relative_error(outputs(&keys, &values, &queries, head_dim));
    assert!(error < 1e-3, "{error}");
    // None at all.
    let (out, _) = outputs(&keys, &vec![0.0; tokens * head_dim], &queries, head_dim);
    assert!(out.iter().all(|x| *x == 0.0));
}
