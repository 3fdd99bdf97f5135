use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::SubquadraticError;

/// The mean over a block's tokens.
#[derive(Debug, Clone, PartialEq)]
struct Mean {
    count: usize,
    key: Vec<f32>,
    value: Vec<f32>,
}

/// Running means of K and V per block of tokens, one KV head: O(dim) per token appended or removed, by
/// Welford's update.
#[derive(Debug, Clone, PartialEq)]
pub struct IncrementalLandmarks {
    block_size: usize,
    dim: usize,
    blocks: BTreeMap<usize, Mean>,
}

impl IncrementalLandmarks {
    /// Landmarks without tokens, for blocks of `block_size` tokens.
    ///
    /// # Errors
    /// [`SubquadraticError::Setting`] when `block_size` is zero.
    pub fn new(block_size: usize, dim: usize) -> Result<Self, SubquadraticError> {
        if block_size == 0 {
            return Err(SubquadraticError::Setting {
                what: "block_size must be at least 1",
            });
        }
        Ok(Self {
            block_size,
            dim,
            blocks: BTreeMap::new(),
        })
    }

    /// Adds the token at `position` to its block.
    ///
    /// # Errors
    /// [`SubquadraticError::Mismatch`] when a row does not have `dim` elements.
    pub fn update(&mut self, position: usize, key: &[f32], value: &[f32]) -> Result<(), SubquadraticError> {
        self.check(key)?;
        self.check(value)?;
        let dim = self.dim;
        let empty = || Mean {
            count: 0,
            key: vec![0.0; dim],
            value: vec![0.0; dim],
        };
        let mean = self.blocks.entry(position / self.block_size).or_insert_with(empty);
        mean.count += 1;
        let share = 1.0 / mean.count as f32;
        for (mean, x) in mean.key.iter_mut().zip(key).chain(mean.value.iter_mut().zip(value)) {
            *mean += (x - *mean) * share;
        }
        Ok(())
    }

    /// Removes the token at `position` from its block.
    ///
    /// # Errors
    /// [`SubquadraticError::Mismatch`] when a row does not have `dim` elements.
    pub fn remove(&mut self, position: usize, key: &[f32], value: &[f32]) -> Result<(), SubquadraticError> {
        self.check(key)?;
        self.check(value)?;
        let block = position / self.block_size;
        let Some(mean) = self.blocks.get_mut(&block) else {
            return Ok(());
        };
        if mean.count <= 1 {
            self.blocks.remove(&block);
            return Ok(());
        }
        mean.count -= 1;
        let share = 1.0 / mean.count as f32;
        for (mean, x) in mean.key.iter_mut().zip(key).chain(mean.value.iter_mut().zip(value)) {
            *mean -= (x - *mean) * share;
        }
        Ok(())
    }

    /// Number of tokens in the block.
    pub fn count(&self, block: usize) -> usize {
        self.blocks.get(&block).map_or(0, |mean| mean.count)
    }

    /// Mean key and value of the block, `[dim]` each; `None` for an empty block.
    pub fn mean(&self, block: usize) -> Option<(&[f32], &[f32])> {
        self.blocks.get(&block).map(|mean| (&mean.key[..], &mean.value[..]))
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Forgets all tokens.
    pub fn reset(&mut self) {
        self.blocks.clear();
    }

    fn check(&self, row: &[f32]) -> Result<(), SubquadraticError> {
        if row.len() != self.dim {
            return Err(SubquadraticError::Mismatch {
                what: "row and landmark dim",
                expected: self.dim,
                found: row.len(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudorandom values in −1..1.
    fn noise(seed: u64, len: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn running_means_equal_plain_means_after_adding_and_removing() {
        let (keys, values) = (noise(1, 40 * 4), noise(2, 40 * 4));
        let mut landmarks = IncrementalLandmarks::new(8, 4).unwrap();
        for t in 0..40 {
            landmarks.update(t, &keys[t * 4..][..4], &values[t * 4..][..4]).unwrap();
        }
        let gone = [3, 9, 10, 16, 17, 18, 19, 20, 21, 22, 23];
        for t in gone {
            landmarks.remove(t, &keys[t * 4..][..4], &values[t * 4..][..4]).unwrap();
        }
        for block in 0..5 {
            let left: Vec<usize> = (block * 8..block * 8 + 8).filter(|t| !gone.contains(t)).collect();
            assert_eq!(landmarks.count(block), left.len());
            let Some((key, value)) = landmarks.mean(block) else {
                assert!(left.is_empty());
                continue;
            };
            for d in 0..4 {
                let mean = |rows: &[f32]| left.iter().map(|t| rows[t * 4 + d]).sum::<f32>() / left.len() as f32;
                assert!((key[d] - mean(&keys)).abs() < 1e-5);
                assert!((value[d] - mean(&values)).abs() < 1e-5);
            }
        }
        assert!(landmarks.update(0, &[0.0; 3], &[0.0; 4]).is_err());
        assert!(IncrementalLandmarks::new(0, 4).is_err());
    }
}
