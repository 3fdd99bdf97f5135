//! Laws of every arithmetic; each test lists the options under which it checks a law.

use crate::testing::*;
use riffle_attention::*;

/// A whole call.
pub(crate) fn attended(shape: &Shape, pages: &[Page], options: &AttendOptions) -> Partial {
    let (views, queries): (Vec<_>, _) = (pages.iter().map(Page::view).collect(), shape.queries());
    let kv = shape.kv(&views);
    let mut partial = shape.partial();
    attend(&shape.tile(&queries), &kv, &shape.selection, options, &mut partial).unwrap();
    partial
}

/// The output equals the reference's, which computes in f64.
pub(crate) fn equals_the_reference(shape: &Shape, options: &AttendOptions, tolerance: f64) {
    let pages = shape.pages();
    let views: Vec<_> = pages.iter().map(Page::view).collect();
    assert_matches(&attended(shape, &pages, options), &shape.exact(&views), tolerance);
}

/// A call for each page gives the bits of one call for all pages.
pub(crate) fn pages_may_come_one_by_one(shape: &Shape, options: &AttendOptions) {
    let (pages, queries) = (shape.pages(), shape.queries());
    let mut paged = shape.partial();
    for page in &pages {
        let views = [page.view()];
        let tile = shape.tile(&queries);
        attend(&tile, &shape.kv(&views), &shape.selection, options, &mut paged).unwrap();
    }
    assert_eq!(attended(shape, &pages, options), paged);
}

/// Rows before the token `from` have the same bits for any contents of later tokens, and without later tokens.
/// They have the bits of a single call in a batch too.
pub(crate) fn later_tokens_change_no_earlier_row(shape: &Shape, options: &AttendOptions, from: usize) {
    let run = |pages: &[Page]| {
        let (views, queries): (Vec<_>, _) = (pages.iter().map(Page::view).collect(), shape.queries());
        let job = AttendJob {
            queries: shape.tile(&queries),
            kv: shape.kv(&views),
            selection: &shape.selection,
        };
        let mut batched = [shape.partial()];
        attend_batch(&[job], options, &mut batched).unwrap();
        let [batched] = batched;
        [attended(shape, pages, options), batched]
    };
    let rows = from.saturating_sub(shape.start).min(shape.rows) * shape.group;
    let before = run(&shape.pages());
    for pages in [written_anew(shape, from), cut(shape, from)] {
        for (before, after) in before.iter().zip(&run(&pages)) {
            assert_eq!(before.m[..rows], after.m[..rows]);
            assert_eq!(before.l[..rows], after.l[..rows]);
            let elements = rows * shape.value_dim;
            assert_eq!(before.o[..elements], after.o[..elements]);
        }
    }
}

/// The pages of a shape with other, far larger keys from `from` on.
fn written_anew(shape: &Shape, from: usize) -> Vec<Page> {
    let (mut pages, head_dim, value_dim) = (shape.pages(), shape.head_dim, shape.value_dim);
    let mut noise = Noise::new(shape.seed ^ 77);
    for page in &mut pages {
        for slot in from.saturating_sub(page.start)..page.tokens {
            let key: Vec<f32> = noise.values(head_dim).iter().map(|x| x * 9.0).collect();
            let value = noise.values(value_dim);
            write_keys(&mut page.keys.plane_mut(), head_dim, slot, 1, &key, head_dim).unwrap();
            write_values(&mut page.values.plane_mut(), value_dim, slot, 1, &value, value_dim).unwrap();
        }
    }
    pages
}

/// The pages of a shape for a prompt that ends before `from`.
fn cut(shape: &Shape, from: usize) -> Vec<Page> {
    let pages = shape.pages().into_iter().filter(|page| page.start < from);
    let pages = pages.map(|page| Page {
        tokens: page.tokens.min(from - page.start),
        ..page
    });
    pages.collect()
}
