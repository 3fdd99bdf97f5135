// Attention to the block means of a `Selection`, for blocks of one length, and its merge with attention to keys.
//
// A mean of n tokens counts n times: ln n is added to its logit. The blocks have one length, so the merge adds ln n
// once. Means are f32 and become 16-bit numbers for the tensor cores, like the keys of pages.
#include "softmax.cuh"

// Means and packed rows per block; half as many of both if HEAD_DIM is above 128.
constexpr u32 KEYS = HEAD_DIM <= 128 ? 64 : 32, WARPS = HEAD_DIM <= 128 ? 8 : 4;
constexpr u32 THREADS = WARPS * 32, PACKED_ROWS = WARPS * 16;

// Loads the means of blocks first..min(first + KEYS, end) to `to` [KEYS, PITCH]; the other rows become zero. `means`
// points to the key means, or HEAD_DIM further to the value means.
template <bool IS_BF16> __device__ __forceinline__ void load_means(u16 *to, const float *means, u32 first, u32 end) {
    constexpr u32 QUADS = HEAD_DIM / 4;
    for (u32 i = threadIdx.x; i < KEYS * QUADS; i += THREADS) {
        u32 row = i / QUADS, quad = i % QUADS;
        float4 mean = {0, 0, 0, 0};
        if (first + row < end)
            mean = *(const float4 *)(means + u64(first + row) * 2 * HEAD_DIM + quad * 4);
        *(uint2 *)(to + row * PITCH + quad * 4) = {pack_pair(narrow<IS_BF16>(mean.x), narrow<IS_BF16>(mean.y)),
                                                   pack_pair(narrow<IS_BF16>(mean.z), narrow<IS_BF16>(mean.w))};
    }
}

// Number of blocks that end before the query's row window, or before the query if it has no window.
__device__ __forceinline__ u32 blocks_before(const QueryTile &tile, u32 position, u32 block_tokens) {
    return tile.row_window > position ? 0 : (position + 1 - max(tile.row_window, 1u)) / block_tokens;
}

// Bits of the 64 blocks from `first` on: blocks in `open` of which the query at `position` reads no token.
__device__ __forceinline__ u64 visible_means(const QueryTile &tile, const Lines &lines, u64 open, u32 first,
                                             u32 block_tokens, u32 position) {
    u64 bits = open & range_bits(first, 0, blocks_before(tile, position, block_tokens));
    if (bits == 0)
        return 0;
    u64 begin = u64(first) * block_tokens, end = begin + u64(KEY_BLOCK) * block_tokens;
    if (tile.diagonals < tile.diagonals_end) {
        u32 least = position >= end ? u32(position - end) + 1 : 0;
        for (u32 i = lower_bound(lines.diagonals, tile.diagonals, tile.diagonals_end, least);
             i < tile.diagonals_end && lines.diagonals[i] <= position - begin; i++)
            bits &= ~(u64(1) << ((position - lines.diagonals[i]) / block_tokens - first));
    }
    u32 row = position - tile.extras_row;
    if (position >= tile.extras_row && row < tile.extras_rows) {
        u32 from = row == 0 ? tile.extras : lines.extra_ends[tile.ends + row - 1], to = lines.extra_ends[tile.ends + row];
        for (u32 i = lower_bound(lines.extras, from, to, u32(begin)); i < to && lines.extras[i] < end; i++)
            bits &= ~(u64(1) << (lines.extras[i] / block_tokens - first));
    }
    return bits;
}

