//! Keys and values of different widths, through every entry point, against the reference in f64.

use crate::attend::tolerance;
use crate::rounded::six_deviations;
use crate::rows::on_threads;
use crate::testing::*;
use riffle_attention::*;

/// Widths of keys and of values.
const WIDTHS: [(usize, usize); 4] = [(16, 48), (64, 32), (192, 128), (576, 512)];

const ARITHMETICS: [Arithmetic; 3] = [Arithmetic::Expanded, Arithmetic::Rounded, Arithmetic::Fused];

/// Five rows at the end of partial pages with a gap between them.
fn shape((head_dim, value_dim): (usize, usize), formats: (Format, Format), selection: Selection) -> Shape {
    Shape {
        seed: 21,
        head_dim,
        value_dim,
        group: 3,
        rows: 5,
        start: 900,
        page_tokens: 208,
        lengths: vec![208, 131, 0, 208, 73],
        formats,
        selection,
        soft_cap: None,
        causal: true,
    }
}

/// Tolerance for the shape's outputs.
fn allowed(shape: &Shape, arithmetic: Arithmetic) -> f64 {
    match arithmetic {
        Arithmetic::Rounded => six_deviations(shape.head_dim),
        _ => tolerance(shape),
    }
}

/// The job alone, twice in a batch, and twice in a stream of two pages at a time.
fn every_way(shape: &Shape, views: &[PageView], options: &AttendOptions) -> [Partial; 5] {
    let queries = shape.queries();
    let job = |pages| AttendJob {
        queries: shape.tile(&queries),
        kv: KvView {
            head_dim: shape.head_dim,
            pages,
        },
        selection: &shape.selection,
    };
    let mut alone = shape.partial();
    attend(
        &job(views).queries,
        &job(views).kv,
        &shape.selection,
        options,
        &mut alone,
    )
    .unwrap();
    let (mut batch, mut streamed) = ([shape.partial(), shape.partial()], [shape.partial(), shape.partial()]);
    attend_batch(&[job(views); 2], options, &mut batch).unwrap();
    let tile = shape.tile(&queries);
    let mut stream = BatchStream::new([&tile, &tile], options);
    for pages in views.chunks(2) {
        stream.attend(&[job(pages); 2], options, &mut streamed).unwrap();
    }
    stream.finish(&mut streamed).unwrap();
    let ([first, second], [third, fourth]) = (batch, streamed);
    [alone, first, second, third, fourth]
}

#[test]
fn values_narrower_and_wider_than_keys_equal_the_reference() {
    let some = Selection::from_spans([Span::new(3, 5), Span::new(130, 301), Span::new(640, 641)])
        .with_row_window(40)
        .with_diagonals([7, 64, 291, 300])
        .with_row_extras(900, (0..5).map(|row| [row * 7, 64, 700 - row]));
    let scattered = Selection::from_spans((5..900).step_by(37).map(|token| Span::new(token, token + 1)));
    for widths in WIDTHS {
        for (at, format) in Format::ALL.into_iter().enumerate() {
            let formats = (format, Format::ALL[(at + widths.0 / 16) % Format::ALL.len()]);
            for selection in [Selection::full(905), some.clone(), scattered.clone()] {
                let shape = shape(widths, formats, selection);
                let pages = shape.pages();
                let views: Vec<_> = pages.iter().map(Page::view).collect();
                let exact = shape.exact(&views);
                for arithmetic in ARITHMETICS {
                    let options = shape.options().with_arithmetic(arithmetic);
                    for partial in every_way(&shape, &views, &options) {
                        assert_matches(&partial, &exact, allowed(&shape, arithmetic));
                    }
                }
            }
        }
    }
}

