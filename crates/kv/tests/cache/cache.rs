//! A cache returns what was appended, over page boundaries, rollbacks and refusals.

use crate::testing::{all_contents, append_all, contents, shape, tokens};
use proptest::prelude::*;
use riffle_attention::{Format, PageView};
use riffle_kv::{CacheShape, KvCache, KvError, LayerShape, LayerShapes};

#[test]
fn lengths_around_a_page_boundary_read_back() {
    for page_tokens in [16, 48, 256] {
        for length in [1, page_tokens - 1, page_tokens, page_tokens + 1, 3 * page_tokens] {
            let shape = shape(page_tokens, Format::F32);
            let mut cache = KvCache::new(shape, None).unwrap();
            append_all(&mut cache, 7, length);
            assert_eq!(cache.usage().pages, shape.pages_for(length));
            assert_eq!(cache.usage().tokens, length);
            for layer in 0..shape.layers.count() {
                let (keys, values) = (
                    tokens(&shape, 7 + 2 * layer as u64, 0, length),
                    tokens(&shape, 8 + 2 * layer as u64, 0, length),
                );
                for kv_head in 0..shape.layer(0).kv_heads {
                    let head = |source: &[f32]| -> Vec<u32> {
                        let rows = source.chunks(shape.layer(0).kv_heads * shape.layer(0).key_width);
                        rows.flat_map(|row| {
                            row[kv_head * shape.layer(0).key_width..][..shape.layer(0).key_width].iter()
                        })
                        .map(|x| x.to_bits())
                        .collect()
                    };
                    assert_eq!(contents(&cache, layer, kv_head), (head(&keys), head(&values)));
                }
            }
        }
    }
}

#[test]
fn formats_read_back_within_their_rounding() {
    // Largest error of a value of magnitude at most 1.
    let bound = |format| match format {
        Format::F32 => 0.0,
        Format::F16 => 1.0 / 2048.0 / 2.0,
        Format::Bf16 => 1.0 / 256.0 / 2.0,
        // Half a step of a block's scale, and the scale's own rounding.
        Format::Q8_0 => 0.5 / 127.0 + 1.0 / 2048.0,
        // The bound of 4 bits, the coarsest format.
        _ => 1.0 / 8.0 + 1.0 / 2048.0,
    };
    for key_format in Format::ALL {
        for value_format in Format::ALL {
            let shape = CacheShape {
                key_format,
                value_format,
                ..shape(32, Format::F32)
            };
            let mut exact = KvCache::new(
                CacheShape {
                    key_format: Format::F32,
                    value_format: Format::F32,
                    ..shape
                },
                None,
            )
            .unwrap();
            let mut cache = KvCache::new(shape, None).unwrap();
            append_all(&mut exact, 3, 45);
            append_all(&mut cache, 3, 45);
            for ((keys, values), (exact_keys, exact_values)) in all_contents(&cache).iter().zip(all_contents(&exact)) {
                for (format, found, expected) in [(key_format, keys, exact_keys), (value_format, values, exact_values)]
                {
                    for (a, b) in found.iter().zip(expected) {
                        let error = (f32::from_bits(*a) - f32::from_bits(b)).abs();
                        assert!(error <= bound(format), "{} off by {error}", format.name());
                    }
                }
            }
        }
    }
}

#[test]
fn a_cache_rolled_back_and_filled_again_equals_a_fresh_one() {
    for format in Format::ALL {
        for (first, keep) in [(100, 37), (100, 64), (64, 0), (33, 32), (20, 50)] {
            let shape = shape(32, format);
            let mut cache = KvCache::new(shape, None).unwrap();
            append_all(&mut cache, 1, keep.min(first));
            append_all(&mut cache, 99, first - keep.min(first));
            cache.truncate(keep);
            append_all(&mut cache, 1, 80);

            let mut fresh = KvCache::new(shape, None).unwrap();
            append_all(&mut fresh, 1, keep.min(first) + 80);
            assert_eq!(all_contents(&cache), all_contents(&fresh));
            assert_eq!(cache.usage().pages, fresh.usage().pages);
        }
    }
}