// Writes for each row and head the largest logit, in units of log 2, and the sum of weights to partial_ml
// [splits, rows, heads, 2], and the weighted sum of values to partial_o [splits, rows, heads, HEAD_DIM]. `means` is
// [kv_heads, capacity, 2, HEAD_DIM]. open[tile] has a bit for each of the first 64 · words blocks. Block (tile, packed
// rows, split of the words).
KERNEL __launch_bounds__(THREADS, 1) attend_means(
    float *partial_ml, float *partial_o, const float *queries, u64 query_stride, u32 query_rows, const QueryTile *tiles,
    const u32 *diagonals, const u32 *extra_ends, const u32 *extras, const float *means, u32 capacity, const u64 *open,
    u32 words, u32 block_tokens, u32 group, u32 heads, float scale, float soft_cap) {
    DYNAMIC_SHARED(memory);
    u16 *keys = (u16 *)memory, *values = keys + KEYS * PITCH, *own_queries = values + (KEYS + warp_index() * 16) * PITCH;
    const QueryTile tile = tiles[blockIdx.x];
    u32 first_packed = blockIdx.y * PACKED_ROWS, warp_packed = first_packed + warp_index() * 16;
    u32 lane = lane_index(), packed_rows = tile.rows * group;
    if (first_packed >= packed_rows)
        return;
    bool has_rows = warp_packed < packed_rows;
    Lines lines = {diagonals, extra_ends, extras};
    Logits logits = {scale, soft_cap};
    if (has_rows)
        for (u32 i = 0; i < 16; i++) {
            u32 packed = warp_packed + i;
            const float *query = nullptr;
            if (packed < packed_rows)
                query = queries + u64(tile.row + packed / group) * query_stride +
                        u64(tile.kv_head * group + packed % group) * HEAD_DIM;
            store_query<KEY_BF16>(own_queries + i * PITCH, query);
        }
    Rows16 rows;
    clear(rows);
    const float *of_head = means + u64(tile.kv_head) * capacity * 2 * HEAD_DIM;
    u32 last = tile.start + (min(first_packed + PACKED_ROWS, packed_rows) - 1) / group;
    u32 end = min(blocks_before(tile, last, block_tokens), capacity);
    u32 word_end = u32(u64(words) * (blockIdx.z + 1) / gridDim.z);
    for (u32 word = u32(u64(words) * blockIdx.z / gridDim.z); word < word_end && word * 64 < end; word++) {
        u64 named = open[u64(blockIdx.x) * words + word];
        for (u32 first = word * 64; first < word * 64 + 64; first += KEYS) {
            if ((named >> (first % 64) & low_bits(KEYS)) == 0)
                continue;
            __syncthreads();
            load_means<KEY_BF16>(keys, of_head, first, end);
            load_means<VALUE_BF16>(values, of_head + HEAD_DIM, first, end);
            __syncthreads();
            if (!has_rows)
                continue;
            u32 packed = min(warp_packed + lane % 16, packed_rows - 1);
            u64 seen = visible_means(tile, lines, named, word * 64, block_tokens, tile.start + packed / group) >> (first % 64);
            const u64 bits[2] = {shuffle_64(seen, lane / 4), shuffle_64(seen, lane / 4 + 8)};
            attend_tile<KEY_BF16, VALUE_BF16, KEYS>(
                rows, [&](u32(&a)[4], u32 step) { load_query(a, own_queries, step); }, keys, values, logits, true, bits);
        }
    }
    total_sums(rows.l);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 own = warp_packed + lane / 4 + 8 * i;
        if (own >= packed_rows)
            continue;
        u64 row = u64(blockIdx.z) * query_rows + tile.row + own / group;
        u64 place = row * heads + tile.kv_head * group + own % group;
        if (lane % 4 == 0)
            partial_ml[2 * place] = rows.m[i], partial_ml[2 * place + 1] = rows.l[i];
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 8; d++)
            *(float2 *)(partial_o + place * HEAD_DIM + d * 8 + lane % 4 * 2) = {rows.o[d][2 * i], rows.o[d][2 * i + 1]};
    }
}
EXPORT(attend_means)

// Merges the partial results of the means, in the order of the splits, with each row's normalised output and
// log-sum-exp so far, and normalises. `weight` is ln n in units of log 2. Block (tile, packed row).
KERNEL __launch_bounds__(128) merge_means(float *output, u64 output_stride, float *log_sum_exp, const float *partial_ml,
                                          const float *partial_o, u32 splits, u32 query_rows, const QueryTile *tiles,
                                          u32 group, u32 heads, float weight) {
    const QueryTile tile = tiles[blockIdx.x];
    u32 packed = blockIdx.y;
    if (packed >= tile.rows * group)
        return;
    u32 head = tile.kv_head * group + packed % group, row = tile.row + packed / group;
    u64 place = u64(row) * heads + head, step = u64(query_rows) * heads;
    float most = NEGATIVE_INFINITY, known = log_sum_exp[place] * LOG2_E;
    for (u32 split = 0; split < splits; split++)
        most = fmaxf(most, partial_ml[2 * (place + split * step)]);
    if (most == NEGATIVE_INFINITY)
        return;
    float m = fmaxf(known, most + weight), keep = exp2_fast(known - m), l = keep;
    for (u32 split = 0; split < splits; split++) {
        const float *ml = partial_ml + 2 * (place + split * step);
        l += ml[1] * exp2_fast(ml[0] + weight - m);
    }
    for (u32 d = threadIdx.x; d < HEAD_DIM; d += 128) {
        float *to = output + u64(row) * output_stride + u64(head) * HEAD_DIM + d, sum = *to * keep;
        for (u32 split = 0; split < splits; split++) {
            u64 at = place + split * step;
            sum += partial_o[at * HEAD_DIM + d] * exp2_fast(partial_ml[2 * at] + weight - m);
        }
        *to = sum / l;
    }
    // Every thread has read the log-sum-exp before it is overwritten.
    __syncthreads();
    if (threadIdx.x == 0)
        log_sum_exp[place] = natural_log_sum_exp(m, l);
}
EXPORT(merge_means)