#[test]
fn threads_share_a_long_cache_whose_values_have_their_own_width() {
    for (at, widths) in WIDTHS.into_iter().enumerate() {
        let shape = Shape {
            rows: 2,
            start: 8900,
            page_tokens: 1024,
            lengths: vec![1024, 1024, 1000, 1024, 1024, 1024, 1024, 1024, 710],
            ..shape(widths, (Format::ALL[at], Format::ALL[at + 1]), Selection::full(9000))
        };
        let pages = shape.pages();
        let views: Vec<_> = pages.iter().map(Page::view).collect();
        let exact = shape.exact(&views);
        let options = shape.options().with_arithmetic(Arithmetic::Fused);
        let [_, alone, ..] = every_way(&shape, &views, &options);
        on_threads(|| {
            let [_, batched @ ..] = every_way(&shape, &views, &options);
            for partial in batched {
                assert_eq!(partial, alone);
                assert_matches(&partial, &exact, allowed(&shape, Arithmetic::Fused));
            }
        });
    }
}

/// Pages in Riffle's own layout with the tokens of another engine's.
fn own_layout(pages: &[RowPage], (key_dim, value_dim): (usize, usize)) -> Vec<Page> {
    let own = pages.iter().map(|page| {
        let (start, tokens) = (page.start, page.tokens);
        let keys = plane(Format::F32, tokens.next_multiple_of(16), key_dim);
        let values = plane(Format::F32, tokens.next_multiple_of(16), value_dim);
        let mut own = Page {
            start,
            tokens,
            keys,
            values,
        };
        write_keys(&mut own.keys.plane_mut(), key_dim, 0, tokens, page.keys, page.stride).unwrap();
        let stride = page.value_stride;
        write_values(&mut own.values.plane_mut(), value_dim, 0, tokens, page.values, stride).unwrap();
        own
    });
    own.collect()
}

/// Attends to the pages of another engine's cache, which hold 200 tokens, in every arithmetic.
fn check_rows(pages: &[RowPage], widths: (usize, usize)) {
    let shape = Shape {
        start: 195,
        ..shape(
            widths,
            (Format::F32, Format::F32),
            Selection::full(150).with_row_window(9),
        )
    };
    let own = own_layout(pages, widths);
    let views: Vec<_> = own.iter().map(Page::view).collect();
    let (exact, queries) = (shape.exact(&views), shape.queries());
    let kv = RowView {
        head_dim: widths.0,
        pages,
    };
    let job = RowJob {
        queries: shape.tile(&queries),
        kv,
        selection: &shape.selection,
    };
    for arithmetic in ARITHMETICS {
        let options = shape.options().with_arithmetic(arithmetic);
        let mut partials = [shape.partial()];
        attend_rows_batch(&[job], &options, &mut partials).unwrap();
        assert_matches(&partials[0], &exact, allowed(&shape, arithmetic));
    }
}

#[test]
fn rows_of_other_engines_equal_the_reference_at_their_own_widths() {
    // 13 blocks of 16 tokens, two KV heads.
    let (table, mut noise) = ([3, 0, 12, 7, 1, 2, 9, 11, 4, 10, 6, 8, 5], Noise::new(8));
    for widths in WIDTHS {
        let (keys, values) = (noise.values(13 * 32 * widths.0), noise.values(13 * 32 * widths.1));
        for order in [BlockCache::tokens_first, BlockCache::heads_first] {
            let cache = order(Rows::F32(&keys), Rows::F32(&values), 16, 2, widths.0).with_value_dim(widths.1);
            check_rows(&cache.pages(1, table, 200).unwrap(), widths);
        }
    }
    // Values that are prefixes of their keys.
    let latent = noise.values(200 * 576);
    let page = RowPage {
        start: 0,
        tokens: 200,
        keys: Rows::F32(&latent),
        values: Rows::F32(&latent),
        stride: 576,
        value_stride: 576,
    };
    check_rows(&[page], (576, 512));
}

/// The values in the selection's spans, weighted by a scan.
fn scanned(shape: &Shape, pages: &[PageView]) -> Partial {
    let (queries, kv) = (
        shape.queries(),
        KvView {
            head_dim: shape.head_dim,
            pages,
        },
    );
    let (mut scan, mut partial) = (Scan::default(), shape.partial());
    let end = shape.start + shape.rows;
    scan.run(&shape.tile(&queries), &kv, end, &shape.options()).unwrap();
    attend_scanned(&scan, &shape.selection, &kv, &mut partial).unwrap();
    partial
}

