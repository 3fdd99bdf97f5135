// Layout of pages in main memory: stripes of 16 tokens, keys interleaved within them
// (`crates/attention/src/layout.rs`).
#pragma once
#include "device.cuh"

constexpr u32 LANES = 16, QUANT_BLOCK = 32;

// Quantisation blocks of a head, each with one scale, and bytes of a token's quants.
__device__ __forceinline__ u32 quant_blocks(u32 head_dim) { return (head_dim + QUANT_BLOCK - 1) / QUANT_BLOCK; }
__device__ __forceinline__ u32 quant_bytes(bool is_8_bit, u32 head_dim) { return is_8_bit ? head_dim : head_dim / 2; }

// Bytes of a stripe of a format.
__device__ __forceinline__ u32 stripe_bytes(u32 format, u32 head_dim) {
    return format == F16 || format == BF16 ? 2 * LANES * head_dim
                                           : LANES * (quant_bytes(format == Q8_0, head_dim) + 2 * quant_blocks(head_dim));
}

// Index of element d of a lane in a stripe of 16-bit floats.
__device__ __forceinline__ u32 stripe_element(bool keys, u32 head_dim, u32 lane, u32 d) {
    return keys ? d * LANES + lane : lane * head_dim + d;
}

// Byte offset of the scale of a lane's block in a stripe.
__device__ __forceinline__ u32 stripe_scale(bool keys, bool is_8_bit, u32 lane, u32 block) {
    u32 before = keys ? block * (2 * LANES + LANES * (is_8_bit ? QUANT_BLOCK : QUANT_BLOCK / 2)) : 2 * LANES * block;
    return before + 2 * lane;
}

// Byte offset of the quant of element d of a lane in a stripe. A quant of 4 bits lies in the high half of the byte if
// `is_high`.
__device__ __forceinline__ u32 stripe_quant(bool keys, bool is_8_bit, u32 head_dim, u32 lane, u32 d, bool &is_high) {
    u32 first = d / QUANT_BLOCK * QUANT_BLOCK, at = d - first, width = min(QUANT_BLOCK, head_dim - first);
    u32 quants = keys ? 2 * LANES * (first / QUANT_BLOCK + 1) : 2 * LANES * quant_blocks(head_dim);
    if (is_8_bit) {
        is_high = false;
        return quants + LANES * first + (keys ? at / 4 * 4 * LANES + 4 * lane + at % 4 : lane / 4 * 4 * width + 4 * at + lane % 4);
    }
    is_high = keys ? at % 8 >= 4 : lane % 8 >= 4;
    return quants + LANES / 2 * first +
           (keys ? at / 8 * 4 * LANES + 4 * lane + at % 4 : lane / 8 * 4 * width + 4 * at + lane % 4);
}