#[test]
fn layers_grow_on_their_own_and_are_cut_together() {
    let shape = shape(16, Format::F32);
    let mut cache = KvCache::new(shape, None).unwrap();
    let (keys, values) = (tokens(&shape, 0, 0, 40), tokens(&shape, 1, 0, 40));
    cache.append(0, &keys, &values).unwrap();
    assert_eq!((cache.tokens(0), cache.tokens(1), cache.usage().tokens), (40, 0, 40));
    assert_eq!(cache.read().pages(1, 0).len(), 0);
    cache.truncate(20);
    assert_eq!((cache.tokens(0), cache.tokens(1)), (20, 0));
    assert_eq!(cache.usage().pages, 2 * shape.layer(0).kv_heads);
}

#[test]
fn layers_and_heads_that_do_not_exist_are_refused_or_empty() {
    let shape = shape(16, Format::F16);
    let mut cache = KvCache::new(shape, None).unwrap();
    append_all(&mut cache, 0, 5);
    {
        let reader = cache.read();
        assert_eq!(reader.pages(2, 0).len() + reader.pages(0, 3).len(), 0);
    }
    assert_eq!(cache.tokens(2), 0);
    let token = tokens(&shape, 0, 0, 1);
    let message = cache.append(2, &token, &token).unwrap_err().to_string();
    assert_eq!(message, "layer 2 does not exist: the KV cache has 2 layers");
    for (keys, values) in [(&token[..], &token[1..]), (&token[1..], &token[1..])] {
        assert!(matches!(cache.append(0, keys, values), Err(KvError::Length { .. })));
    }
    assert_eq!(cache.tokens(0), 5);
}

#[test]
fn impossible_shapes_are_refused_by_name() {
    let good = shape(16, Format::F16);
    let of_layers = |count, layer| CacheShape {
        layers: LayerShapes::alike(count, layer),
        ..good
    };
    for (bad, name) in [
        (of_layers(0, good.layer(0)), "layers"),
        (of_layers(2, LayerShape::new(usize::MAX, 16)), "kv_heads"),
        (of_layers(2, LayerShape::new(2, 24)), "key_width"),
        (
            of_layers(
                2,
                LayerShape {
                    value_width: 0,
                    ..good.layer(0)
                },
            ),
            "value_width",
        ),
        (CacheShape { page_tokens: 0, ..good }, "page_tokens"),
        (
            CacheShape {
                page_tokens: 40,
                ..good
            },
            "page_tokens",
        ),
        (
            CacheShape {
                page_tokens: 2048,
                ..good
            },
            "page_tokens",
        ),
    ] {
        let error = KvCache::new(bad, None).err().expect(name);
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Append(usize),
    AppendToOneLayer(usize, usize),
    Truncate(usize),
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0usize..90).prop_map(Step::Append),
        1 => (0usize..2, 0usize..60).prop_map(|(layer, count)| Step::AppendToOneLayer(layer, count)),
        3 => (0usize..200).prop_map(Step::Truncate),
        1 => Just(Step::Clear),
    ];
    proptest::collection::vec(step, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares any sequence of steps with one `Vec` per (layer, head), under a budget.
    #[test]
    fn a_cache_behaves_as_a_vector_of_tokens(
        steps in steps(),
        page_stripes in 1usize..5,
        budget_tokens in 100usize..400,
    ) {
        let shape = shape(16 * page_stripes, Format::F32);
        let budget = shape.bytes_for(budget_tokens);
        let mut cache = KvCache::new(shape, Some(budget)).unwrap();
        let mut model: Vec<Vec<f32>> = vec![Vec::new(); shape.layers.count()]; // keys of each layer
        let width = shape.layer(0).kv_heads * shape.layer(0).key_width;
        for (number, step) in steps.iter().enumerate() {
            match *step {
                Step::Clear => {
                    cache.clear();
                    model.iter_mut().for_each(Vec::clear);
                }
                Step::Truncate(keep) => {
                    cache.truncate(keep);
                    model.iter_mut().for_each(|keys| keys.truncate(keep * width));
                }
                Step::Append(count) | Step::AppendToOneLayer(_, count) => {
                    let layers = match *step {
                        Step::AppendToOneLayer(layer, _) => layer..layer + 1,
                        _ => 0..shape.layers.count(),
                    };
                    for layer in layers {
                        let keys = tokens(&shape, number as u64, layer * 1000, count);
                        let values: Vec<f32> = keys.iter().map(|x| -x).collect();
                        let held: usize = model.iter().map(|keys| (keys.len() / width).div_ceil(shape.page_tokens)).sum();
                        let now = model[layer].len() / width;
                        let more = (now + count).div_ceil(shape.page_tokens) - now.div_ceil(shape.page_tokens);
                        let fits = (held + more) * shape.layer(0).kv_heads <= shape.pages_for(budget_tokens);
                        prop_assert_eq!(cache.append(layer, &keys, &values).is_ok(), fits);
                        if fits {
                            model[layer].extend(keys);
                        }
                    }
                }
            }
            prop_assert!(cache.usage().bytes_by_tier.total() <= budget);
            prop_assert!(cache.mapped_bytes() <= budget);
            prop_assert!(cache.mapped_bytes() >= cache.usage().bytes_by_tier.total());
        }
        for layer in 0..shape.layers.count() {
            for kv_head in 0..shape.layer(0).kv_heads {
                let (keys, values) = contents(&cache, layer, kv_head);
                let rows = model[layer].chunks(width);
                let expected: Vec<f32> =
                    rows.flat_map(|row| row[kv_head * shape.layer(0).key_width..][..shape.layer(0).key_width].to_vec()).collect();
                prop_assert!(keys.iter().zip(&expected).all(|(a, b)| *a == b.to_bits()));
                prop_assert!(values.iter().zip(&expected).all(|(a, b)| *a == (-b).to_bits()));
                prop_assert_eq!(keys.len(), expected.len());
            }
        }
    }
}

