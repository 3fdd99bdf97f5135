//! The choice of the highest scores by `torch.topk` on a CPU. Among equal scores it follows from the order in which
//! libstdc++ exchanges elements. Trained models with many zero scores depend on this choice.
//!
//! `std::nth_element` is introselect (Musser, "Introspective sorting and selection algorithms", 1997) with the median
//! of three as pivot. For a few of many elements torch uses `std::partial_sort`, which selects with a heap.

/// A score and its index.
type Entry = (f32, usize);

/// Below this share of the elements torch uses a heap.
const HEAP_SHARE: usize = 64;

/// Indices of the `most` highest scores, ascending, in torch's choice.
pub fn choose_as_torch(scores: &[f32], most: usize) -> Vec<usize> {
    let mut entries: Vec<Entry> = scores.iter().copied().zip(0..).collect();
    let most = most.min(entries.len());
    if most == 0 {
        return Vec::new();
    }
    if most * HEAP_SHARE <= entries.len() {
        select_by_heap(&mut entries, most);
    } else {
        select(&mut entries, most - 1);
    }
    let mut chosen: Vec<usize> = entries[..most].iter().map(|(_, index)| *index).collect();
    chosen.sort_unstable();
    chosen
}

fn precedes(one: Entry, other: Entry) -> bool {
    one.0 > other.0 || one.0.is_nan() && !other.0.is_nan()
}

/// Moves the entries that precede the entry at `place` before it.
fn select(entries: &mut [Entry], place: usize) {
    let (mut first, mut end) = (0, entries.len());
    let mut depth = 2 * entries.len().ilog2();
    while end - first > 3 {
        if depth == 0 {
            let part = &mut entries[first..end];
            select_by_heap(part, place + 1 - first);
            part.swap(0, place - first);
            return;
        }
        depth -= 1;
        let cut = first + part_at_median(&mut entries[first..end]);
        if cut <= place {
            first = cut;
        } else {
            end = cut;
        }
    }
    sort_few(&mut entries[first..end]);
}

/// Splits entries at a median of three, and returns the start of the second part.
fn part_at_median(entries: &mut [Entry]) -> usize {
    let [one, middle, last] = [1, entries.len() / 2, entries.len() - 1];
    let before = |a: usize, b: usize| precedes(entries[a], entries[b]);
    let median = if before(one, middle) {
        if before(middle, last) {
            middle
        } else if before(one, last) {
            last
        } else {
            one
        }
    } else if before(one, last) {
        one
    } else if before(middle, last) {
        last
    } else {
        middle
    };
    entries.swap(0, median);
    let pivot = entries[0];
    let (mut low, mut high) = (1, entries.len());
    loop {
        while precedes(entries[low], pivot) {
            low += 1;
        }
        high -= 1;
        while precedes(pivot, entries[high]) {
            high -= 1;
        }
        if low >= high {
            return low;
        }
        entries.swap(low, high);
        low += 1;
    }
}

/// Sorts by insertion; equal entries keep their order.
fn sort_few(entries: &mut [Entry]) {
    for end in 1..entries.len() {
        let mut place = end;
        while place > 0 && precedes(entries[place], entries[place - 1]) {
            entries.swap(place, place - 1);
            place -= 1;
        }
    }
}

/// Moves the first `count` entries in order to the front, as a heap whose root is the last of them.
fn select_by_heap(entries: &mut [Entry], count: usize) {
    for root in (0..count / 2).rev() {
        let entry = entries[root];
        sink(&mut entries[..count], root, entry);
    }
    for place in count..entries.len() {
        if precedes(entries[place], entries[0]) {
            let entry = entries[place];
            entries[place] = entries[0];
            sink(&mut entries[..count], 0, entry);
        }
    }
}

/// Inserts an entry into the heap below `root`: down to a leaf along the later children, then up to its place.
fn sink(heap: &mut [Entry], root: usize, entry: Entry) {
    let (mut hole, count) = (root, heap.len());
    loop {
        let right = 2 * hole + 2;
        let child = if right < count {
            right - usize::from(precedes(heap[right], heap[right - 1]))
        } else if right == count {
            right - 1
        } else {
            break;
        };
        heap[hole] = heap[child];
        hole = child;
    }
    while hole > root && precedes(heap[(hole - 1) / 2], entry) {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = entry;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scores with many equal ones.
    fn scores(count: usize, seed: u64, kinds: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % kinds) as f32
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn the_highest_scores_are_chosen() {
        for (count, kinds) in [(1, 2), (3, 2), (40, 3), (100, 1000), (999, 5), (2000, 100_000)] {
            for most in [1, 2, count / 70 + 1, count / 3 + 1, count - 1, count, count + 5] {
                let scores = scores(count, (count + most) as u64, kinds);
                let chosen = choose_as_torch(&scores, most);
                assert_eq!(chosen.len(), most.min(count));
                assert!(chosen.is_sorted_by(|one, other| one < other));
                let least = chosen.iter().map(|index| scores[*index]).fold(f32::INFINITY, f32::min);
                let left = (0..count).filter(|index| chosen.binary_search(index).is_err());
                assert!(left.into_iter().all(|index| scores[index] <= least));
            }
        }
    }

    #[test]
    fn equal_scores_are_chosen_as_torch_does() {
        for (scores, most, chosen) in [
            (scores(12, 1, 2), 5, vec![0, 1, 5, 8, 10]),
            (scores(20, 2, 1), 7, vec![11, 12, 13, 14, 15, 17, 19]),
            (scores(200, 5, 2), 3, vec![1, 3, 4]),
        ] {
            assert_eq!(choose_as_torch(&scores, most), chosen);
        }
    }
}
