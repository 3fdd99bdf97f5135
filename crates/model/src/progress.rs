//! Progress of a batch's rows within a layer.

use std::ops::Range;

use crate::ModelError;

/// Rows of a batch that a [`Forward`](crate::Forward) has projected and finished in the current layer. Blocks of rows
/// come in order in both steps, and rows are projected before they are finished.
#[derive(Debug, Clone, Default)]
pub struct LayerProgress {
    /// Rows of the batch.
    rows: usize,
    layer: usize,
    projected: usize,
    finished: usize,
}

impl LayerProgress {
    /// Progress of a new batch of `rows` rows.
    pub fn new(rows: usize) -> LayerProgress {
        LayerProgress {
            rows,
            ..LayerProgress::default()
        }
    }

    /// The current layer and its rows projected so far; `None` before the first block and after all rows are
    /// finished.
    pub fn under_way(&self) -> Option<(usize, usize)> {
        (self.projected > 0 && self.finished < self.rows).then_some((self.layer, self.projected))
    }

    /// Records the projection of `rows` of a layer. A layer begins with row 0.
    ///
    /// # Errors
    /// [`ModelError::RowsOutOfOrder`].
    pub fn project(&mut self, layer: usize, rows: &Range<usize>) -> Result<(), ModelError> {
        let begins = rows.start == 0 || layer != self.layer;
        let next = if begins { 0 } else { self.projected };
        check(layer, rows, next, self.rows)?;
        if begins {
            (self.layer, self.finished) = (layer, 0);
        }
        self.projected = rows.end;
        Ok(())
    }

    /// Skips the rows before `row` in the current layer's finish.
    pub fn skip_to(&mut self, row: usize) {
        self.finished = self.finished.max(row.min(self.projected));
    }

    /// Records that `rows` of a layer are finished.
    ///
    /// # Errors
    /// [`ModelError::RowsOutOfOrder`].
    pub fn finish(&mut self, layer: usize, rows: &Range<usize>) -> Result<(), ModelError> {
        let (next, projected) = if layer == self.layer {
            (self.finished, self.projected)
        } else {
            (0, 0)
        };
        check(layer, rows, next, projected)?;
        self.finished = rows.end;
        Ok(())
    }
}

/// Checks that the rows are the `next` ones, up to `end`.
fn check(layer: usize, rows: &Range<usize>, next: usize, end: usize) -> Result<(), ModelError> {
    if rows.start == next && !rows.is_empty() && rows.end <= end {
        Ok(())
    } else {
        Err(ModelError::RowsOutOfOrder {
            layer,
            rows: rows.clone(),
            expected: next..end,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_skip_repeat_or_overtake_are_refused() {
        let mut progress = LayerProgress::new(10);
        let refused = |result: Result<(), ModelError>, found: Range<usize>, awaited: Range<usize>| match result {
            Err(ModelError::RowsOutOfOrder { rows, expected, .. }) => assert_eq!((rows, expected), (found, awaited)),
            other => panic!("{other:?}"),
        };
        refused(progress.finish(0, &(0..1)), 0..1, 0..0);
        refused(progress.project(0, &(2..4)), 2..4, 0..10);
        refused(progress.project(0, &(0..11)), 0..11, 0..10);
        refused(progress.project(0, &(0..0)), 0..0, 0..10);
        assert_eq!(progress.under_way(), None);
        progress.project(0, &(0..4)).unwrap();
        refused(progress.project(0, &(5..6)), 5..6, 4..10);
        refused(progress.project(1, &(4..6)), 4..6, 0..10);
        refused(progress.finish(0, &(0..5)), 0..5, 0..4);
        refused(progress.finish(1, &(0..4)), 0..4, 0..0);
        progress.finish(0, &(0..4)).unwrap();
        progress.project(0, &(4..10)).unwrap();
        refused(progress.finish(0, &(0..4)), 0..4, 4..10);
        assert_eq!(progress.under_way(), Some((0, 10)));
        progress.finish(0, &(4..10)).unwrap();
        assert_eq!(progress.under_way(), None);
        progress.project(1, &(0..10)).unwrap();
        assert_eq!(progress.under_way(), Some((1, 10)));
    }

    #[test]
    fn rows_that_are_left_out_are_not_finished_later() {
        let mut progress = LayerProgress::new(10);
        progress.project(0, &(0..10)).unwrap();
        progress.skip_to(4);
        progress.finish(0, &(4..5)).unwrap();
        assert!(progress.finish(0, &(2..3)).is_err());
        progress.skip_to(3);
        assert!(progress.finish(0, &(3..4)).is_err());
        progress.finish(0, &(5..10)).unwrap();
    }
}
