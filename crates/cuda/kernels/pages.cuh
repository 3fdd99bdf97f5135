// How keys and values lie in the pages of the device, and how tiles of them come into shared memory.
//
// A plane of a page is row-major, which is what ldmatrix and coalesced loads want (the CPU interleaves keys by 16):
//   f16, bf16  [page_tokens, HEAD_DIM]
//   q8_0       [page_tokens, HEAD_DIM] signed bytes, then [page_tokens, HEAD_DIM / 32] f16 scales
//   q4_0       [page_tokens, HEAD_DIM / 2] bytes, the even element in the low four bits, both with an offset of 8, then
//              as many scales
// It takes as many bytes as the CPU's plane; `src/ops/layout.rs` turns one into the other. A page table holds
// the address of a plane for each page, zero where the page is away. A page holds a multiple of 16 tokens.
#pragma once
#include "device.cuh"

constexpr u32 STRIPE = 16;
constexpr u32 SCALES = (HEAD_DIM + 31) / 32;
// Elements from row to row of a tile in shared memory: an odd number of 16-byte chunks, so that the eight rows of an
// ldmatrix lie in different banks.
constexpr u32 PITCH = HEAD_DIM + 8;

// Sixteen quants times their scale as 16-bit floats.
template <bool IS_BF16> __device__ __forceinline__ void store_expanded(u16 *to, const int (&quants)[16], float scale) {
    u32 pairs[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        pairs[i] = pack_pair(narrow<IS_BF16>(float(quants[2 * i]) * scale), narrow<IS_BF16>(float(quants[2 * i + 1]) * scale));
    ((uint4 *)to)[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    ((uint4 *)to)[1] = {pairs[4], pairs[5], pairs[6], pairs[7]};
}

// Brings tokens slot..slot + 16 of a plane into `to`, [16, PITCH], by `threads` threads; rows from `valid` on become
// zero. Float formats come asynchronously.
template <bool IS_BF16>
__device__ __forceinline__ void load_stripe(u16 *to, u64 plane, u32 format, u32 page_tokens, u32 slot, u32 valid,
                                            u32 thread, u32 threads) {
    if (plane == 0)
        valid = 0;
    if (format == F16 || format == BF16) {
        constexpr u32 CHUNKS = HEAD_DIM / 8;
        for (u32 i = thread; i < STRIPE * CHUNKS; i += threads) {
            u32 row = i / CHUNKS, chunk = i % CHUNKS;
            const u16 *from = (const u16 *)plane + u64(slot + row) * HEAD_DIM + chunk * 8;
            copy_async_16(to + row * PITCH + chunk * 8, row < valid ? from : to, row < valid ? 16 : 0);
        }
        return;
    }
    constexpr u32 CHUNKS = HEAD_DIM / 16;
    for (u32 i = thread; i < STRIPE * CHUNKS; i += threads) {
        u32 row = i / CHUNKS, chunk = i % CHUNKS;
        int quants[16] = {};
        float scale = 0;
        if (row < valid) {
            u64 token = slot + row;
            const u8 *scales;
            if (format == Q8_0) {
                uint4 bytes = *(const uint4 *)((const u8 *)plane + token * HEAD_DIM + chunk * 16);
                const u32 words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
                for (int j = 0; j < 16; j++)
                    quants[j] = int(i8(words[j / 4] >> (8 * (j % 4))));
                scales = (const u8 *)plane + u64(page_tokens) * HEAD_DIM;
            } else {
                uint2 bytes = *(const uint2 *)((const u8 *)plane + token * (HEAD_DIM / 2) + chunk * 8);
                const u32 words[2] = {bytes.x, bytes.y};
#pragma unroll
                for (int j = 0; j < 16; j++)
                    quants[j] = int(words[j / 8] >> (4 * (j % 8)) & 15) - 8;
                scales = (const u8 *)plane + u64(page_tokens) * (HEAD_DIM / 2);
            }
            scale = f16_to_f32(((const u16 *)scales)[token * SCALES + chunk / 2]);
        }
        store_expanded<IS_BF16>(to + row * PITCH + chunk * 16, quants, scale);
    }
}

// The planes of one KV head.
struct Head {
    const u64 *keys, *values;
    u32 key_format, value_format, page_tokens;
    // One past the last key there is.
    u32 limit;
};

template <bool IS_BF16, u32 KEYS>
__device__ __forceinline__ void load_tile(u16 *to, const u64 *planes, u32 format, const Head &head, u32 first, u32 thread,
                                          u32 threads) {
#pragma unroll
    for (u32 stripe = 0; stripe < KEYS / STRIPE; stripe++) {
        u32 key = first + stripe * STRIPE;
        u32 valid = key < head.limit ? min(head.limit - key, STRIPE) : 0;
        u64 plane = valid ? planes[key / head.page_tokens] : 0;
        load_stripe<IS_BF16>(to + stripe * STRIPE * PITCH, plane, format, head.page_tokens, key % head.page_tokens,
                             valid, thread, threads);
    }
}
