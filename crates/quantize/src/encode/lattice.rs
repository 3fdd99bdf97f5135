//! Grids of entries for four or eight weights, and a search for the nearest entry.

use riffle_linear::WeightFormat;

/// Entries of a grid, found by cell. A cell is the result of rounding each weight alone.
pub(super) struct Lattice<const WIDTH: usize> {
    /// Magnitudes of the entries, ascending.
    levels: Vec<f32>,
    /// Borders between neighbouring levels.
    borders: Vec<f32>,
    entries: Vec<[f32; WIDTH]>,
    /// For each cell, a range of `near`.
    cells: Vec<(u32, u16)>,
    /// Entries near a cell, nearest first. A cell that is an entry has only itself.
    near: Vec<u16>,
}

impl<const WIDTH: usize> Lattice<WIDTH> {
    /// The grid of `format` in units of `unit`. A cell that is not an entry gets `count` entries near it.
    pub(super) fn new(format: WeightFormat, unit: f32, count: usize) -> Lattice<WIDTH> {
        let values = format.grid().unwrap_or_default();
        let entries: Vec<[f32; WIDTH]> = values
            .as_chunks::<WIDTH>()
            .0
            .iter()
            .map(|entry| entry.map(|value| value / unit))
            .collect();
        let mut levels: Vec<f32> = entries.iter().flatten().copied().collect();
        levels.sort_by(f32::total_cmp);
        levels.dedup();
        let borders = levels.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
        let mut lattice = Lattice {
            borders,
            entries,
            cells: Vec::new(),
            near: Vec::new(),
            levels,
        };
        for cell in 0..lattice.levels.len().pow(WIDTH as u32) {
            let mut near = lattice.nearest_of_all(cell, count);
            let start = lattice.near.len() as u32;
            lattice.cells.push((start, near.len() as u16));
            lattice.near.append(&mut near);
        }
        lattice
    }

    /// The values of an entry.
    pub(super) fn entry(&self, entry: u16) -> &[f32; WIDTH] {
        &self.entries[usize::from(entry)]
    }

    /// The largest value of an entry.
    pub(super) fn top(&self) -> f32 {
        self.levels.last().copied().unwrap_or_default()
    }

    /// The entry with the least weighted squared error, for weights in units of the grid.
    #[inline]
    pub(super) fn nearest(&self, x: &[f32; WIDTH], w: &[f32; WIDTH]) -> u16 {
        let (start, count) = self.cells[self.cell(x)];
        let near = &self.near[start as usize..][..usize::from(count)];
        if let [entry] = near {
            return *entry;
        }
        let linear: [f32; WIDTH] = core::array::from_fn(|lane| -2.0 * w[lane] * x[lane]);
        let mut best = (f32::INFINITY, 0);
        for entry in near {
            let values = self.entry(*entry);
            let mut terms = [0.0; WIDTH];
            for lane in 0..WIDTH {
                terms[lane] = values[lane] * (w[lane] * values[lane] + linear[lane]);
            }
            let error = terms.iter().sum::<f32>();
            if error < best.0 {
                best = (error, *entry);
            }
        }
        best.1
    }

    fn cell(&self, x: &[f32; WIDTH]) -> usize {
        let count = self.levels.len();
        x.iter().rev().fold(0, |cell, value| {
            let level = self
                .borders
                .iter()
                .map(|border| usize::from(value > border))
                .sum::<usize>();
            cell * count + level
        })
    }

    /// The `count` entries nearest to the middle of a cell, in order. Entry numbers break ties.
    fn nearest_of_all(&self, cell: usize, count: usize) -> Vec<u16> {
        let levels = self.levels.len();
        let middle: [f32; WIDTH] = core::array::from_fn(|lane| self.levels[cell / levels.pow(lane as u32) % levels]);
        let distance = |entry: &[f32; WIDTH]| (0..WIDTH).map(|lane| (entry[lane] - middle[lane]).powi(2)).sum::<f32>();
        let mut near: Vec<(f32, u16)> = self
            .entries
            .iter()
            .enumerate()
            .map(|(index, entry)| (distance(entry), index as u16))
            .collect();
        let order = |a: &(f32, u16), b: &(f32, u16)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        if count < near.len() {
            near.select_nth_unstable_by(count, order);
            near.truncate(count);
        }
        near.sort_by(order);
        if near.first().is_some_and(|(distance, _)| *distance == 0.0) {
            near.truncate(1);
        }
        near.into_iter().map(|(_, entry)| entry).collect()
    }
}
