// Attention of many queries over pages, dense or under a `Selection`.
//
// A block takes WARPS × 16 packed rows of one KV head: row p is query p / group, head p % group, so that all heads of a
// group share every key. It walks the runs of its tile in ascending order with keys and values double-buffered in
// shared memory. With a state it goes on where an earlier launch stopped: pages that arrive a group at a time give the
// bits of one launch over all of them. mma.sync throughout: wgmma would be faster on sm_90, but is none of the other two.
#include "softmax.cuh"

// 64 keys and eight warps with queries in registers; at HEAD_DIM above 128 half of both, and queries in shared memory.
constexpr u32 KEYS = HEAD_DIM <= 128 ? 64 : 32, WARPS = HEAD_DIM <= 128 ? 8 : 4;
constexpr u32 THREADS = WARPS * 32, PACKED_ROWS = WARPS * 16;
constexpr bool QUERIES_IN_REGISTERS = HEAD_DIM <= 128;
constexpr u32 TILE = KEYS * PITCH;

// Where a block stands in the runs of its tile.
struct Walk {
    u32 run, block, part;
};

// Goes to the first part of KEYS keys at or after the walk's place that some row up to `last` reads; false behind the end.
__device__ __forceinline__ bool settle(Walk &walk, const Run *runs, u32 end, u32 last, u32 &first, u64 &bits, bool &per_row) {
    for (; walk.run < end; walk.run++, walk.block = walk.part = 0) {
        Run run = runs[walk.run];
        per_row = run.flags & PER_ROW;
        for (; walk.block < run.blocks; walk.block++, walk.part = 0)
            for (; walk.part < KEY_BLOCK / KEYS; walk.part++) {
                first = run.first + walk.block * KEY_BLOCK + walk.part * KEYS;
                if (first > last)
                    return false;
                bits = run.bits;
                if (per_row || (bits >> (walk.part * KEYS) & low_bits(KEYS)) != 0)
                    return true;
            }
    }
    return false;
}

