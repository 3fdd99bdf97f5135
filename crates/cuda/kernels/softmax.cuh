// Sixteen queries against tiles of keys in shared memory, on tensor cores with the online softmax (Milakov and
// Gimelshein 2018; FlashAttention-2, Dao 2023). Logits are kept in units of log 2, sums in f32.
#pragma once
#include "pages.cuh"
#include "reads.cuh"

constexpr u32 DEPTH_STEPS = HEAD_DIM / 16;

struct Logits {
    float scale, soft_cap;
};

// State of rows g and g + 8 of a warp's sixteen, spread over its lanes as mma accumulators are.
struct Rows16 {
    float m[2], l[2];
    float o[HEAD_DIM / 8][4];
};

__device__ __forceinline__ void clear(Rows16 &rows) {
#pragma unroll
    for (int i = 0; i < 2; i++)
        rows.m[i] = NEGATIVE_INFINITY, rows.l[i] = 0;
#pragma unroll
    for (u32 d = 0; d < HEAD_DIM / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            rows.o[d][i] = 0;
}

// Writes a query, f32, as 16-bit row `to`; lanes of a warp share the work.
template <bool IS_BF16> __device__ __forceinline__ void store_query(u16 *to, const float *query) {
    for (u32 i = lane_index(); i < HEAD_DIM / 2; i += 32) {
        float a = query ? query[2 * i] : 0, b = query ? query[2 * i + 1] : 0;
        ((u32 *)to)[i] = pack_pair(narrow<IS_BF16>(a), narrow<IS_BF16>(b));
    }
}

__device__ __forceinline__ void load_query(u32 (&a)[4], const u16 *queries, u32 step) {
    load_matrices<false>(a, queries + lane_index() % 16 * PITCH + step * 16 + lane_index() / 16 * 8);
}

// Sixteen rows more: `fragment(step)` gives the queries' fragments, `bits[i]` what rows g and g + 8 see of the
// tile, `masked` whether that is not all.
template <bool KEY_IS_BF16, bool VALUE_IS_BF16, u32 KEYS, class Fragment>
__device__ __forceinline__ void attend_tile(Rows16 &rows, Fragment fragment, const u16 *keys, const u16 *values,
                                            const Logits &logits, bool masked, u64 bits0, u64 bits1) {
    u32 lane = lane_index();
    float s[KEYS / 8][4];
#pragma unroll
    for (u32 n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = 0;
#pragma unroll
    for (u32 step = 0; step < DEPTH_STEPS; step++) {
        u32 a[4];
        fragment(a, step);
#pragma unroll
        for (u32 n = 0; n < KEYS / 16; n++) {
            u32 b[4];
            load_matrices<false>(b, keys + (16 * n + lane / 16 * 8 + lane % 8) * PITCH + step * 16 + lane / 8 % 2 * 8);
            u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
            multiply_add_16x8x16<KEY_IS_BF16>(s[2 * n], a, low);
            multiply_add_16x8x16<KEY_IS_BF16>(s[2 * n + 1], a, high);
        }
    }
    float top[2] = {rows.m[0], rows.m[1]};
#pragma unroll
    for (u32 n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float logit = s[n][i] * logits.scale;
            if (logits.soft_cap > 0)
                logit = logits.soft_cap * tanhf(logit / logits.soft_cap);
            logit *= LOG2_E;
            if (masked && !((i / 2 ? bits1 : bits0) >> (8 * n + lane % 4 * 2 + i % 2) & 1))
                logit = NEGATIVE_INFINITY;
            s[n][i] = logit;
            top[i / 2] = fmaxf(top[i / 2], logit);
        }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(top[i], __shfl_xor_sync(FULL_WARP, top[i], 1));
        top[i] = fmaxf(top[i], __shfl_xor_sync(FULL_WARP, top[i], 2));
    }
    float base[2], keep[2], sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        // A row that has seen nothing yet stays empty: exp2(−∞ − 0) is zero.
        base[i] = top[i] == NEGATIVE_INFINITY ? 0.0f : top[i];
        keep[i] = exp2_fast(rows.m[i] - base[i]);
        rows.m[i] = top[i];
    }
    u32 p[KEYS / 8][2];
#pragma unroll
    for (u32 n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[n][i] = exp2_fast(s[n][i] - base[i / 2]);
            sum[i / 2] += s[n][i];
        }
        p[n][0] = pack_pair(narrow<VALUE_IS_BF16>(s[n][0]), narrow<VALUE_IS_BF16>(s[n][1]));
        p[n][1] = pack_pair(narrow<VALUE_IS_BF16>(s[n][2]), narrow<VALUE_IS_BF16>(s[n][3]));
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        rows.l[i] = rows.l[i] * keep[i] + sum[i];
#pragma unroll
    for (u32 d = 0; d < HEAD_DIM / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            rows.o[d][i] *= keep[i / 2];
#pragma unroll
    for (u32 n = 0; n < KEYS / 16; n++) {
        u32 a[4] = {p[2 * n][0], p[2 * n][1], p[2 * n + 1][0], p[2 * n + 1][1]};
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 16; d++) {
            u32 b[4];
            load_matrices<true>(b, values + (16 * n + lane % 16) * PITCH + d * 16 + lane / 16 * 8);
            u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
            multiply_add_16x8x16<VALUE_IS_BF16>(rows.o[2 * d], a, low);
            multiply_add_16x8x16<VALUE_IS_BF16>(rows.o[2 * d + 1], a, high);
        }
    }
}

// The sums of a row over the four lanes that share it.
__device__ __forceinline__ void total_sums(float (&l)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        l[i] += __shfl_xor_sync(FULL_WARP, l[i], 1);
        l[i] += __shfl_xor_sync(FULL_WARP, l[i], 2);
    }
}

// What `o` is multiplied with: 1 / (l + 2^(sink − m)), zero for a row that has read nothing. `sink` is a natural logit.
__device__ __forceinline__ float normaliser(float m, float l, const float *sinks, u32 head) {
    if (l == 0)
        return 0;
    if (!sinks)
        return 1.0f / l;
    float sink = sinks[head] * LOG2_E, top = fmaxf(m, sink), scale = exp2_fast(m - top);
    return scale / (l * scale + exp2_fast(sink - top));
}

// ln Σ exp(logit), −∞ for a row that has read nothing; sinks take no part.
__device__ __forceinline__ float natural_log_sum_exp(float m, float l) {
    return l == 0 ? NEGATIVE_INFINITY : (m + log2f(l)) / LOG2_E;
}
