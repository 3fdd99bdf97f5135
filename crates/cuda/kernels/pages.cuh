// Layout of keys and values in the pages of the device, and loads of their tiles into shared memory.
//
// A plane of a page is row-major, for ldmatrix and coalesced loads (the CPU interleaves keys by 16):
//   f16, bf16  [page_tokens, HEAD_DIM]
//   q8_0       [page_tokens, HEAD_DIM] signed bytes, then [page_tokens, HEAD_DIM / 32] f16 scales
//   q4_0       [page_tokens, HEAD_DIM / 2] bytes, the even element in the low four bits, both with an offset of 8, then
//              as many scales
// A plane takes as many bytes as on the CPU; `src/ops/layout.rs` turns one layout into the other. A page table holds
// the address of each page's plane, or zero if the page is not on the device. A page holds a multiple of 16 tokens.
#pragma once
#include "device.cuh"

constexpr u32 STRIPE = 16;
constexpr u32 SCALES = (HEAD_DIM + 31) / 32;
// Elements from row to row of a tile in shared memory: an odd number of 16-byte chunks, so the eight rows of an
// ldmatrix lie in different banks.
constexpr u32 PITCH = HEAD_DIM + 8;

// Address of 16 bytes of a tile's row in shared memory, for ldmatrix: rows of PITCH elements.
struct Pitched {
    u16 *tile;
    __device__ __forceinline__ u16 *at(u32 row, u32 channel) const { return tile + row * PITCH + channel; }
};

// Sixteen quants as stored, and the bits of their scale.
struct Quants {
    uint4 bytes;
    u16 scale;
};

__device__ __forceinline__ Quants read_quants(const u8 *plane, u32 format, u32 page_tokens, u32 token, u32 chunk) {
    Quants quants;
    u32 token_bytes = format == Q8_0 ? HEAD_DIM : HEAD_DIM / 2;
    if (format == Q8_0) {
        quants.bytes = *(const uint4 *)(plane + u64(token) * HEAD_DIM + chunk * 16);
    } else {
        uint2 half = *(const uint2 *)(plane + u64(token) * (HEAD_DIM / 2) + chunk * 8);
        quants.bytes = {half.x, half.y, 0, 0};
    }
    quants.scale = ((const u16 *)(plane + u64(page_tokens) * token_bytes))[token * SCALES + chunk / 2];
    return quants;
}

// Stores sixteen quants times their scale as 16-bit floats, eight at `low` and eight at `high`.
template <bool IS_BF16>
__device__ __forceinline__ void store_quants(u16 *low, u16 *high, u32 format, const Quants &quants) {
    const u32 words[4] = {quants.bytes.x, quants.bytes.y, quants.bytes.z, quants.bytes.w};
    float scale = f16_to_f32(quants.scale);
    u32 pairs[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int a, b;
        if (format == Q8_0)
            a = int(i8(words[i / 2] >> (16 * (i % 2)))), b = int(i8(words[i / 2] >> (16 * (i % 2) + 8)));
        else
            a = int(words[i / 4] >> (8 * (i % 4)) & 15) - 8, b = int(words[i / 4] >> (8 * (i % 4) + 4) & 15) - 8;
        pairs[i] = narrow_pair<IS_BF16>(float(a) * scale, float(b) * scale);
    }
    store_16(low, {pairs[0], pairs[1], pairs[2], pairs[3]});
    store_16(high, {pairs[4], pairs[5], pairs[6], pairs[7]});
}

// Row and chunk of chunk number n · THREADS + thread, in a tile of CHUNKS chunks a row.
template <u32 CHUNKS, u32 THREADS> __device__ __forceinline__ void locate(u32 &row, u32 &chunk, u32 n, u32 thread) {
    if (THREADS % CHUNKS == 0)
        row = n * (THREADS / CHUNKS) + thread / CHUNKS, chunk = thread % CHUNKS;
    else
        row = (n * THREADS + thread) / CHUNKS, chunk = (n * THREADS + thread) % CHUNKS;
}

