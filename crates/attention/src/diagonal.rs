//! Diagonals: every row reads one token at each distance.
//!
//! 16 neighbouring rows at one distance read 16 neighbouring keys, so lanes hold rows *and* keys: one multiply-add
//! gives a dimension of 16 dot products. If rows and stripes are not aligned, two stripes are first shifted into one.

use alloc::vec::Vec;

use crate::block::{aligned, stripes_of};
use crate::call::{Call, Output, QueryBlock};
use crate::kernel::{Diagonal, DiagonalOutput, Pack, Slot, widen_keys, widen_values};
use crate::latent::LatentRows;
use crate::partial::Sums;
use crate::simd::Level;
use crate::visible::{Visible, low_bits};
use crate::{LANES, PageView, Plane, Span};

/// Scratch, reused between calls.
#[derive(Debug, Default)]
pub(crate) struct DiagonalWorkspace {
    /// `[stripes, group, head_dim, 16]`, scaled.
    queries: Vec<f32>,
    /// Lanes before the first row in the packed `queries`; `None` before packing.
    packed: Option<usize>,
    stripe: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl DiagonalWorkspace {
    /// Drops the packed queries of earlier rows.
    pub(crate) fn begin(&mut self) {
        self.packed = None;
    }
}

/// 16 rows from `query` and the keys they read at one distance. Positions before 0 are masked lanes.
#[derive(Clone, Copy)]
struct Pairing {
    /// Stripe of packed queries.
    stripe: usize,
    query: isize,
    key: isize,
    lanes: u16,
}

impl<V: Visible> Call<'_, V> {
    /// Lets a query block read the diagonals of `within`, a part of a page, farthest first.
    pub(crate) fn diagonals_of_page(
        &self,
        workspace: &mut DiagonalWorkspace,
        queries: QueryBlock,
        page: &PageView,
        within: Span,
        output: &mut Output,
    ) {
        let (start, positions) = (self.queries.start + queries.first, queries.positions);
        let readable = within.intersect(&self.range);
        // Rows are grouped so that distances that are multiples of 16 read whole stripes.
        let lead = (start as isize - page.start as isize).rem_euclid(LANES as isize);
        let first_stripe = start as isize - lead;
        let stripes = (lead as usize + positions).div_ceil(LANES);
        for stripe in 0..stripes {
            let query = first_stripe + (stripe * LANES) as isize;
            let in_tile = lanes_within(query, Span::new(start, start + positions));
            let behind = self.visible.diagonals().iter().rev();
            let behind = behind.map(|distance| query - *distance as isize);
            let ahead = self.visible.diagonals().iter().filter(|distance| **distance > 0);
            let ahead = ahead.map(|distance| query.saturating_add_unsigned(*distance));
            for key in behind.chain(ahead.filter(|_| !self.visible.causal())) {
                let lanes = in_tile & lanes_within(key, readable);
                if lanes == 0 {
                    continue;
                }
                // `lanes` leaves out the lanes before position 0.
                let skip = key.min(query).min(0).unsigned_abs();
                let (from, to) = (query + skip as isize, key + skip as isize);
                let seen = self.visible.diagonal_lanes(from as usize, to as usize, lanes >> skip);
                let lanes = seen << skip;
                if lanes == 0 {
                    continue;
                }
                if workspace.packed != Some(lead as usize) {
                    self.pack_diagonals(workspace, queries, lead as usize);
                }
                let pairing = Pairing {
                    stripe,
                    query,
                    key,
                    lanes,
                };
                self.diagonal(workspace, pairing, page, output);
            }
        }
    }

    /// Copies the scaled queries into `[stripes, group, head_dim, 16]`, `lead` lanes before the first.
    fn pack_diagonals(&self, workspace: &mut DiagonalWorkspace, queries: QueryBlock, lead: usize) {
        let (group, head_dim) = (self.queries.group, self.kv.head_dim);
        let QueryBlock { first, positions } = queries;
        let stripes = (lead + positions).div_ceil(LANES);
        let packed = aligned(&mut workspace.queries, stripes * group * head_dim * LANES);
        for (at, packed) in packed.chunks_exact_mut(head_dim * LANES).enumerate() {
            let (stripe, head) = (at / group, at % group);
            // Lanes beyond the rows are masked, so any row may fill them.
            let sources: [&[f32]; LANES] = core::array::from_fn(|lane| {
                let row = (stripe * LANES + lane).saturating_sub(lead).min(positions - 1);
                &self.queries.query(first + row, head)[..head_dim]
            });
            self.level.run(Pack {
                rows: &sources,
                scale: self.options.scale,
                out: packed.as_chunks_mut::<LANES>().0,
            });
        }
        workspace.packed = Some(lead);
    }

