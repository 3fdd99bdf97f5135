//! Tokens of one or more sequences that pass the layers together.

use std::ops::Range;

use crate::{AdapterScales, ModelError};

/// The tokens of one pass: segments of several sequences, so that the weights are read once for all of them.
///
/// The result of a segment does not depend on the contents, number or order of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    // [rows]
    tokens: Vec<u32>,
    segments: Vec<Segment>,
}

/// Consecutive tokens of a sequence for a [`Batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentTokens<'a> {
    /// The tokens, at least one.
    pub tokens: &'a [u32],
    /// Position of the first token in the sequence.
    pub position: usize,
    /// True if recurrent layers read the tokens one by one, as generated tokens, and not in chunks.
    pub one_by_one: bool,
    /// Tokens of the whole sequence, for models whose rotation differs between short and long sequences (LongRoPE).
    /// All tokens of a sequence must be read with lengths on the same side of the boundary.
    pub length: usize,
    /// Factors on the parts of the model's adapters for these tokens.
    pub adapters: AdapterScales,
}

/// Consecutive tokens of one sequence in a [`Batch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Rows of the segment in the batch, at least one.
    pub rows: Range<usize>,
    /// Position of the first token in the sequence.
    pub position: usize,
    /// [`SegmentTokens::one_by_one`].
    pub one_by_one: bool,
    /// [`SegmentTokens::length`].
    pub length: usize,
    /// [`SegmentTokens::adapters`].
    pub adapters: AdapterScales,
}

/// Row boundaries at which chunked work may be split without a change of its result. Segments that are read one by one
/// may be split anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutGrid {
    /// Cut before tokens whose position is a multiple of this number.
    Positions(usize),
    /// Cut at row counts, from the first row of their segment, that are multiples of this number.
    Rows(usize),
}

/// The part of a segment within some rows of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentPart {
    /// Number of the segment.
    pub segment: usize,
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// Position of the first row.
    pub position: usize,
    /// [`SegmentTokens::one_by_one`].
    pub one_by_one: bool,
    /// [`SegmentTokens::adapters`].
    pub adapters: AdapterScales,
}

impl<'a> SegmentTokens<'a> {
    /// Tokens of a prompt, which recurrent layers read in chunks of 64 positions.
    pub fn prompt(tokens: &'a [u32], position: usize) -> SegmentTokens<'a> {
        SegmentTokens {
            tokens,
            position,
            one_by_one: false,
            length: position.saturating_add(tokens.len()),
            adapters: AdapterScales::default(),
        }
    }

    /// Generated tokens: one, or several verified tokens of a draft. Verified tokens have the same bits as in batches
    /// of their own.
    pub fn generated(tokens: &'a [u32], position: usize) -> SegmentTokens<'a> {
        SegmentTokens {
            tokens,
            position,
            one_by_one: true,
            length: position.saturating_add(tokens.len()),
            adapters: AdapterScales::default(),
        }
    }

    /// Sets the length of the whole sequence.
    pub fn in_length(self, length: usize) -> SegmentTokens<'a> {
        SegmentTokens { length, ..self }
    }

    /// Sets the factors of the model's adapters.
    pub fn with_adapters(self, adapters: AdapterScales) -> SegmentTokens<'a> {
        SegmentTokens { adapters, ..self }
    }
}

