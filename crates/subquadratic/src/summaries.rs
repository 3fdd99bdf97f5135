use alloc::vec::Vec;

use riffle_attention::{AttendError, Format, LANES, Plane, PlaneMut, Span, SummaryView, write_keys, write_values};

/// Block means gathered into the layout of a page.
#[derive(Debug, Default)]
pub(crate) struct Summaries {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Summaries {
    pub(crate) fn gather<'r>(
        &mut self,
        head_dim: usize,
        rows: impl ExactSizeIterator<Item = (&'r [f32], &'r [f32])>,
    ) -> Result<(), AttendError> {
        let len = Format::F32.plane_len(rows.len().next_multiple_of(LANES), head_dim);
        self.keys.resize(len, 0.0);
        self.values.resize(len, 0.0);
        for (slot, (key, value)) in rows.enumerate() {
            write_keys(&mut PlaneMut::F32(&mut self.keys), head_dim, slot, 1, key, head_dim)?;
            write_values(&mut PlaneMut::F32(&mut self.values), head_dim, slot, 1, value, head_dim)?;
        }
        Ok(())
    }

    pub(crate) fn view<'a>(&'a self, head_dim: usize, blocks: &'a [Span]) -> SummaryView<'a> {
        SummaryView {
            head_dim,
            blocks,
            keys: Plane::F32(&self.keys),
            values: Plane::F32(&self.values),
        }
    }
}
