//! Integers of 2 to 8 bits in groups of inputs: weight = scale · (code − zero), or scale · code + bias.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use riffle_linear::WeightFormat;

use super::recipe::{BAND_ROWS, Made, Parts, Recipe, Source, band_rows, plain_rows};
use crate::ModelError;

/// Columns of AWQ's codes in a word, starting with its low bits.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// The layout of codes, scales and zero points in their tensors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Integers {
    pub(crate) bits: usize,
    pub(crate) packing: Packing,
    /// Columns of a group; the last may have fewer.
    pub(crate) group: usize,
    pub(crate) zeros: Zeros,
}

/// The places of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// `[rows, words]`: a row's codes are consecutive, from the low bits of each word.
    Rows,
    /// `[words, rows]`: as `Rows`, with the words of all rows interleaved (GPTQ).
    Columns,
    /// `[columns, rows / 8]`, eight rows in a word in the order of AWQ.
    Awq,
    /// `[rows, columns]` of signed bytes.
    Signed,
}

/// Zero points of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zeros {
    /// Half the range.
    Half,
    /// `[groups, words]`, packed along the rows; stored values are too small by `offset`.
    ByGroup { offset: i32 },
    /// `[groups, rows / 8]` in the order of AWQ.
    Awq,
    /// `[words, groups]`, packed along the rows.
    ByRow,
    /// `[rows, groups]` of signed bytes.
    Signed,
    /// `[rows, groups]`, to be added to scaled codes.
    Biases,
}

/// Scales and minimums, `[row][group]`: weight = scale · (code − center) − minimum.
struct Groups {
    count: usize,
    scales: Vec<f32>,
    minimums: Vec<f32>,
}

impl Integers {
    /// The packed format with exactly these values.
    pub(crate) fn format(self, columns: usize) -> WeightFormat {
        let formats: &[WeightFormat] = if self.bits <= 4 {
            &[WeightFormat::Q4G128, WeightFormat::Q4G64, WeightFormat::Q4G32]
        } else {
            &[WeightFormat::Q8G64, WeightFormat::Q8G32]
        };
        let fits = |format: &&WeightFormat| {
            let block = format.block_weights();
            columns.is_multiple_of(block) && (self.group >= columns || self.group.is_multiple_of(block))
        };
        formats.iter().find(fits).copied().unwrap_or(WeightFormat::F32)
    }

    pub(super) fn make(self, recipe: &Recipe, sources: &Parts<Source<'_>>) -> Result<Made, ModelError> {
        let columns = recipe.columns;
        let order = match sources.order {
            Some(order) => self.order(recipe, order)?,
            None => None,
        };
        let block = recipe.format.block_weights();
        let center = if block > 1 && self.bits > 4 { 128.0 } else { 0.0 };
        let groups = self.groups(recipe, sources, center)?;
        let group_of = |column: usize| column / self.group;
        let bytes = if block == 1 {
            let bands: Vec<Vec<u8>> = (0..recipe.rows.div_ceil(BAND_ROWS))
                .into_par_iter()
                .map(|band| self.codes(recipe, sources.codes.bytes, band_rows(band, recipe.rows)))
                .collect();
            // A column's group is the group of its input, given by the order.
            let of_input = sources.order.map(|order| order.words());
            plain_rows(recipe, |row, values| {
                let codes = &bands[row / BAND_ROWS][row % BAND_ROWS * columns..][..columns];
                for (column, (value, code)) in values.iter_mut().zip(codes).enumerate() {
                    let group = of_input
                        .as_ref()
                        .map_or(group_of(column), |groups| groups[column] as usize);
                    let at = row * groups.count + group;
                    *value = f32::from(*code) * groups.scales[at] - groups.minimums[at];
                }
            })
        } else {
            let row_bytes = recipe.format.row_bytes(columns).unwrap_or_default();
            let mut bytes = vec![0; recipe.rows * row_bytes];
            bytes
                .par_chunks_mut(BAND_ROWS * row_bytes)
                .enumerate()
                .for_each(|(band, bytes)| {
                    let rows = band_rows(band, recipe.rows);
                    let codes = self.codes(recipe, sources.codes.bytes, rows.clone());
                    let mut turned = vec![0; columns];
                    for (row, (codes, bytes)) in rows.zip(codes.chunks(columns).zip(bytes.chunks_mut(row_bytes))) {
                        let codes = match &order {
                            None => codes,
                            Some(order) => {
                                turned
                                    .iter_mut()
                                    .zip(order.iter())
                                    .for_each(|(to, at)| *to = codes[*at as usize]);
                                &turned
                            }
                        };
                        let blocks = bytes.chunks_mut(recipe.format.block_bytes()).zip(codes.chunks(block));
                        for (index, (to, codes)) in blocks.enumerate() {
                            let at = row * groups.count + group_of(index * block);
                            write_block(to, groups.scales[at], groups.minimums[at], codes);
                        }
                    }
                });
            bytes
        };
        Ok(Made {
            bytes,
            factor: 1.0,
            order: order.filter(|_| block > 1).map(Arc::from),
        })
    }