impl Batch {
    /// A batch of segments.
    ///
    /// # Errors
    /// [`ModelError::EmptyBatch`] without segments, [`ModelError::EmptySegment`] for one without tokens,
    /// [`ModelError::PositionTooLarge`] if a position overflows.
    pub fn new<'a>(parts: impl IntoIterator<Item = SegmentTokens<'a>>) -> Result<Batch, ModelError> {
        let mut batch = Batch {
            tokens: Vec::new(),
            segments: Vec::new(),
        };
        for SegmentTokens {
            tokens,
            position,
            one_by_one,
            length,
            adapters,
        } in parts
        {
            let (segment, first) = (batch.segments.len(), batch.tokens.len());
            if tokens.is_empty() {
                return Err(ModelError::EmptySegment { segment });
            }
            if position.checked_add(tokens.len()).is_none() {
                return Err(ModelError::PositionTooLarge { segment, position });
            }
            batch.tokens.extend_from_slice(tokens);
            batch.segments.push(Segment {
                rows: first..batch.tokens.len(),
                position,
                one_by_one,
                length,
                adapters,
            });
        }
        if batch.segments.is_empty() {
            Err(ModelError::EmptyBatch)
        } else {
            Ok(batch)
        }
    }

    /// A batch of one segment of a prompt, or of one generated token.
    ///
    /// # Errors
    /// As [`Batch::new`].
    pub fn of_one(tokens: &[u32], position: usize) -> Result<Batch, ModelError> {
        Batch::new([SegmentTokens::prompt(tokens, position)])
    }

    /// The tokens of all segments, `[rows]`.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The segments, in order of their rows.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Rows of all segments together.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Splits some rows of the batch into blocks of up to `most` rows, or of the grid's step if this is more. Blocks
    /// end with segments or on the grid, so that a segment's results do not depend on the location of its rows.
    pub fn row_blocks(&self, rows: Range<usize>, most: usize, grid: CutGrid) -> Vec<Range<usize>> {
        let most = most.max(grid.step());
        let mut blocks = Vec::new();
        let mut block = rows.start..rows.start;
        for part in self.parts(rows) {
            let segment = &self.segments[part.segment];
            let mut first = part.rows.start;
            while first < part.rows.end {
                let until = grid.next(segment, first).min(part.rows.end);
                if until - block.start > most && !block.is_empty() {
                    blocks.push(block);
                    block = first..first;
                }
                block.end = until;
                first = until;
            }
        }
        if !block.is_empty() {
            blocks.push(block);
        }
        blocks
    }

    /// Refuses tokens outside the vocabulary, and more rows than the scratch memory allows.
    ///
    /// # Errors
    /// [`ModelError::TokenOutOfRange`], [`ModelError::BatchTooLarge`].
    pub fn check(&self, vocab_size: usize, batch_tokens: usize) -> Result<(), ModelError> {
        if let Some(&token) = self.tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(ModelError::TokenOutOfRange { token, vocab_size });
        }
        if self.rows() > batch_tokens {
            return Err(ModelError::BatchTooLarge {
                tokens: self.rows(),
                batch_tokens,
            });
        }
        Ok(())
    }

    /// Checks that there is one recurrent state per segment.
    ///
    /// # Errors
    /// [`ModelError::WrongStates`].
    pub fn check_states(&self, states: usize) -> Result<(), ModelError> {
        if states == self.segments.len() {
            Ok(())
        } else {
            Err(ModelError::WrongStates {
                segments: self.segments.len(),
                states,
            })
        }
    }

    /// The parts of segments within `rows` of the batch, in order.
    pub fn parts(&self, rows: Range<usize>) -> impl Iterator<Item = SegmentPart> {
        let first = self.segments.partition_point(|segment| segment.rows.end <= rows.start);
        let segments = self.segments.iter().enumerate().skip(first);
        let end = rows.end;
        segments
            .take_while(move |(_, segment)| segment.rows.start < end)
            .map(move |(number, segment)| {
                let part = segment.rows.start.max(rows.start)..segment.rows.end.min(end);
                SegmentPart {
                    segment: number,
                    position: segment.position + (part.start - segment.rows.start),
                    rows: part,
                    one_by_one: segment.one_by_one,
                    adapters: segment.adapters,
                }
            })
    }
}

impl CutGrid {
    /// Rows between cuts of a long segment.
    fn step(self) -> usize {
        match self {
            Self::Positions(step) | Self::Rows(step) => step,
        }
    }

