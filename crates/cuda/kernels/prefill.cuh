// Common parts of the prefill kernels: the walk over a tile's keys, its masks, and the layout of results and states.
//
// A block takes packed rows of one KV head, sixteen per warp. Row p is query p / group, head p % group; so all heads of
// a group share every key. A block walks the runs of its tile in ascending order. With a state it continues where an
// earlier launch stopped: pages that arrive in groups give the same bits as one launch over all of them.
#pragma once
#include "softmax.cuh"

// Keys that a block reads next: from `first` on, within one block of the tile's runs.
struct KeyTile {
    u32 first;
    bool per_row;
    u64 bits;
};

// Position of a block in the runs of its tile; `last` is the last position of its rows.
template <u32 KEYS> struct Walk {
    const Run *runs;
    u32 run, end, last, block, part;

    // Moves to the next KEYS keys that some row reads; false after the last.
    __device__ __forceinline__ bool next(KeyTile &tile) {
        for (; run < end; run++, block = part = 0) {
            Run r = runs[run];
            for (; block < r.blocks; block++, part = 0)
                while (part < KEY_BLOCK / KEYS) {
                    u64 own = low_bits(KEYS) << (part * KEYS);
                    tile = {r.first + block * KEY_BLOCK + part * KEYS, (r.flags & PER_ROW) != 0, r.bits};
                    if (tile.first > last)
                        return false;
                    part++;
                    if (tile.per_row || (r.bits & own) != 0)
                        return true;
                }
        }
        return false;
    }
};

// The packed rows of a block, sixteen for each warp.
struct Packed {
    const QueryTile &tile;
    u32 group, first, rows;

    __device__ __forceinline__ u32 of_warp() const { return first + warp_index() * 16; }
    __device__ __forceinline__ u32 row(u32 packed) const { return tile.row + packed / group; }
    __device__ __forceinline__ u32 head(u32 packed) const { return tile.kv_head * group + packed % group; }
    __device__ __forceinline__ u32 position(u32 packed) const { return tile.start + min(packed, rows - 1) / group; }
    // The last position of the block's rows. Rows behind the end of the tile read like its last row and are not
    // written.
    __device__ __forceinline__ u32 last(u32 count) const { return position(first + count - 1); }
};

// Stores the warp's queries as 16-bit rows [16, PITCH].
__device__ __forceinline__ void store_queries(u16 *to, const Packed &packed, const float *queries, u64 query_stride) {
    for (u32 i = 0; i < 16; i++) {
        u32 own = packed.of_warp() + i;
        const float *query = queries + u64(packed.row(own)) * query_stride + u64(packed.head(own)) * HEAD_DIM;
        store_query<KEY_BF16>(to + i * PITCH, own < packed.rows ? query : nullptr);
    }
}

// Sets the masks of the tile's keys, from its first key on, for rows g and g + 8 of the warp; false if every row sees
// all keys.
template <u32 KEYS>
__device__ __forceinline__ bool masks(u64 (&bits)[2], const KeyTile &keys, const Packed &packed, const Lines &lines) {
    u32 lane = lane_index(), block = keys.first & ~(KEY_BLOCK - 1), shift = keys.first - block;
    bits[0] = bits[1] = keys.bits >> shift;
    if (keys.per_row) {
        // Sixteen lanes find the masks of the sixteen rows.
        u64 seen = visible_bits(packed.tile, lines, keys.bits, block, packed.position(packed.of_warp() + lane % 16)) >> shift;
        bits[0] = shuffle_64(seen, lane / 4), bits[1] = shuffle_64(seen, lane / 4 + 8);
    }
    return keys.per_row || (bits[0] & low_bits(KEYS)) != low_bits(KEYS);
}

// Places of the outputs, and the state between launches: m and four parts of l [rows, heads, 5], and o.
struct Results {
    float *output;
    u64 output_stride;
    float *log_sum_exp;
    const float *sinks;
    u32 heads;
    float *state_ml, *state_o;
    bool resume, finish;
};

// Loads the rows of a warp as an earlier launch left them; without an earlier launch they are empty.
__device__ __forceinline__ void take_up(Rows16 &rows, const Results &results, const Packed &packed) {
    clear(rows);
    if (!results.resume)
        return;
    u32 lane = lane_index();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 own = packed.of_warp() + lane / 4 + 8 * i;
        if (own >= packed.rows)
            continue;
        u64 place = u64(packed.row(own)) * results.heads + packed.head(own);
        rows.m[i] = results.state_ml[5 * place];
        rows.l[i] = results.state_ml[5 * place + 1 + lane % 4];
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 8; d++) {
            float2 pair = *(const float2 *)(results.state_o + place * HEAD_DIM + d * 8 + lane % 4 * 2);
            rows.o[d][2 * i] = pair.x, rows.o[d][2 * i + 1] = pair.y;
        }
    }
}

// Writes the outputs, or the state for the next launch.
__device__ __forceinline__ void leave(Rows16 &rows, const Results &results, const Packed &packed) {
    u32 lane = lane_index();
    // Each of the four lanes of a row sums a part of it. A state keeps the parts, so the order of the sum stays the
    // same.
    float parts[2] = {rows.l[0], rows.l[1]};
    total_sums(rows.l);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 own = packed.of_warp() + lane / 4 + 8 * i;
        if (own >= packed.rows)
            continue;
        u32 head = packed.head(own);
        u64 place = u64(packed.row(own)) * results.heads + head;
        float *to = results.state_o + place * HEAD_DIM;
        float factor = 1;
        if (results.finish) {
            to = results.output + u64(packed.row(own)) * results.output_stride + u64(head) * HEAD_DIM;
            factor = normaliser(rows.m[i], rows.l[i], results.sinks, head);
            if (results.log_sum_exp && lane % 4 == 0)
                results.log_sum_exp[place] = natural_log_sum_exp(rows.m[i], rows.l[i]);
        } else {
            results.state_ml[5 * place + 1 + lane % 4] = parts[i];
            if (lane % 4 == 0)
                results.state_ml[5 * place] = rows.m[i];
        }
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 8; d++)
            *(float2 *)(to + d * 8 + lane % 4 * 2) = {rows.o[d][2 * i] * factor, rows.o[d][2 * i + 1] * factor};
    }
}
