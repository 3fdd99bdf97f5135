//! Attends to values after a scan has computed the weights.

use alloc::vec::Vec;

use crate::block::stripes_of;
use crate::format::types::F32;
use crate::format::{PlaneFormat, with_plane};
use crate::kernel::Gather;
use crate::latent::LatentRows;
use crate::simd::Level;
use crate::{AttendError, KvView, LANES, PageView, Partial, Scan, Selection};

/// Adds the values in the selection's spans, with the weights of a scan, to `partial`.
///
/// Keys are not read. Windows, diagonals, extras and summaries of the selection are ignored. Tokens are added one by
/// one in ascending order. Attending page by page therefore gives the same bits as one call over all pages.
///
/// # Errors
/// Shapes that disagree, slices that are too short, pages out of order.
pub fn attend_scanned(
    scan: &Scan,
    selection: &Selection,
    kv: &KvView,
    partial: &mut Partial,
) -> Result<(), AttendError> {
    kv.check(partial.head_dim())?;
    let (rows, group) = scan.shape();
    partial.check_shape(rows, group)?;
    let queries = scan.queries();
    let mut first = 0;
    while first < queries {
        let count = (queries - first).min(8);
        let part = ScannedPart {
            scan,
            selection,
            kv,
            value_dim: partial.head_dim(),
            first,
            count,
        };
        match count {
            1 => part.run::<1>(partial),
            2 => part.run::<2>(partial),
            3 | 4 => part.run::<4>(partial),
            _ => part.run::<8>(partial),
        }
        first += count;
    }
    Ok(())
}

/// A part of a scan: up to eight queries.
struct ScannedPart<'a> {
    scan: &'a Scan,
    selection: &'a Selection,
    kv: &'a KvView<'a>,
    /// Elements of one value.
    value_dim: usize,
    first: usize,
    count: usize,
}

/// The tokens to read of one page.
struct Listed<const R: usize> {
    page: usize,
    tokens: Vec<usize>,
    weights: Vec<[f32; R]>,
}

/// Position up to which tokens are listed.
struct ScannedPlace {
    page: usize,
    span: usize,
}