#[test]
fn tokens_that_come_encoded_are_those_that_are_appended() {
    for format in Format::ALL {
        let shape = shape(32, format);
        let (mut plain, mut given) = (KvCache::new(shape, None).unwrap(), KvCache::new(shape, None).unwrap());
        append_all(&mut plain, 7, 9);
        append_all(&mut given, 7, 9);
        for count in [1, 30, 64, 5] {
            let (keys, values) = (tokens(&shape, 1, 100, count), tokens(&shape, 2, 100, count));
            plain.append(0, &keys, &values).unwrap();
            // A cache with one large page per head encodes the tokens in the same lanes.
            let mut encoders: Vec<KvCache> = Vec::new();
            let held: Vec<usize> = (0..shape.layer(0).kv_heads)
                .map(|head| given.head_tokens(0, head))
                .collect();
            for held in &held {
                let large = CacheShape {
                    layers: LayerShapes::alike(1, shape.layer(0)),
                    page_tokens: 256,
                    ..shape
                };
                let mut encoder = KvCache::new(large, None).unwrap();
                let before = tokens(&shape, 3, 0, held % 16);
                encoder.append(0, &before, &before).unwrap();
                encoder.append(0, &keys, &values).unwrap();
                encoders.push(encoder);
            }
            let readers: Vec<_> = encoders.iter().map(KvCache::read).collect();
            let views = readers
                .iter()
                .zip(&held)
                .enumerate()
                .map(|(head, (encoder, held))| PageView {
                    start: held / 16 * 16,
                    ..encoder.pages(0, head).next().unwrap()
                });
            let views: Vec<PageView<'_>> = views.collect();
            given
                .append_encoded::<KvError>(0, count, |now| {
                    let growth = |held: &usize| (*held, (held + count).div_ceil(32) - held / 32);
                    let expected: Vec<_> = held.iter().map(growth).collect();
                    let now: Vec<_> = now.iter().map(|head| (head.held, head.pages.len())).collect();
                    assert_eq!(now, expected);
                    Ok(views)
                })
                .unwrap();
            for head in 0..shape.layer(0).kv_heads {
                assert_eq!(
                    contents(&given, 0, head),
                    contents(&plain, 0, head),
                    "{format:?} {count}"
                );
            }
            // A failure leaves the cache as it was.
            let error = given
                .append_encoded::<KvError>(0, count, |_| Ok(Vec::new()))
                .unwrap_err();
            assert!(error.to_string().contains("another shape"), "{error}");
            assert_eq!(
                (given.tokens(0), given.usage().pages),
                (plain.tokens(0), plain.usage().pages)
            );
        }
    }
}