    /// The first cut of a segment after one of its rows.
    fn next(self, segment: &Segment, row: usize) -> usize {
        let behind = row - segment.rows.start;
        match self {
            _ if segment.one_by_one => row + 1,
            Self::Positions(step) => row + step - (segment.position + behind) % step,
            Self::Rows(step) => row + step - behind % step,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(lengths: &[(usize, usize)]) -> Batch {
        let tokens = vec![0; 4000];
        let segments = lengths.iter();
        Batch::new(segments.map(|&(rows, position)| SegmentTokens::prompt(&tokens[..rows], position))).unwrap()
    }

    #[test]
    fn batches_without_tokens_or_countable_positions_are_refused() {
        assert!(matches!(Batch::new([]), Err(ModelError::EmptyBatch)));
        let error =
            Batch::new([(&[1][..], 0), (&[], 3)].map(|(tokens, position)| SegmentTokens::prompt(tokens, position)));
        let error = error.unwrap_err();
        assert!(matches!(error, ModelError::EmptySegment { segment: 1 }), "{error}");
        let error = Batch::of_one(&[1, 2], usize::MAX - 1).unwrap_err();
        assert!(
            matches!(error, ModelError::PositionTooLarge { segment: 0, .. }),
            "{error}"
        );
    }

    #[test]
    fn blocks_hold_every_row_once_and_end_with_segments_or_on_the_grid() {
        let lengths = [(700, 0), (1, 9), (63, 130), (64, 1), (1, 0), (900, 77), (2, 5)];
        let batch = batch(&lengths);
        for grid in [CutGrid::Positions(64), CutGrid::Rows(256)] {
            let blocks = batch.row_blocks(0..batch.rows(), 256, grid);
            assert_eq!(blocks[0].start, 0);
            assert_eq!(blocks.last().unwrap().end, batch.rows());
            for pair in blocks.windows(2) {
                assert_eq!(pair[0].end, pair[1].start);
            }
            for block in &blocks {
                assert!((1..=256).contains(&block.len()), "{grid:?}: {block:?}");
                let last = batch.parts(block.clone()).last().unwrap();
                let segment = &batch.segments()[last.segment];
                let behind = last.rows.end - segment.rows.start;
                let on_grid = match grid {
                    CutGrid::Positions(step) => (segment.position + behind).is_multiple_of(step),
                    CutGrid::Rows(step) => behind.is_multiple_of(step),
                };
                assert!(on_grid || last.rows.end == segment.rows.end, "{grid:?}: {block:?}");
            }
        }
    }

    #[test]
    fn blocks_of_a_block_fill_it_and_are_as_long_as_the_grid_asks() {
        let lengths = [(700, 0), (1, 9), (63, 130), (64, 1), (1, 0), (900, 77), (2, 5)];
        let batch = batch(&lengths);
        let grid = CutGrid::Positions(64);
        let outer = batch.row_blocks(0..batch.rows(), 300, grid);
        let inner: Vec<_> = outer
            .iter()
            .flat_map(|block| batch.row_blocks(block.clone(), 1, grid))
            .collect();
        assert_eq!(inner[0].start, 0);
        assert_eq!(inner.last().unwrap().end, batch.rows());
        assert!(inner.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(inner.iter().all(|block| (1..=64).contains(&block.len())), "{inner:?}");
        assert!(inner.len() < batch.rows() / 32, "{} blocks", inner.len());
        assert_eq!(batch.row_blocks(0..batch.rows(), usize::MAX, grid).len(), 1);
    }

    #[test]
    fn parts_name_the_positions_of_their_rows() {
        let batch = batch(&[(5, 10), (1, 0), (4, 100)]);
        let parts: Vec<SegmentPart> = batch.parts(3..8).collect();
        let expected = [(0, 3..5, 13), (1, 5..6, 0), (2, 6..8, 100)];
        let expected = expected.map(|(segment, rows, position)| SegmentPart {
            segment,
            rows,
            position,
            one_by_one: false,
            adapters: AdapterScales::default(),
        });
        assert_eq!(parts, expected);
    }

    #[test]
    fn segments_that_are_read_one_by_one_are_cut_anywhere() {
        let tokens = [0; 200];
        let segments = [
            SegmentTokens::prompt(&tokens[..60], 7),
            SegmentTokens::generated(&tokens[..9], 100),
            SegmentTokens::prompt(&tokens[..100], 0),
        ];
        let batch = Batch::new(segments).unwrap();
        let blocks = batch.row_blocks(0..batch.rows(), 64, CutGrid::Positions(64));
        assert_eq!(blocks, [0..64, 64..69, 69..133, 133..169]);
        let cut: Vec<bool> = batch.parts(60..80).map(|part| part.one_by_one).collect();
        assert_eq!(cut, [true, false]);
    }
}