    /// The columns sorted by group; `None` if already sorted. A packed format needs whole groups.
    fn order(self, recipe: &Recipe, order: Source<'_>) -> Result<Option<Vec<u32>>, ModelError> {
        let groups = order.words();
        let count = recipe.columns.div_ceil(self.group);
        let mut sizes = vec![0; count];
        for group in &groups {
            let Some(size) = sizes.get_mut(*group as usize) else {
                return Err(order.corrupt(format!("names group {group} of {count}")));
            };
            *size += 1;
        }
        let is_whole = sizes.iter().all(|size| *size == self.group.min(recipe.columns));
        if !is_whole && recipe.format != WeightFormat::F32 {
            return Err(order.corrupt(format!("does not put {} inputs into each group", self.group)));
        }
        if groups.is_sorted() {
            return Ok(None);
        }
        let mut sorted: Vec<u32> = (0..recipe.columns as u32).collect();
        sorted.sort_by_key(|column| groups[*column as usize]);
        Ok(Some(sorted))
    }

    fn groups(self, recipe: &Recipe, sources: &Parts<Source<'_>>, center: f32) -> Result<Groups, ModelError> {
        let (rows, count) = (recipe.rows, recipe.columns.div_ceil(self.group));
        let stored = sources.scales.scales()?;
        let by_group = matches!(self.packing, Packing::Columns | Packing::Awq);
        let mut scales = vec![0.0; rows * count];
        for (at, scale) in scales.iter_mut().enumerate() {
            let (row, group) = (at / count, at % count);
            *scale = match stored.len() {
                1 => stored[0],
                _ if by_group => stored[group * rows + row],
                _ => stored[row * count + group],
            };
        }
        let half = 1 << (self.bits - 1);
        let minimums = match (self.zeros, sources.zeros) {
            (Zeros::Biases, Some(biases)) => {
                let biases = biases.scales()?;
                scales
                    .iter()
                    .zip(biases)
                    .map(|(scale, bias)| -bias - center * scale)
                    .collect()
            }
            (zeros, source) => {
                let words = source.map(|source| source.words()).unwrap_or_default();
                let zero = |row: usize, group: usize| -> i32 {
                    match (zeros, source) {
                        (Zeros::Half | Zeros::Biases, _) | (_, None) => half,
                        (Zeros::ByGroup { offset }, _) => {
                            let words = &words[group * (words.len() / count)..];
                            stream(|word| words[word], self.bits, row) + offset
                        }
                        (Zeros::Awq, _) => {
                            let place = AWQ_ORDER.iter().position(|at| *at == row % 8).unwrap_or_default();
                            (words[group * rows / 8 + row / 8] >> (4 * place) & 15).cast_signed()
                        }
                        (Zeros::ByRow, _) => stream(|word| words[word * count + group], self.bits, row),
                        (Zeros::Signed, Some(source)) => match source.bytes.len() {
                            1 => i32::from(source.bytes[0].cast_signed()) + half,
                            _ => i32::from(source.bytes[row * count + group].cast_signed()) + half,
                        },
                    }
                };
                let zero_of = |at: usize| zero(at / count, at % count) as f32;
                scales
                    .iter()
                    .enumerate()
                    .map(|(at, scale)| scale * (zero_of(at) - center))
                    .collect()
            }
        };
        Ok(Groups {
            count,
            scales,
            minimums,
        })
    }