KERNEL __launch_bounds__(THREADS) prefill(
    float *output, u64 output_stride, float *log_sum_exp, const float *queries, u64 query_stride, const u32 *work,
    const QueryTile *tiles, const Run *runs, const u32 *diagonals, const u32 *extra_ends, const u32 *extras,
    const u64 *key_pages, const u64 *value_pages, u32 pages_per_head, u32 page_tokens, u32 key_format, u32 value_format,
    u32 group, u32 heads, float scale, float soft_cap, const float *sinks, float *state_ml, float *state_o, u32 resume,
    u32 finish) {
    DYNAMIC_SHARED(memory);
    u16 *keys = (u16 *)memory, *values = keys + 2 * TILE, *query_rows = QUERIES_IN_REGISTERS ? keys : values + 2 * TILE;
    const QueryTile tile = tiles[work[2 * blockIdx.x]];
    u32 first_packed = work[2 * blockIdx.x + 1], warp_packed = first_packed + warp_index() * 16;
    u32 lane = lane_index(), packed_rows = tile.rows * group;
    Head head = {key_pages + u64(tile.kv_head) * pages_per_head, value_pages + u64(tile.kv_head) * pages_per_head,
                 key_format, value_format, page_tokens, tile.start + tile.rows};
    Lines lines = {diagonals, extra_ends, extras};
    Logits logits = {scale, soft_cap};

    // Queries of the warp, [16, PITCH].
    u16 *own_queries = query_rows + warp_index() * 16 * PITCH;
    for (u32 i = 0; i < 16; i++) {
        u32 packed = warp_packed + i;
        const float *query = nullptr;
        if (packed < packed_rows)
            query = queries + u64(tile.row + packed / group) * query_stride +
                    u64(tile.kv_head * group + packed % group) * HEAD_DIM;
        store_query<KEY_BF16>(own_queries + i * PITCH, query);
    }
    __syncwarp();
    u32 fragments[QUERIES_IN_REGISTERS ? DEPTH_STEPS : 1][4];
    if (QUERIES_IN_REGISTERS) {
#pragma unroll
        for (u32 step = 0; step < DEPTH_STEPS; step++)
            load_query(fragments[QUERIES_IN_REGISTERS ? step : 0], own_queries, step);
        __syncthreads();
    }

    Rows16 rows;
    clear(rows);
    // The packed rows that this lane holds, and where their state lies: [row, head].
    u32 own[2] = {warp_packed + lane / 4, warp_packed + lane / 4 + 8};
    u64 place[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        place[i] = u64(tile.row + own[i] / group) * heads + tile.kv_head * group + own[i] % group;
    if (resume) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (own[i] >= packed_rows)
                continue;
            rows.m[i] = state_ml[5 * place[i]];
            rows.l[i] = state_ml[5 * place[i] + 1 + lane % 4];
#pragma unroll
            for (u32 d = 0; d < HEAD_DIM / 8; d++) {
                float2 pair = *(const float2 *)(state_o + place[i] * HEAD_DIM + d * 8 + lane % 4 * 2);
                rows.o[d][2 * i] = pair.x, rows.o[d][2 * i + 1] = pair.y;
            }
        }
    }

    // The last position of the block's rows; rows behind the tile see what its last sees and are not written.
    u32 last = tile.start + (min(first_packed + PACKED_ROWS, packed_rows) - 1) / group;
    Walk walk = {tile.runs, 0, 0};
    u32 first;
    u64 bits;
    bool per_row, more = settle(walk, runs, tile.runs_end, last, first, bits, per_row);
    if (more) {
        load_tile<KEY_BF16, KEYS>(keys, head.keys, key_format, head, first, threadIdx.x, THREADS);
        load_tile<VALUE_BF16, KEYS>(values, head.values, value_format, head, first, threadIdx.x, THREADS);
    }
    copy_async_commit();
    for (u32 turn = 0; more; turn ^= 1) {
        u32 next_first;
        u64 next_bits;
        bool next_per_row;
        walk.part++;
        bool next = settle(walk, runs, tile.runs_end, last, next_first, next_bits, next_per_row);
        if (next) {
            u32 other = (turn ^ 1) * TILE;
            load_tile<KEY_BF16, KEYS>(keys + other, head.keys, key_format, head, next_first, threadIdx.x, THREADS);
            load_tile<VALUE_BF16, KEYS>(values + other, head.values, value_format, head, next_first, threadIdx.x, THREADS);
        }
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        u32 block = first & ~(KEY_BLOCK - 1);
        bool masked = per_row || (bits >> (first - block) & low_bits(KEYS)) != low_bits(KEYS);
        u64 seen = bits;
        if (per_row) {
            // Sixteen lanes find what the sixteen rows see.
            u32 packed = min(warp_packed + lane % 16, packed_rows - 1);
            seen = visible_bits(tile, lines, bits, block, tile.start + packed / group);
        }
        u64 bits0 = shuffle_64(seen, lane / 4) >> (first - block), bits1 = shuffle_64(seen, lane / 4 + 8) >> (first - block);
        attend_tile<KEY_BF16, VALUE_BF16, KEYS>(
            rows,
            [&](u32(&a)[4], u32 step) {
                if (QUERIES_IN_REGISTERS) {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        a[i] = fragments[QUERIES_IN_REGISTERS ? step : 0][i];
                } else {
                    load_query(a, own_queries, step);
                }
            },
            keys + turn * TILE, values + turn * TILE, logits, masked, bits0, bits1);
        __syncthreads();
        first = next_first, bits = next_bits, per_row = next_per_row, more = next;
    }
    copy_async_wait<0>();

    // The four lanes that share a row each sum a part of it: a state keeps the parts, lest their order change.
    float parts[2] = {rows.l[0], rows.l[1]};
    total_sums(rows.l);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (own[i] >= packed_rows)
            continue;
        float *to = state_o + place[i] * HEAD_DIM;
        float factor = 1;
        if (finish) {
            u32 query_head = tile.kv_head * group + own[i] % group;
            to = output + u64(tile.row + own[i] / group) * output_stride + u64(query_head) * HEAD_DIM;
            factor = normaliser(rows.m[i], rows.l[i], sinks, query_head);
            if (log_sum_exp && lane % 4 == 0)
                log_sum_exp[place[i]] = natural_log_sum_exp(rows.m[i], rows.l[i]);
        } else {
            state_ml[5 * place[i] + 1 + lane % 4] = parts[i];
            if (lane % 4 == 0)
                state_ml[5 * place[i]] = rows.m[i];
        }
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 8; d++)
            *(float2 *)(to + d * 8 + lane % 4 * 2) = {rows.o[d][2 * i] * factor, rows.o[d][2 * i + 1] * factor};
    }
}
EXPORT(prefill)
