//! Keeps batches for subscribers that missed some.

use std::collections::VecDeque;

use bytes::Bytes;

/// The latest batches, by number.
#[derive(Debug)]
pub(crate) struct Kept {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
    most_batches: usize,
    most_bytes: usize,
}

impl Kept {
    pub(crate) fn new(most_batches: usize, most_bytes: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            bytes: 0,
            most_batches,
            most_bytes,
        }
    }

    /// Keeps the next batch; the oldest are dropped if there are too many or too large ones.
    pub(crate) fn push(&mut self, number: u64, payload: Bytes) {
        self.bytes += payload.len();
        self.batches.push_back((number, payload));
        while self.batches.len() > self.most_batches || self.bytes > self.most_bytes {
            match self.batches.pop_front() {
                Some((_, oldest)) => self.bytes -= oldest.len(),
                None => return,
            }
        }
    }

    /// The batches from number `first` on; `next` is the number of the next batch. `None` if some were dropped or
    /// never existed.
    pub(crate) fn since(&self, first: u64, next: u64) -> Option<Vec<(u64, Bytes)>> {
        let oldest = self.batches.front().map_or(next, |(number, _)| *number);
        let batches = self.batches.iter().filter(|(number, _)| *number >= first);
        (oldest..=next).contains(&first).then(|| batches.cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_batches_leave_and_who_asks_for_them_is_told_so() {
        let mut kept = Kept::new(3, 25);
        let numbers = |kept: &Kept, first, next| {
            let batches = kept.since(first, next)?;
            Some(batches.iter().map(|(number, _)| *number).collect::<Vec<_>>())
        };
        assert_eq!(numbers(&kept, 0, 0), Some(Vec::new()));
        for number in 0..5 {
            kept.push(number, Bytes::from(vec![0; 5]));
        }
        assert_eq!(numbers(&kept, 1, 5), None);
        assert_eq!(numbers(&kept, 2, 5), Some(vec![2, 3, 4]));
        assert_eq!(numbers(&kept, 5, 5), Some(Vec::new()));
        kept.push(5, Bytes::from(vec![0; 20]));
        assert_eq!(numbers(&kept, 4, 6), Some(vec![4, 5]));
        // A batch that is too large by itself is not kept.
        kept.push(6, Bytes::from(vec![0; 30]));
        assert_eq!((numbers(&kept, 6, 7), numbers(&kept, 7, 7)), (None, Some(Vec::new())));
    }
}