    /// The codes of some rows, `[row][column]`.
    fn codes(self, recipe: &Recipe, bytes: &[u8], range: Range<usize>) -> Vec<u8> {
        let (rows, columns, bits) = (recipe.rows, recipe.columns, self.bits);
        let mut codes = vec![0; range.len() * columns];
        let words = bytes.as_chunks::<4>().0;
        let word = |at: usize| u32::from_le_bytes(words[at]);
        match self.packing {
            Packing::Signed => {
                let half = 1u8 << (bits - 1);
                let stored = &bytes[range.start * columns..range.end * columns];
                codes
                    .iter_mut()
                    .zip(stored)
                    .for_each(|(code, byte)| *code = byte.wrapping_add(half));
            }
            Packing::Rows => {
                let row_words = words.len() / rows;
                for (row, codes) in range.zip(codes.chunks_mut(columns)) {
                    unpack(|at| word(row * row_words + at), bits, codes);
                }
            }
            Packing::Columns if 32 % bits == 0 => {
                // Word by word over the rows, which are adjacent.
                let (each, mask) = (32 / bits, low_bits(bits));
                for first in (0..columns).step_by(each) {
                    for row in range.clone() {
                        let bits_of = word(first / each * rows + row);
                        let to = &mut codes[(row - range.start) * columns..][first..columns.min(first + each)];
                        for (place, to) in to.iter_mut().enumerate() {
                            *to = (bits_of >> (place * bits) & mask) as u8;
                        }
                    }
                }
            }
            Packing::Columns => {
                for (row, codes) in range.zip(codes.chunks_mut(columns)) {
                    unpack(|at| word(at * rows + row), bits, codes);
                }
            }
            Packing::Awq => {
                for column in 0..columns {
                    for eight in range.start / 8..range.end / 8 {
                        let eight_codes = word(column * (rows / 8) + eight);
                        for (place, at) in AWQ_ORDER.iter().enumerate() {
                            let row = eight * 8 + at - range.start;
                            codes[row * columns + column] = (eight_codes >> (4 * place) & 15) as u8;
                        }
                    }
                }
            }
        }
        codes
    }
}

impl Source<'_> {
    fn corrupt(&self, problem: String) -> ModelError {
        ModelError::CorruptWeights {
            path: self.path.to_owned(),
            problem: format!("tensor {} {problem}", self.info.name),
        }
    }
}

const fn low_bits(bits: usize) -> u32 {
    (1 << bits) - 1
}

/// Code `index` of consecutive codes in words, from their low bits on.
fn stream(word: impl Fn(usize) -> u32, bits: usize, index: usize) -> i32 {
    let (at, shift) = (index * bits / 32, index * bits % 32);
    let low = word(at) >> shift;
    let high = if shift + bits > 32 {
        word(at + 1) << (32 - shift)
    } else {
        0
    };
    ((low | high) & low_bits(bits)).cast_signed()
}

fn unpack(word: impl Fn(usize) -> u32, bits: usize, codes: &mut [u8]) {
    if 32 % bits == 0 {
        for (at, codes) in codes.chunks_mut(32 / bits).enumerate() {
            let word = word(at);
            for (place, code) in codes.iter_mut().enumerate() {
                *code = (word >> (place * bits) & low_bits(bits)) as u8;
            }
        }
    } else {
        for (index, code) in codes.iter_mut().enumerate() {
            *code = stream(&word, bits, index) as u8;
        }
    }
}

/// A block of `q4_g*` or `q8_g*`.
fn write_block(to: &mut [u8], scale: f32, minimum: f32, codes: &[u8]) {
    to[..4].copy_from_slice(&scale.to_le_bytes());
    to[4..8].copy_from_slice(&minimum.to_le_bytes());
    if to.len() == 8 + codes.len() {
        to[8..].copy_from_slice(codes);
        return;
    }
    for (to, codes) in to[8..].chunks_mut(16).zip(codes.chunks(32)) {
        let (low, high) = codes.split_at(16);
        for (to, (low, high)) in to.iter_mut().zip(low.iter().zip(high)) {
            *to = low | high << 4;
        }
    }
}
