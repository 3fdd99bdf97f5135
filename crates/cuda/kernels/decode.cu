// Attention of few queries over pages, dense or under a `Selection`: split over the keys, then merged.
//
// A block takes sixteen packed rows (query p / group, head p % group) of a tile and one part of its keys. Each of its
// warps takes every WARPS-th step of sixteen keys with its own double buffer, and the warps combine their results at
// the end. A part's result depends only on the part, so parts may be launched as their pages arrive. Tensor cores
// compute the products: with the heads of a group packed, memory reads determine the time.
#include "softmax.cuh"

constexpr u32 KEYS = 16, WARPS = HEAD_DIM <= 128 ? 4 : 2, THREADS = WARPS * 32, TILE = KEYS * PITCH;

// Work of a block: runs begin..end of a tile, and the slot of its partial result.
struct DecodePart {
    u32 tile, runs, runs_end, slot;
};

KERNEL __launch_bounds__(THREADS) decode(
    float *partial_ml, float *partial_o, const float *queries, u64 query_stride, const DecodePart *parts, const QueryTile *tiles,
    const Run *runs, const u32 *diagonals, const u32 *extra_ends, const u32 *extras, const u64 *key_pages,
    const u64 *value_pages, u32 pages_per_head, u32 page_tokens, u32 key_format, u32 value_format, u32 group, float scale,
    float soft_cap) {
    DYNAMIC_SHARED(memory);
    const DecodePart part = parts[blockIdx.x];
    const QueryTile tile = tiles[part.tile];
    u32 lane = lane_index(), warp = warp_index(), first_packed = blockIdx.y * 16, packed_rows = tile.rows * group;
    if (first_packed >= packed_rows)
        return;
    u16 *keys = (u16 *)memory + warp * 4 * TILE, *values = keys + 2 * TILE;
    Head head = {key_pages + u64(tile.kv_head) * pages_per_head, value_pages + u64(tile.kv_head) * pages_per_head,
                 key_format, value_format, page_tokens, tile.start + tile.rows};
    Lines lines = {diagonals, extra_ends, extras};
    Logits logits = {scale, soft_cap};

    // The queries pass through the warp's first buffer into registers.
    u32 fragments[DEPTH_STEPS][4];
    for (u32 i = 0; i < 16; i++) {
        u32 packed = first_packed + i;
        const float *query = nullptr;
        if (packed < packed_rows)
            query = queries + u64(tile.row + packed / group) * query_stride +
                    u64(tile.kv_head * group + packed % group) * HEAD_DIM;
        store_query<KEY_BF16>(keys + i * PITCH, query);
    }
    __syncwarp();
#pragma unroll
    for (u32 step = 0; step < DEPTH_STEPS; step++)
        load_query(fragments[step], keys, step);
    __syncwarp();

    Rows16 rows;
    clear(rows);
    u32 last = tile.start + tile.rows - 1;
    u32 run = part.runs, at = 0, turn_of = 0;
    // Moves to the next step of this warp.
    auto settle = [&](u32 &first, u64 &bits, bool &per_row) {
        for (; run < part.runs_end; run++, at = 0) {
            Run r = runs[run];
            for (; at < r.blocks * (KEY_BLOCK / KEYS); at++) {
                first = r.first + at * KEYS;
                if (first > last)
                    return false;
                bits = r.bits, per_row = r.flags & PER_ROW;
                if (!per_row && (bits >> (first % KEY_BLOCK) & low_bits(KEYS)) == 0)
                    continue;
                if (turn_of++ % WARPS == warp)
                    return true;
            }
        }
        return false;
    };
    auto load = [&](u32 first, u32 turn) {
        load_tile<KEY_BF16, KEYS, 32>(Pitched{keys + turn * TILE}, head.keys, key_format, head, first, lane);
        load_tile<VALUE_BF16, KEYS, 32>(Pitched{values + turn * TILE}, head.values, value_format, head, first, lane);
    };
    u32 first = 0, next_first = 0;
    u64 bits = 0, next_bits = 0;
    bool per_row = false, next_per_row = false, more = settle(first, bits, per_row);
    if (more)
        load(first, 0);
    copy_async_commit();
    for (u32 turn = 0; more; turn ^= 1) {
        at++;
        bool next = settle(next_first, next_bits, next_per_row);
        if (next)
            load(next_first, turn ^ 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncwarp();
        u32 block = first & ~(KEY_BLOCK - 1);
        u64 seen = bits;
        if (per_row) {
            u32 packed = min(first_packed + lane % 16, packed_rows - 1);
            seen = visible_bits(tile, lines, bits, block, tile.start + packed / group);
        }
        bool masked = per_row || (bits >> (first - block) & low_bits(KEYS)) != low_bits(KEYS);
        const u64 own[2] = {shuffle_64(seen, lane / 4) >> (first - block), shuffle_64(seen, lane / 4 + 8) >> (first - block)};
        attend_tile<KEY_BF16, VALUE_BF16, KEYS>(
            rows,
            [&](u32(&a)[4], u32 step) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[i] = fragments[step][i];
            },
            keys + turn * TILE, values + turn * TILE, logits, masked, own);
        __syncwarp();
        first = next_first, bits = next_bits, per_row = next_per_row, more = next;
    }
    copy_async_wait<0>();
    total_sums(rows.l);

    // Combines the warps: [WARPS, 16, 2] and [WARPS, 16, HEAD_DIM] in shared memory.
    __syncthreads();
    float *ml = (float *)memory, *o = ml + WARPS * 16 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 row = warp * 16 + lane / 4 + 8 * i;
        if (lane % 4 == 0)
            ml[2 * row] = rows.m[i], ml[2 * row + 1] = rows.l[i];
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 8; d++)
            *(float2 *)(o + row * HEAD_DIM + d * 8 + lane % 4 * 2) = {rows.o[d][2 * i], rows.o[d][2 * i + 1]};
    }
    __syncthreads();
    u64 slot = (u64(part.slot) * gridDim.y + blockIdx.y) * 16;
    for (u32 i = threadIdx.x; i < 16 * HEAD_DIM; i += THREADS) {
        u32 row = i / HEAD_DIM, d = i % HEAD_DIM;
        float m = NEGATIVE_INFINITY, l = 0, sum = 0;
        for (u32 w = 0; w < WARPS; w++)
            m = fmaxf(m, ml[2 * (w * 16 + row)]);
        for (u32 w = 0; w < WARPS; w++) {
            float weight = m == NEGATIVE_INFINITY ? 0.0f : exp2_fast(ml[2 * (w * 16 + row)] - m);
            l += ml[2 * (w * 16 + row) + 1] * weight;
            sum += o[(w * 16 + row) * HEAD_DIM + d] * weight;
        }
        partial_o[(slot + row) * HEAD_DIM + d] = sum;
        if (d == 0)
            partial_ml[2 * (slot + row)] = m, partial_ml[2 * (slot + row) + 1] = l;
    }
}
EXPORT(decode)

