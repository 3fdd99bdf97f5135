//! Means of blocks of keys and values, kept as blocks fill, for policies that read summaries.

use std::collections::BTreeMap;

use riffle_attention::{
    AttendError, LANES, PageView, Plane, PlaneMut, Span, SummaryView, read_keys, read_values, write_keys, write_values,
};

/// The means of a sequence, by (layer, KV head, tokens in a block).
#[derive(Default)]
pub(crate) struct BlockMeans {
    heads: BTreeMap<(usize, usize, usize), HeadMeans>,
}

/// Means of the whole blocks of one KV head.
pub(crate) struct HeadMeans {
    block: usize,
    head_dim: usize,
    blocks: Vec<Span>,
    /// A page's layout of keys, `[blocks / 16, head_dim, 16]`.
    keys: Vec<f32>,
    /// `[blocks, head_dim]`
    values: Vec<f32>,
}

impl BlockMeans {
    /// The means of one KV head, empty at first.
    pub(crate) fn of(&mut self, layer: usize, kv_head: usize, block: usize, head_dim: usize) -> &mut HeadMeans {
        self.heads.entry((layer, kv_head, block)).or_insert_with(|| HeadMeans {
            block,
            head_dim,
            blocks: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
        })
    }

    /// The means of one KV head, where there are any.
    pub(crate) fn get(&self, layer: usize, kv_head: usize, block: usize) -> Option<&HeadMeans> {
        self.heads.get(&(layer, kv_head, block))
    }

    /// Forgets blocks that hold tokens at or after `tokens`.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        for head in self.heads.values_mut() {
            let blocks = (tokens / head.block).min(head.blocks.len());
            head.blocks.truncate(blocks);
            head.keys.truncate(blocks.next_multiple_of(LANES) * head.head_dim);
            head.values.truncate(blocks.next_multiple_of(LANES) * head.head_dim);
        }
    }
}

impl HeadMeans {
    /// Takes in the blocks that end at or before `tokens`.
    pub(crate) fn extend(&mut self, pages: &[PageView<'_>], tokens: usize) -> Result<(), AttendError> {
        let head_dim = self.head_dim;
        while (self.blocks.len() + 1) * self.block <= tokens {
            let number = self.blocks.len();
            let span = Span::new(number * self.block, (number + 1) * self.block);
            // Planes hold whole stripes.
            let len = (number + 1).next_multiple_of(LANES) * head_dim;
            self.keys.resize(len, 0.0);
            self.values.resize(len, 0.0);
            let key = mean(pages, span, head_dim, |page, first, count, rows| {
                read_keys(&page.keys, head_dim, first, count, rows, head_dim)
            })?;
            let value = mean(pages, span, head_dim, |page, first, count, rows| {
                read_values(&page.values, head_dim, first, count, rows, head_dim)
            })?;
            write_keys(&mut PlaneMut::F32(&mut self.keys), head_dim, number, 1, &key, head_dim)?;
            write_values(
                &mut PlaneMut::F32(&mut self.values),
                head_dim,
                number,
                1,
                &value,
                head_dim,
            )?;
            self.blocks.push(span);
        }
        Ok(())
    }

    pub(crate) fn view(&self) -> SummaryView<'_> {
        SummaryView {
            head_dim: self.head_dim,
            blocks: &self.blocks,
            keys: Plane::F32(&self.keys),
            values: Plane::F32(&self.values),
        }
    }
}

/// Mean of what `read` writes of a page's tokens `first..first + count`, over the span, in order of position whatever
/// the page size.
fn mean(
    pages: &[PageView<'_>],
    span: Span,
    head_dim: usize,
    read: impl Fn(&PageView<'_>, usize, usize, &mut [f32]) -> Result<(), AttendError>,
) -> Result<Vec<f32>, AttendError> {
    let (mut sums, mut rows) = (vec![0.0f32; head_dim], Vec::new());
    let after = pages.partition_point(|page| page.start + page.tokens <= span.start);
    for page in pages[after..].iter().take_while(|page| page.start < span.end) {
        let part = span.intersect(&Span::new(page.start, page.start + page.tokens));
        rows.resize(part.len() * head_dim, 0.0);
        read(page, part.start - page.start, part.len(), &mut rows)?;
        for row in rows.chunks_exact(head_dim) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
    }
    let factor = 1.0 / span.len() as f32;
    sums.iter_mut().for_each(|sum| *sum *= factor);
    Ok(sums)
}