impl ScannedPart<'_> {
    fn run<const R: usize>(&self, partial: &mut Partial) {
        let value_dim = self.value_dim;
        let queries = self.first..self.first + self.count;
        // Sums are relative to the scan's largest logits; rescale the partial's earlier sums to these.
        for query in queries.clone() {
            let (m, top) = (partial.m[query], self.scan.top(query));
            let keep = if m == f32::NEG_INFINITY {
                0.0
            } else {
                crate::math::exp(m - m.max(top))
            };
            if m < top {
                partial.l[query] *= keep;
                partial.o[query * value_dim..(query + 1) * value_dim]
                    .iter_mut()
                    .for_each(|o| *o *= keep);
                partial.m[query] = top;
            }
        }
        let factors: [f32; R] = core::array::from_fn(|r| {
            let query = self.first + r;
            match r < self.count && self.scan.top(query) > f32::NEG_INFINITY {
                true if partial.m[query] == self.scan.top(query) => 1.0,
                true => crate::math::exp(self.scan.top(query) - partial.m[query]),
                false => 0.0,
            }
        });
        let rows: [&[f32]; R] =
            core::array::from_fn(|r| self.scan.weights(self.first + r.min(self.count.saturating_sub(1))));
        let (l, o) = (
            &mut partial.l[queries.clone()],
            &mut partial.o[queries.start * value_dim..queries.end * value_dim],
        );
        let list = || Listed::<R> {
            page: 0,
            tokens: Vec::new(),
            weights: Vec::new(),
        };
        let (mut now, mut next) = (list(), list());
        let first = self.kv.pages.first().map_or(0, |page| page.start);
        let mut place = ScannedPlace {
            page: 0,
            span: self.selection.spans().partition_point(|span| span.end <= first),
        };
        self.list(&mut place, &rows, &mut now);
        while !now.tokens.is_empty() {
            // Prefetch the next page's weights and values before this page's are used.
            self.list(&mut place, &rows, &mut next);
            self.weigh(&rows, &factors, &mut now, l);
            self.gather(&now, o);
            core::mem::swap(&mut now, &mut next);
        }
    }

    /// Lists the tokens to read of the next page, from `place` on, that has any.
    fn list<const R: usize>(&self, place: &mut ScannedPlace, rows: &[&[f32]; R], out: &mut Listed<R>) {
        out.tokens.clear();
        let spans = self.selection.spans();
        while let Some(page) = self.kv.pages.get(place.page) {
            let within = crate::Span::new(page.start, (page.start + page.tokens).min(rows[0].len()));
            while let Some(span) = spans.get(place.span).filter(|span| span.start < within.end) {
                let read = span.intersect(&within);
                out.tokens.extend(read.range().map(|position| position - page.start));
                if span.end > within.end {
                    break;
                }
                place.span += 1;
            }
            place.page += 1;
            if !out.tokens.is_empty() {
                out.page = place.page - 1;
                for row in rows.iter().take(self.count) {
                    F32::fetch(Level::best(), &out.tokens, &row[page.start..], 1);
                }
                self.fetch(out);
                return;
            }
        }
    }

    /// Looks up the weights of the listed tokens and adds them to `l`.
    fn weigh<const R: usize>(&self, rows: &[&[f32]; R], factors: &[f32; R], list: &mut Listed<R>, l: &mut [f32]) {
        let start = self.kv.pages[list.page].start;
        list.weights.clear();
        let weights = list
            .tokens
            .iter()
            .map(|token| core::array::from_fn(|r| rows[r][start + token] * factors[r]));
        list.weights.extend(weights);
        for weights in &list.weights {
            for (l, weight) in l.iter_mut().zip(weights) {
                *l += weight;
            }
        }
    }

    fn fetch<const R: usize>(&self, list: &Listed<R>) {
        let page = &self.kv.pages[list.page];
        if !page.is_latent() {
            let fetch = (Level::best(), &list.tokens[..], self.value_dim);
            with_plane!(Plane page.values, F, values => F::fetch(fetch.0, fetch.1, values, fetch.2));
        }
    }

    fn gather<const R: usize>(&self, list: &Listed<R>, o: &mut [f32]) {
        let level = Level::best();
        let page = &self.kv.pages[list.page];
        if page.is_latent() {
            return self.gather_latent(level, page, list, o);
        }
        let values = page.values;
        let list = Gather {
            tokens: &list.tokens,
            weights: &list.weights,
            o,
            head_dim: self.value_dim,
        };
        with_plane!(Plane values, F, values => F::gather(level, list, values));
    }

    /// [`gather`](Self::gather) of a latent page, stripe by stripe.
    fn gather_latent<const R: usize>(&self, level: Level, page: &PageView, list: &Listed<R>, o: &mut [f32]) {
        let mut rows = LatentRows::default();
        let mut first = 0;
        for tokens in list.tokens.chunk_by(|a, b| a / LANES == b / LANES) {
            let stripe = tokens[0] / LANES;
            let held = (page.tokens - stripe * LANES).min(LANES);
            let keys = stripes_of(page.keys, stripe * LANES, held, self.kv.head_dim);
            let values = rows.stripe(level, keys, held, (self.kv.head_dim, self.value_dim));
            let within: [usize; LANES] = core::array::from_fn(|at| tokens.get(at).map_or(0, |token| token % LANES));
            let weights = &list.weights[first..first + tokens.len()];
            let list = Gather {
                tokens: &within[..tokens.len()],
                weights,
                o: &mut *o,
                head_dim: self.value_dim,
            };
            F32::gather(level, list, values);
            first += tokens.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::testing::{Problem, close, tolerance_of};
    use crate::{Span, attend};

    #[test]
    fn what_a_scan_reads_is_what_attending_to_the_same_tokens_gives() {
        for problem in Problem::assorted() {
            let views: Vec<_> = problem.pages.iter().map(|page| page.view()).collect();
            let kv = KvView {
                head_dim: problem.head_dim,
                pages: &views,
            };
            let tile = problem.tile();
            let mut scan = Scan::default();
            scan.run(&tile, &kv, 805, &problem.options).unwrap();
            let (mut spans, mut left) = (Vec::new(), Vec::new());
            let thresholds = vec![0.4; scan.queries()];
            scan.at_least(&thresholds, &mut spans, &mut left);
            spans.push(Span::new(0, 3));
            let selection = Selection::from_spans(spans);
            let (mut expected, mut at_once, mut by_page) = (problem.partial(), problem.partial(), problem.partial());
            attend(&tile, &kv, &selection, &problem.options, &mut expected).unwrap();
            attend_scanned(&scan, &selection, &kv, &mut at_once).unwrap();
            for page in &views {
                let pages = [*page];
                let kv = KvView { pages: &pages, ..kv };
                attend_scanned(&scan, &selection, &kv, &mut by_page).unwrap();
            }
            close(&at_once, &expected, tolerance_of(&problem), "scanned");
            assert_eq!(at_once, by_page);
        }
    }
}
