//! Few tokens: each stretch is unpacked and added to the sums of all tokens without passing through memory.

/// The maximum number of tokens. Each token's sums for 16 outputs take two of sixteen registers; a fourth token would
/// spill.
pub(in crate::machine::isa) const FEW: usize = 3;

/// Expands to `few_tokens` and `add_part` for instruction sets with 16 registers of 256 bits. The functions of
/// [`pairs`](super::pairs) must be in scope.
macro_rules! few_token_kernels {
    ($features:literal) => {
        /// Multiplies a band with `TOKENS` tokens; `activations` is `[TOKENS, stretches]`.
        #[target_feature(enable = $features)]
        fn few_tokens<Q: Quant, const TOKENS: usize>(
            weights: &[u8],
            activations: &[ActivationBlock],
            sums: &mut [[f32; LANES]],
        ) {
            let stretches = activations.len() / TOKENS;
            let mut tokens = [activations; TOKENS];
            let mut totals = [[_mm256_setzero_ps(); 2]; TOKENS];
            for token in 0..TOKENS {
                tokens[token] = &activations[token * stretches..][..stretches];
                totals[token] = load::<F32>(&sums[token]);
            }
            let of_block = Q::WEIGHTS / STRETCH;
            let first_cache = is_amd();
            let mut expanded = Expanded::default();
            for (number, block) in weights.chunks_exact(LANES * Q::BYTES).enumerate() {
                let halves = widen_halves::<Q>(block);
                let mut blocks = [activations; TOKENS];
                for token in 0..TOKENS {
                    blocks[token] = &tokens[token][number * of_block..][..of_block];
                }
                for_stretches!(Q, INDEX => {
                    match first_cache {
                        true => prefetch(share::<Q>(block, INDEX)),
                        false => prefetch_far(share::<Q>(block, INDEX), AHEAD_BYTES),
                    }
                    Q::scales(block, INDEX, &halves, &mut expanded);
                    if const { Q::PIECES[0][0].is_none() } {
                        unpack::<Q, INDEX, TOKENS>(block, &mut expanded);
                    }
                    let mut activations = [&blocks[0][INDEX]; TOKENS];
                    for token in 0..TOKENS {
                        activations[token] = &blocks[token][INDEX];
                    }
                    for part in 0..parts::<Q>() {
                        add_part::<Q, INDEX, TOKENS, false>(block, &expanded, part, &activations, &mut totals);
                    }
                    for token in 0..TOKENS {
                        totals[token] = add_minimums::<Q>(totals[token], &expanded, activations[token]);
                    }
                });
            }
            for (sums, total) in sums.iter_mut().zip(totals) {
                *sums = store(total);
            }
        }

        /// Adds the products of a part of stretch `INDEX`, from a block or, if `UNPACKED`, from `expanded`. Sums of
        /// all tokens are independent, so that none waits for its own.
        #[inline]
        #[target_feature(enable = $features)]
        fn add_part<Q: Quant, const INDEX: usize, const TOKENS: usize, const UNPACKED: bool>(
            block: &[u8],
            expanded: &Expanded,
            part: usize,
            activations: &[&ActivationBlock; TOKENS],
            totals: &mut [Block; TOKENS],
        ) {
            let mut products = [[_mm256_setzero_si256(); 2]; TOKENS];
            for link in 0..groups::<Q>() / chain::<Q>() {
                let mut pairs = [[_mm256_setzero_si256(); 2]; TOKENS];
                if link == 0 {
                    for token in 0..TOKENS {
                        pairs[token] = [bias::<Q>(activations[token], part); 2];
                    }
                }
                for group in 0..chain::<Q>() {
                    let group = part * groups::<Q>() + link * chain::<Q>() + group;
                    let quants = quants::<Q, INDEX, UNPACKED>(block, expanded, group);
                    for token in 0..TOKENS {
                        let word = word(activations[token], group);
                        pairs[token][0] = add_products::<Q>(pairs[token][0], quants[0], word);
                        pairs[token][1] = add_products::<Q>(pairs[token][1], quants[1], word);
                    }
                }
                for token in 0..TOKENS {
                    for side in 0..2 {
                        products[token][side] = _mm256_add_epi32(products[token][side], whole(pairs[token][side]));
                    }
                }
            }
            let scales: Block = bytemuck::must_cast(expanded.scales[part]);
            for token in 0..TOKENS {
                let scale = _mm256_set1_ps(activations[token].scale);
                totals[token][0] = add_scaled(totals[token][0], products[token][0], scales[0], scale);
                totals[token][1] = add_scaled(totals[token][1], products[token][1], scales[1], scale);
            }
        }

        /// The quants of a group of stretch `INDEX`: unpacked before, or from the block's planes.
        #[inline]
        #[target_feature(enable = $features)]
        fn quants<Q: Quant, const INDEX: usize, const UNPACKED: bool>(block: &[u8], expanded: &Expanded, group: usize) -> [__m256i; 2] {
            if const { UNPACKED || Q::PIECES[0][0].is_none() } {
                return bytemuck::must_cast(expanded.quants[group]);
            }
            let mut quants = [_mm256_setzero_si256(); 2];
            for piece in 0..3 {
                let Some(piece) = Q::PIECES[INDEX][piece] else {
                    break;
                };
                let bytes: [__m256i; 2] = bytemuck::must_cast(*words(block, Q::PLANES, 8 * piece.plane + group));
                let mask = _mm256_set1_epi8(piece.of(piece.mask).cast_signed());
                let count = _mm_cvtsi32_si128(piece.shift.abs());
                for side in 0..2 {
                    let moved = match piece.shift {
                        0 => bytes[side],
                        1.. => _mm256_srl_epi16(bytes[side], count),
                        _ => _mm256_sll_epi16(bytes[side], count),
                    };
                    quants[side] = _mm256_or_si256(quants[side], _mm256_and_si256(moved, mask));
                }
            }
            quants
        }
    };
}

pub(in crate::machine::isa) use few_token_kernels;
