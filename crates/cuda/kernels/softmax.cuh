// Sixteen queries against tiles of keys in shared memory, on tensor cores with the online softmax (Milakov and
// Gimelshein 2018; FlashAttention-2, Dao 2023). Logits are kept in units of log 2, sums in f32.
#pragma once
#include "pages.cuh"
#include "reads.cuh"

constexpr u32 DEPTH_STEPS = HEAD_DIM / 16;

struct Logits {
    float scale, soft_cap;
};

// State of rows g and g + 8 of a warp's sixteen, distributed over the lanes like mma accumulators.
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
        ((u32 *)to)[i] = narrow_pair<IS_BF16>(a, b);
    }
}

__device__ __forceinline__ void load_query(u32 (&a)[4], const u16 *queries, u32 step) {
    load_matrices<false>(a, queries + lane_index() % 16 * PITCH + step * 16 + lane_index() / 16 * 8);
}

// tanh without a branch; the error is a few 2^-23.
__device__ __forceinline__ float tanh_fast(float x) { return 1.0f - __fdividef(2.0f, exp2_fast(x * (2 * LOG2_E)) + 1.0f); }

// Turns q · k of sixteen rows and KEYS keys into weights and updates m and l. The caller multiplies earlier sums by
// `keep`. `bits[i]` holds the keys of the tile that row g (i = 0) or g + 8 (i = 1) sees; `masked` is false if both see
// all keys.
template <u32 KEYS>
__device__ __forceinline__ void weigh(float (&s)[KEYS / 8][4], float (&m)[2], float (&l)[2], float (&keep)[2],
                                      const Logits &logits, bool masked, const u64 (&bits)[2]) {
    float factor = logits.scale * LOG2_E;
    if (logits.soft_cap > 0 || !(factor > 0)) {
        float inverse_cap = 1.0f / logits.soft_cap;
#pragma unroll
        for (u32 n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float logit = s[n][i] * logits.scale;
                s[n][i] = logits.soft_cap > 0 ? logits.soft_cap * tanh_fast(logit * inverse_cap) : logit;
            }
        factor = LOG2_E;
    }
    if (masked) {
        u32 shift = lane_index() % 4 * 2;
        const u64 own[2] = {bits[0] >> shift, bits[1] >> shift};
#pragma unroll
        for (u32 n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!(own[i / 2] & u64(1) << (8 * n + i % 2)))
                    s[n][i] = NEGATIVE_INFINITY;
    }
    float top[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY};
#pragma unroll
    for (u32 n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            top[i / 2] = fmaxf(top[i / 2], s[n][i]);
    float base[2], sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(top[i], __shfl_xor_sync(FULL_WARP, top[i], 1));
        top[i] = fmaxf(top[i], __shfl_xor_sync(FULL_WARP, top[i], 2));
        top[i] = fmaxf(top[i] * factor, m[i]);
        // A row that has seen nothing yet stays empty: exp2(−∞ − 0) is zero.
        base[i] = top[i] == NEGATIVE_INFINITY ? 0.0f : top[i];
        keep[i] = exp2_fast(m[i] - base[i]);
        m[i] = top[i];
    }
#pragma unroll
    for (u32 n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[n][i] = exp2_fast(__fmaf_rn(s[n][i], factor, -base[i / 2]));
            sum[i / 2] += s[n][i];
        }
#pragma unroll
    for (int i = 0; i < 2; i++)
        l[i] = l[i] * keep[i] + sum[i];
}

// Packs the weights as the first operand of a product with values: [KEYS / 16] fragments.
template <bool IS_BF16, u32 KEYS>
__device__ __forceinline__ void pack_weights(u32 (&p)[KEYS / 16][4], const float (&s)[KEYS / 8][4]) {
#pragma unroll
    for (u32 n = 0; n < KEYS / 16; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[n][i] = narrow_pair<IS_BF16>(s[2 * n + i / 2][i % 2 * 2], s[2 * n + i / 2][i % 2 * 2 + 1]);
}

// True if some row of the warp has a new maximum.
__device__ __forceinline__ bool has_moved(const float (&keep)[2]) {
    return __any_sync(FULL_WARP, keep[0] != 1 || keep[1] != 1);
}

__device__ __forceinline__ void rescale(Rows16 &rows, const float (&keep)[2]) {
#pragma unroll
    for (u32 d = 0; d < HEAD_DIM / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            rows.o[d][i] *= keep[i / 2];
}

// Lets sixteen rows attend to KEYS keys. `fragment(a, step)` writes a fragment of the queries to `a`; `masked` and
// `bits` are as in `weigh`.
template <bool KEY_IS_BF16, bool VALUE_IS_BF16, u32 KEYS, class Fragment>
__device__ __forceinline__ void attend_tile(Rows16 &rows, Fragment fragment, const u16 *keys, const u16 *values,
                                            const Logits &logits, bool masked, const u64 (&bits)[2]) {
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
    float keep[2];
    weigh<KEYS>(s, rows.m, rows.l, keep, logits, masked, bits);
    u32 p[KEYS / 16][4];
    pack_weights<VALUE_IS_BF16, KEYS>(p, s);
    if (has_moved(keep))
        rescale(rows, keep);
#pragma unroll
    for (u32 n = 0; n < KEYS / 16; n++)
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 16; d++) {
            u32 b[4];
            load_matrices<true>(b, values + (16 * n + lane % 16) * PITCH + d * 16 + lane / 16 * 8);
            u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
            multiply_add_16x8x16<VALUE_IS_BF16>(rows.o[2 * d], p[n], low);
            multiply_add_16x8x16<VALUE_IS_BF16>(rows.o[2 * d + 1], p[n], high);
        }
}

// Sums each row over its four lanes.
__device__ __forceinline__ void total_sums(float (&l)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        l[i] += __shfl_xor_sync(FULL_WARP, l[i], 1);
        l[i] += __shfl_xor_sync(FULL_WARP, l[i], 2);
    }
}

// Factor on `o`: 1 / (l + 2^(sink − m)), zero for a row that has read nothing. `sink` is a natural logit.
__device__ __forceinline__ float normaliser(float m, float l, const float *sinks, u32 head) {
    if (l == 0)
        return 0;
    if (!sinks)
        return 1.0f / l;
    float sink = sinks[head] * LOG2_E, top = fmaxf(m, sink), scale = exp2_fast(m - top);
    return scale / (l * scale + exp2_fast(sink - top));
}

// ln Σ exp(logit) without sinks; −∞ for a row that has read nothing.
__device__ __forceinline__ float natural_log_sum_exp(float m, float l) {
    return l == 0 ? NEGATIVE_INFINITY : (m + log2f(l)) / LOG2_E;
}