/// Widths of latents with their rotated part, and of the latents.
const LATENT_WIDTHS: [(usize, usize); 3] = [(48, 32), (192, 192), (576, 512)];

#[test]
fn values_that_are_the_beginning_of_their_keys_equal_the_reference_and_the_same_values_beside_them() {
    let some = Selection::from_spans([Span::new(3, 5), Span::new(130, 301), Span::new(640, 641)])
        .with_row_window(40)
        .with_diagonals([7, 64, 291, 300])
        .with_row_extras(900, (0..5).map(|row| [row * 7, 64, 700 - row]));
    let scattered = Selection::from_spans((5..900).step_by(37).map(|token| Span::new(token, token + 1)));
    for (widths, format) in LATENT_WIDTHS
        .into_iter()
        .flat_map(|widths| Format::ALL.map(|format| (widths, format)))
    {
        for selection in [Selection::full(905), some.clone(), scattered.clone()] {
            let shape = shape(widths, (format, Format::F32), selection);
            let mut pages = shape.pages();
            for page in &mut pages {
                let (tokens, mut keys) = (page.tokens, vec![0.0; page.tokens * widths.0]);
                read_keys(&page.keys.plane(), widths.0, 0, tokens, &mut keys, widths.0).unwrap();
                write_values(&mut page.values.plane_mut(), widths.1, 0, tokens, &keys, widths.0).unwrap();
            }
            let beside: Vec<_> = pages.iter().map(Page::view).collect();
            let latent: Vec<_> = beside
                .iter()
                .map(|page| PageView {
                    values: page.keys,
                    ..*page
                })
                .collect();
            let exact = shape.exact(&latent);
            for arithmetic in ARITHMETICS {
                let options = shape.options().with_arithmetic(arithmetic);
                let found = every_way(&shape, &latent, &options);
                for (found, beside) in found.iter().zip(every_way(&shape, &beside, &options)) {
                    assert_matches(found, &exact, allowed(&shape, arithmetic));
                    assert_eq!(*found, beside, "{widths:?} {format:?} {arithmetic:?}");
                }
            }
            assert_eq!(
                scanned(&shape, &latent),
                scanned(&shape, &beside),
                "{widths:?} {format:?}"
            );
        }
    }
}

#[test]
fn a_latent_page_whose_values_would_be_wider_than_its_keys_is_refused() {
    let shape = shape((32, 48), (Format::F16, Format::F16), Selection::full(900));
    let pages = shape.pages();
    let latent: Vec<_> = pages
        .iter()
        .map(|page| PageView {
            values: page.keys.plane(),
            ..page.view()
        })
        .collect();
    let queries = shape.queries();
    let kv = KvView {
        head_dim: 32,
        pages: &latent,
    };
    let attended = attend(
        &shape.tile(&queries),
        &kv,
        &shape.selection,
        &shape.options(),
        &mut shape.partial(),
    );
    assert!(matches!(
        attended,
        Err(AttendError::Mismatch {
            expected: 32,
            found: 48,
            ..
        })
    ));
}

#[test]
fn planes_that_are_short_for_the_value_width_are_refused() {
    let (data, values) = ([0.0f32; 16 * 32], [0.0f32; 16 * 32]);
    let pages = [PageView {
        start: 0,
        tokens: 16,
        keys: Plane::F32(&data),
        values: Plane::F32(&values),
    }];
    let kv = KvView {
        head_dim: 32,
        pages: &pages,
    };
    let queries = QueryTile {
        data: &data,
        rows: 1,
        row_stride: 32,
        group: 1,
        head_dim: 32,
        start: 15,
    };
    let run = |value_dim: usize| {
        let mut partial = Partial::new(1, 1, value_dim);
        attend(
            &queries,
            &kv,
            &Selection::full(16),
            &AttendOptions::new(1.0),
            &mut partial,
        )
    };
    assert!(run(16).is_ok() && run(32).is_ok());
    assert!(matches!(run(48), Err(AttendError::Short { .. })));
    assert!(matches!(run(24), Err(AttendError::HeadDim { head_dim: 24 })));
}