// Merges the partial results slots[tile]..slots[tile + 1] of each packed row in order, and normalises them. Block
// (tile, packed row).
KERNEL __launch_bounds__(128) merge(float *output, u64 output_stride, float *log_sum_exp, const float *partial_ml,
                                    const float *partial_o, const u32 *slots, const QueryTile *tiles, u32 chunks,
                                    u32 group, u32 heads, const float *sinks) {
    const QueryTile tile = tiles[blockIdx.x];
    u32 packed = blockIdx.y;
    if (packed >= tile.rows * group)
        return;
    u32 head = tile.kv_head * group + packed % group, row = tile.row + packed / group;
    float m = NEGATIVE_INFINITY, l = 0, sum[(HEAD_DIM + 127) / 128] = {};
    for (u32 slot = slots[blockIdx.x]; slot < slots[blockIdx.x + 1]; slot++)
        m = fmaxf(m, partial_ml[2 * ((u64(slot) * chunks + packed / 16) * 16 + packed % 16)]);
    for (u32 slot = slots[blockIdx.x]; slot < slots[blockIdx.x + 1]; slot++) {
        u64 at = (u64(slot) * chunks + packed / 16) * 16 + packed % 16;
        if (partial_ml[2 * at] == NEGATIVE_INFINITY)
            continue;
        float weight = exp2_fast(partial_ml[2 * at] - m);
        l += partial_ml[2 * at + 1] * weight;
#pragma unroll
        for (u32 i = 0; i < (HEAD_DIM + 127) / 128; i++)
            if (threadIdx.x + 128 * i < HEAD_DIM)
                sum[i] += partial_o[at * HEAD_DIM + threadIdx.x + 128 * i] * weight;
    }
    float factor = normaliser(m, l, sinks, head);
#pragma unroll
    for (u32 i = 0; i < (HEAD_DIM + 127) / 128; i++)
        if (threadIdx.x + 128 * i < HEAD_DIM)
            output[u64(row) * output_stride + u64(head) * HEAD_DIM + threadIdx.x + 128 * i] = sum[i] * factor;
    if (log_sum_exp && threadIdx.x == 0)
        log_sum_exp[u64(row) * heads + head] = natural_log_sum_exp(m, l);
}
EXPORT(merge)