    /// One pairing, for every head of the group.
    fn diagonal(&self, workspace: &mut DiagonalWorkspace, pairing: Pairing, page: &PageView, output: &mut Output) {
        let (group, len) = (self.queries.group, self.kv.head_dim * LANES);
        let Pairing { query, key, lanes, .. } = pairing;
        let near = Near::new(self.level, self.widths(), page, key);
        let keys = near.keys(&mut workspace.stripe, &mut workspace.keys);
        let values = match output {
            Output::Mass { .. } => &[],
            _ => near.values(&mut workspace.values),
        };
        let packed = (pairing.stripe + 1) * group * len;
        let packed = &aligned(&mut workspace.queries, packed)[pairing.stripe * group * len..];
        let first_row = query - self.queries.start as isize;
        for (head, queries) in packed.chunks_exact(len).enumerate() {
            let seen = || (0..LANES).filter(|lane| lanes & (1 << lane) != 0);
            let (mut totals, mut weights) = ([f32::NEG_INFINITY; LANES], [0.0; LANES]);
            if let Output::Mass { log_sum_exp, .. } = output {
                for lane in seen() {
                    totals[lane] = log_sum_exp[(first_row + lane as isize) as usize * group + head];
                }
            }
            let into = match output.sums() {
                Some(Sums { m, l, o }) => DiagonalOutput::Partial {
                    values,
                    m,
                    l,
                    o,
                    first: first_row * group as isize + head as isize,
                    stride: group,
                },
                None => DiagonalOutput::Mass {
                    log_sum_exp: &totals,
                    mass: &mut weights,
                },
            };
            self.level.run(Diagonal {
                queries,
                keys,
                mask: lanes,
                soft_cap: self.options.soft_cap,
                output: into,
            });
            if let Output::Mass { origin, mass, .. } = output {
                for lane in seen() {
                    let at = ((key + lane as isize) as usize).checked_sub(*origin);
                    if let Some(mass) = at.and_then(|at| mass.get_mut(at)) {
                        *mass += weights[lane];
                    }
                }
            }
        }
    }
}

/// Lanes whose position is in the span; lane 0 has position `position`.
fn lanes_within(position: isize, span: Span) -> u16 {
    let lane = |at: usize| (at as isize).saturating_sub(position).clamp(0, LANES as isize) as usize;
    (low_bits(lane(span.end)) & !low_bits(lane(span.start))) as u16
}

/// 16 consecutive tokens around a page's edge: they may start within a stripe or outside the page.
struct Near<'a> {
    level: Level,
    key_dim: usize,
    value_dim: usize,
    page: &'a PageView<'a>,
    first_stripe: isize,
    /// Offset of the first token within its stripe.
    offset: usize,
}

impl<'a> Near<'a> {
    fn new(level: Level, (key_dim, value_dim): (usize, usize), page: &'a PageView, position: isize) -> Self {
        let slot = position - page.start as isize;
        Self {
            level,
            key_dim,
            value_dim,
            page,
            first_stripe: slot.div_euclid(LANES as isize),
            offset: slot.rem_euclid(LANES as isize) as usize,
        }
    }

    /// `[key_dim, 16]`; lanes outside the page are undefined.
    fn keys<'b>(&self, stripe: &'b mut Vec<f32>, shifted: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        let len = self.key_dim * LANES;
        if self.offset == 0 {
            if let Some((Plane::F32(keys), _)) = self.planes(self.first_stripe) {
                return keys;
            }
            let out = aligned(stripe, len);
            self.widen_keys(self.first_stripe, out);
            return out;
        }
        let out = aligned(shifted, len);
        let (from, to) = (self.offset, LANES - self.offset);
        let one = aligned(stripe, len);
        self.widen_keys(self.first_stripe, one);
        for (out, one) in out.chunks_exact_mut(LANES).zip(one.chunks_exact(LANES)) {
            out[..to].copy_from_slice(&one[from..]);
        }
        self.widen_keys(self.first_stripe + 1, one);
        for (out, one) in out.chunks_exact_mut(LANES).zip(one.chunks_exact(LANES)) {
            out[to..].copy_from_slice(&one[..from]);
        }
        out
    }

    /// `[16, value_dim]`; tokens outside the page are undefined.
    fn values<'b>(&self, rows: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        let len = self.value_dim * LANES;
        if self.offset == 0
            && !self.page.is_latent()
            && let Some((_, Plane::F32(values))) = self.planes(self.first_stripe)
        {
            return values;
        }
        let out = aligned(rows, 2 * len);
        let mut latent = LatentRows::default();
        for (stripe, out) in (self.first_stripe..).zip(out.chunks_exact_mut(len)) {
            if let Some((keys, values)) = self.planes(stripe) {
                let tokens = (self.page.tokens - stripe as usize * LANES).min(LANES);
                if self.page.is_latent() {
                    let values = latent.stripe(self.level, keys, tokens, (self.key_dim, self.value_dim));
                    out.copy_from_slice(values);
                    continue;
                }
                let slots = [Slot { stripe: 0, tokens }];
                widen_values(self.level, values, &slots, self.value_dim, out);
            }
        }
        &out[self.offset * self.value_dim..][..len]
    }

    fn widen_keys(&self, stripe: isize, out: &mut [f32]) {
        if let Some((keys, _)) = self.planes(stripe) {
            let slots = [Slot {
                stripe: 0,
                tokens: LANES,
            }];
            widen_keys(self.level, keys, &slots, self.key_dim, out);
        }
    }

    /// One stripe of each plane, if the page has tokens in it.
    fn planes(&self, stripe: isize) -> Option<(Plane<'a>, Plane<'a>)> {
        let first = usize::try_from(stripe).ok()? * LANES;
        (first < self.page.tokens).then(|| {
            let stripe = |plane, width| stripes_of(plane, first, LANES, width);
            let keys = stripe(self.page.keys, self.key_dim);
            let values = if self.page.is_latent() {
                keys
            } else {
                stripe(self.page.values, self.value_dim)
            };
            (keys, values)
        })
    }
}