// Loads tokens slot..slot + ROWS of a plane to the rows of a tile from first_row on, with THREADS threads. Unless
// IS_WHOLE, the rows from `valid` on become zero. Float formats are copied asynchronously.
template <bool IS_BF16, u32 ROWS, u32 THREADS, bool IS_WHOLE, class Place>
__device__ __forceinline__ void load_rows(const Place &to, u32 first_row, u64 plane, u32 format, u32 page_tokens, u32 slot,
                                          u32 valid, u32 thread) {
    // Wide heads leave registers for one chunk at a time only.
    constexpr u32 AT_ONCE = HEAD_DIM <= 128 ? 4 : 1;
    u32 row, chunk;
    if (format == F16 || format == BF16) {
        constexpr u32 CHUNKS = HEAD_DIM / 8;
        const u16 *from = (const u16 *)plane + u64(slot) * HEAD_DIM + thread * 8;
#pragma unroll AT_ONCE
        for (u32 n = 0; n < (ROWS * CHUNKS + THREADS - 1) / THREADS; n++) {
            locate<CHUNKS, THREADS>(row, chunk, n, thread);
            if (ROWS * CHUNKS % THREADS == 0 || row < ROWS)
                copy_async_16(to.at(first_row + row, chunk * 8), from + n * THREADS * 8, IS_WHOLE || row < valid ? 16 : 0);
        }
        return;
    }
    // All loads of a batch are issued before the first is used; this hides their latency.
    constexpr u32 CHUNKS = HEAD_DIM / 16, EACH = (ROWS * CHUNKS + THREADS - 1) / THREADS,
                  BATCH = EACH < AT_ONCE ? EACH : AT_ONCE;
#pragma unroll 1
    for (u32 batch = 0; batch < EACH; batch += BATCH) {
        Quants quants[BATCH];
#pragma unroll
        for (u32 n = 0; n < BATCH; n++) {
            locate<CHUNKS, THREADS>(row, chunk, batch + n, thread);
            quants[n] = {};
            if (row < (IS_WHOLE ? ROWS : valid))
                quants[n] = read_quants((const u8 *)plane, format, page_tokens, slot + row, chunk);
        }
#pragma unroll
        for (u32 n = 0; n < BATCH; n++) {
            locate<CHUNKS, THREADS>(row, chunk, batch + n, thread);
            if (row < ROWS)
                store_quants<IS_BF16>(to.at(first_row + row, chunk * 16), to.at(first_row + row, chunk * 16 + 8), format, quants[n]);
        }
    }
}

// The planes of one KV head.
struct Head {
    const u64 *keys, *values;
    u32 key_format, value_format, page_tokens;
    // One past the last key.
    u32 limit;
};

// Loads the KEYS keys from `first` on, a multiple of 16. Keys at or above the limit, and keys of pages that are not on
// the device, become zero.
template <bool IS_BF16, u32 KEYS, u32 THREADS, class Place>
__device__ __forceinline__ void load_tile(const Place &to, const u64 *planes, u32 format, const Head &head, u32 first,
                                          u32 thread) {
    u32 slot = first % head.page_tokens;
    if (KEYS > STRIPE && slot + KEYS <= head.page_tokens && first + KEYS <= head.limit) {
        u64 plane = planes[first / head.page_tokens];
        if (plane != 0) {
            load_rows<IS_BF16, KEYS, THREADS, true>(to, 0, plane, format, head.page_tokens, slot, KEYS, thread);
            return;
        }
    }
    // A page or the sequence ends within these keys.
#pragma unroll 1
    for (u32 row = 0; row < KEYS; row += STRIPE) {
        u32 key = first + row, valid = key < head.limit ? min(head.limit - key, STRIPE) : 0;
        u64 plane = valid ? planes[key / head.page_tokens] : 0;
        load_rows<IS_BF16, STRIPE, THREADS, false>(to, row, plane, format, head.page_tokens, key % head.page_tokens,
                                                   plane ? valid : 0, thread);
    }
}
