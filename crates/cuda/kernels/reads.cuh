// A flattened `Selection`: the keys that the rows of a tile read, in blocks of 64. `src/ops/reads.rs` makes it.
#pragma once
#include "device.cuh"

constexpr u32 KEY_BLOCK = 64;
// Flag of a run whose blocks the rows see differently: causality, the row window, diagonals or extras.
constexpr u32 PER_ROW = 1;

// `blocks` blocks from key `first` on. Every row sees the keys in `bits` of each block.
struct Run {
    u64 bits;
    u32 first, blocks, flags, unused;
};

// Consecutive queries of one KV head.
struct QueryTile {
    // Position of the first query, its row among the queries, and the number of queries.
    u32 start, row, rows, kv_head;
    u32 runs, runs_end;
    u32 row_window;
    u32 diagonals, diagonals_end;
    // Row extras_row + i has the extras that end at extra_ends[ends + i]; the first row's extras begin at `extras`.
    u32 extras_row, extras_rows, ends, extras;
    u32 unused;
};

struct Lines {
    const u32 *diagonals, *extra_ends, *extras;
};

// The `count` lowest bits.
__device__ __forceinline__ u64 low_bits(u32 count) { return count >= 64 ? ~u64(0) : (u64(1) << count) - 1; }

// Bits of first..first + 64 that lie in from..to.
__device__ __forceinline__ u64 range_bits(u32 first, u32 from, u32 to) {
    if (to <= first || to <= from || from >= first + KEY_BLOCK)
        return 0;
    return low_bits(to - first) & ~(from > first ? low_bits(from - first) : 0);
}

// The first index in the ascending values[begin..end] with a value of at least `value`.
__device__ __forceinline__ u32 lower_bound(const u32 *values, u32 begin, u32 end, u32 value) {
    while (begin < end) {
        u32 middle = (begin + end) / 2;
        if (values[middle] < value)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

// Bits of the block at `first` that the query at `position` sees.
__device__ __forceinline__ u64 visible_bits(const QueryTile &tile, const Lines &lines, u64 shared, u32 first, u32 position) {
    if (first > position)
        return 0;
    u64 bits = shared;
    if (tile.row_window > 0)
        bits |= range_bits(first, tile.row_window > position ? 0 : position + 1 - tile.row_window, position + 1);
    if (tile.diagonals < tile.diagonals_end) {
        u32 least = position >= first + KEY_BLOCK - 1 ? position - (first + KEY_BLOCK - 1) : 0;
        for (u32 i = lower_bound(lines.diagonals, tile.diagonals, tile.diagonals_end, least);
             i < tile.diagonals_end && lines.diagonals[i] <= position - first; i++)
            bits |= u64(1) << (position - lines.diagonals[i] - first);
    }
    u32 row = position - tile.extras_row;
    if (position >= tile.extras_row && row < tile.extras_rows) {
        u32 begin = row == 0 ? tile.extras : lines.extra_ends[tile.ends + row - 1], end = lines.extra_ends[tile.ends + row];
        for (u32 i = lower_bound(lines.extras, begin, end, first); i < end && lines.extras[i] < first + KEY_BLOCK; i++)
            bits |= u64(1) << (lines.extras[i] - first);
    }
    return bits & range_bits(first, 0, position + 1);
}
