//! The float tile that all vector instruction sets share, in terms of their block of 16 lanes.

/// Expands to `float_tile` for an instruction set with `Block`, `zero`, `load`, `multiply_add`, `add`, `store`,
/// `prefetch` and `prefetch_far` in scope. `$one`, `$six` and `$eight` are the blocks of a tile for one token, up to
/// six, and up to eight: as many sums as fit the registers, and enough to hide the latency of a multiply-add.
macro_rules! float_kernels {
    ($features:literal, $one:literal, $six:literal, $eight:literal) => {
        #[target_feature(enable = $features)]
        pub(in crate::machine::isa) fn float_tile<E: Element>(
            weights: &[[E::Bits; LANES]],
            blocks: usize,
            rows: &[&[E::Value]],
            sums: &mut [GroupSums],
        ) {
            match rows {
                [a] => columns::<E, $one, 1>(weights, blocks, [a], sums),
                [a, b] => columns::<E, $six, 2>(weights, blocks, [a, b], sums),
                [a, b, c] => columns::<E, $six, 3>(weights, blocks, [a, b, c], sums),
                [a, b, c, d] => columns::<E, $six, 4>(weights, blocks, [a, b, c, d], sums),
                [a, b, c, d, e] => columns::<E, $six, 5>(weights, blocks, [a, b, c, d, e], sums),
                [a, b, c, d, e, f] => columns::<E, $six, 6>(weights, blocks, [a, b, c, d, e, f], sums),
                [a, b, c, d, e, f, g] => columns::<E, $eight, 7>(weights, blocks, [a, b, c, d, e, f, g], sums),
                [a, b, c, d, e, f, g, h] => columns::<E, $eight, 8>(weights, blocks, [a, b, c, d, e, f, g, h], sums),
                _ => unreachable!("a tile takes 1 to {} tokens", crate::float::TILE_TOKENS),
            }
        }

        /// For each panel, processes the blocks of a group, `WIDE` at a time as long as so many remain.
        #[target_feature(enable = $features)]
        fn columns<E: Element, const WIDE: usize, const ROWS: usize>(
            weights: &[[E::Bits; LANES]],
            blocks: usize,
            rows: [&[E::Value]; ROWS],
            sums: &mut [GroupSums],
        ) {
            for (index, weights) in weights.chunks(PANEL * blocks).enumerate() {
                let panel = weights.len() / blocks;
                let rows: [&[E::Value]; ROWS] = core::array::from_fn(|row| &rows[row][index * PANEL..][..panel]);
                let mut block = 0;
                while block + WIDE <= blocks {
                    tile::<E, WIDE, ROWS>(weights, blocks, block, rows, sums);
                    block += WIDE;
                }
                while block < blocks {
                    tile::<E, 1, ROWS>(weights, blocks, block, rows, sums);
                    block += 1;
                }
            }
        }

        /// `WIDE` blocks of a panel from `block` on.
        #[target_feature(enable = $features)]
        fn tile<E: Element, const WIDE: usize, const ROWS: usize>(
            weights: &[[E::Bits; LANES]],
            blocks: usize,
            block: usize,
            rows: [&[E::Value]; ROWS],
            sums: &mut [GroupSums],
        ) {
            // The stride is a compile-time constant for a tile as wide as the largest group.
            let blocks = if WIDE == GROUP_BLOCKS { WIDE } else { blocks };
            let mut parts = [[zero(); WIDE]; ROWS];
            for (step, vectors) in weights.chunks_exact(blocks).enumerate() {
                let vectors = &vectors[block..][..WIDE];
                if WIDE == GROUP_BLOCKS {
                    prefetch(vectors);
                } else {
                    // Prefetch the same blocks of the next panel, so that memory is busy during every pass.
                    prefetch_far(vectors, size_of_val(weights));
                }
                let mut wide = [zero(); WIDE];
                for (wide, vector) in wide.iter_mut().zip(vectors) {
                    *wide = load::<E>(vector);
                }
                for (row, parts) in rows.iter().zip(&mut parts) {
                    for (part, wide) in parts.iter_mut().zip(wide) {
                        *part = multiply_add::<E>(wide, row[step], *part);
                    }
                }
            }
            for (sums, parts) in sums.iter_mut().zip(parts) {
                for (sum, part) in sums[block..].iter_mut().zip(parts) {
                    *sum = store(add(load::<F32>(sum), part));
                }
            }
        }
    };
}

pub(super) use float_kernels;

/// Expands to `widen` and `round`, with `load`, `store` and `prefetch` in scope.
macro_rules! half_kernels {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        pub(super) fn widen<E: Element>(weights: &[[E::Bits; LANES]], widened: &mut [[f32; LANES]]) {
            for (wide, narrow) in widened.iter_mut().zip(weights) {
                prefetch(narrow);
                *wide = store(load::<E>(narrow));
            }
        }

        #[target_feature(enable = $features)]
        pub(super) fn round(values: &[f32], rounded: &mut [u16]) {
            super::scalar::round(values, rounded);
        }
    };
}

pub(super) use half_kernels;
