//! Unpacks quants, with table lookups for formats with four-bit codes.

use core::arch::aarch64::*;

use crate::quant::{Codes, Expanded, Quant, look_up};

/// The quants of stretch `INDEX`. Entries of grids are loaded one by one.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::machine::isa) fn unpack<Q: Quant, const INDEX: usize>(block: &[u8], expanded: &mut Expanded) {
    let Codes::Values(table) = (const { Q::CODES }) else {
        return look_up::<Q>(block, INDEX, expanded);
    };
    Q::quants(block, INDEX, expanded);
    let table: uint8x16_t = bytemuck::must_cast(*table);
    for codes in &mut expanded.quants {
        let quarters: [uint8x16_t; 4] = bytemuck::must_cast(*codes);
        *codes = bytemuck::must_cast(quarters.map(|codes| vqtbl1q_u8(table, codes)));
    }
}
