// The scores of policies. Sums run in the order of `riffle-attention` on x86, with fused multiply-add in the same
// places. So scores and selections equal the CPU's to the bit.
#include "keys.cuh"

// Extends the smallest and largest value of each channel and block, bounds [kv_heads, capacity, 2, HEAD_DIM], by the
// keys ranges[kv_head][0]..ranges[kv_head][1] of every KV head. A block with earlier keys is continued. Block (key
// block, KV head); a thread takes one channel.
KERNEL key_bounds(float *bounds, u32 capacity, const u64 *key_pages, u32 pages_per_head, u32 page_tokens, u32 format,
                  const u32 *ranges, u32 block_tokens) {
    u32 from = ranges[2 * blockIdx.y], to = ranges[2 * blockIdx.y + 1], channel = threadIdx.x;
    u32 number = from / block_tokens + blockIdx.x, begin = number * block_tokens;
    u32 first = max(begin, from), end = min(begin + block_tokens, to);
    if (channel >= HEAD_DIM || first >= end)
        return;
    const u64 *planes = key_pages + u64(blockIdx.y) * pages_per_head;
    float *known = bounds + (u64(blockIdx.y) * capacity + number) * 2 * HEAD_DIM;
    float smallest = first > begin ? known[channel] : POSITIVE_INFINITY;
    float largest = first > begin ? known[HEAD_DIM + channel] : NEGATIVE_INFINITY;
    for (u32 token = first; token < end; token++) {
        float value = key_element(planes, format, page_tokens, token, channel);
        smallest = fminf(smallest, value);
        largest = fmaxf(largest, value);
    }
    known[channel] = smallest, known[HEAD_DIM + channel] = largest;
}
EXPORT(key_bounds)

// Adds the tokens ranges[kv_head][0]..ranges[kv_head][1] of every KV head to the means of their blocks, keys then
// values: [kv_heads, capacity, 2, HEAD_DIM]. Sums run by position. An incomplete block holds its sum until a later
// launch continues it. Block (key block, KV head, keys or values); a thread takes one channel.
KERNEL block_means(float *means, u32 capacity, const u64 *key_pages, u32 pages_per_head, u32 page_tokens, u32 key_format,
                   const u64 *value_pages, u32 value_format, const u32 *ranges, u32 block_tokens) {
    u32 from = ranges[2 * blockIdx.y], to = ranges[2 * blockIdx.y + 1], channel = threadIdx.x;
    u32 number = from / block_tokens + blockIdx.x, begin = number * block_tokens;
    u32 first = max(begin, from), end = min(begin + block_tokens, to);
    if (channel >= HEAD_DIM || first >= end)
        return;
    const u64 *planes = (blockIdx.z ? value_pages : key_pages) + u64(blockIdx.y) * pages_per_head;
    u32 format = blockIdx.z ? value_format : key_format;
    float *known = means + ((u64(blockIdx.y) * capacity + number) * 2 + blockIdx.z) * HEAD_DIM;
    float sum = first > begin ? known[channel] : 0.0f;
    for (u32 token = first; token < end; token++)
        sum = __fadd_rn(sum, key_element(planes, format, page_tokens, token, channel));
    bool whole = end == begin + block_tokens;
    known[channel] = whole ? __fmul_rn(sum, __fdiv_rn(1.0f, float(block_tokens))) : sum;
}
EXPORT(block_means)

// Quest's bound of each block, summed over rows and the heads of the group: scores [kv_heads, blocks]. The positive and
// the negative elements of all queries are summed first, so one product with the largest and one with the smallest
// values are enough. Block (128 key blocks, KV head); a thread takes one key block.
KERNEL __launch_bounds__(128) bound_scores(float *scores, u32 blocks, const float *bounds, u32 capacity,
                                           const float *queries, u64 query_stride, u32 rows, u32 group) {
    STATIC_SHARED float positive[HEAD_DIM], negative[HEAD_DIM];
    for (u32 channel = threadIdx.x; channel < HEAD_DIM; channel += 128) {
        float above = 0, below = 0;
        for (u32 at = 0; at < rows * group; at++) {
            float q = queries[u64(at / group) * query_stride + (blockIdx.y * group + at % group) * HEAD_DIM + channel];
            above = __fadd_rn(above, fmaxf(q, 0.0f));
            below = __fadd_rn(below, fminf(q, 0.0f));
        }
        positive[channel] = above, negative[channel] = below;
    }
    __syncthreads();
    u32 block = blockIdx.x * 128 + threadIdx.x;
    if (block >= blocks)
        return;
    const float *smallest = bounds + (u64(blockIdx.y) * capacity + block) * 2 * HEAD_DIM, *largest = smallest + HEAD_DIM;
    float score = 0;
    for (u32 channel = 0; channel < HEAD_DIM; channel++)
        score = __fmaf_rn(positive[channel], largest[channel], score);
    for (u32 channel = 0; channel < HEAD_DIM; channel++)
        score = __fmaf_rn(negative[channel], smallest[channel], score);
    scores[u64(blockIdx.y) * blocks + block] = score;
}
EXPORT(bound_scores)

constexpr u32 TILE = 64, DEPTH = 16;

// logits[vector, j] = (scale · vector) · long key j. A long key is `stride` consecutive keys side by side. Vector
// (head, i) is the `stride` queries of that head from (first_group + i) · stride on, the latest first; queries outside
// the chunk are zero. A block computes 64 × 64, a thread 4 × 4. A sum runs over the channels of each key in order;
// these sums are then added in the order of the keys.
KERNEL __launch_bounds__(256) long_logits(float *logits, u64 logit_stride, const float *queries, u64 query_stride,
                                          u32 query_start, u32 rows, u32 first_group, u32 groups_per_head, u32 vectors,
                                          const u64 *planes, u32 page_tokens, u32 format, u32 stride, u32 groups,
                                          u32 tokens, float scale) {
    STATIC_SHARED float a[DEPTH][TILE + 4], b[DEPTH][TILE + 4];
    u32 first_vector = blockIdx.y * TILE, first_key = blockIdx.x * TILE;
    // A query sees no long key after its own, so tiles wholly above the diagonal are never read.
    u32 last_group = first_group;
    for (u32 v = first_vector; v < min(first_vector + TILE, vectors); v++)
        last_group = max(last_group, first_group + v % groups_per_head);
    if (first_key > last_group)
        return;
    u32 row = threadIdx.x / 16, column = threadIdx.x % 16;
    float totals[4][4] = {}, sums[4][4] = {};
    for (u32 k = 0; k < stride * HEAD_DIM; k += DEPTH) {
        u32 part = k / HEAD_DIM, channel = k % HEAD_DIM;
        // Each thread loads four of the 64 × 16 elements of both.
        u32 own = threadIdx.x / 4, at = threadIdx.x % 4 * 4;
        float x[4] = {}, y[4] = {};
        u32 vector = first_vector + own;
        if (vector < vectors) {
            u32 position = (first_group + vector % groups_per_head) * stride + stride - 1 - part;
            if (position >= query_start && position - query_start < rows) {
                const float *from = queries + u64(position - query_start) * query_stride +
                                    u64(vector / groups_per_head) * HEAD_DIM + channel + at;
                for (u32 i = 0; i < 4; i++)
                    x[i] = __fmul_rn(from[i], scale);
            }
        }
        u32 token = (first_key + own) * stride + part;
        if (first_key + own < groups && token < tokens)
            for (u32 i = 0; i < 4; i++)
                y[i] = key_element(planes, format, page_tokens, token, channel + at + i);
        __syncthreads();
        for (u32 i = 0; i < 4; i++)
            a[at + i][own] = x[i], b[at + i][own] = y[i];
        __syncthreads();
        for (u32 d = 0; d < DEPTH; d++)
#pragma unroll
            for (u32 i = 0; i < 4; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++)
                    sums[i][j] = __fmaf_rn(a[d][row * 4 + i], b[d][column * 4 + j], sums[i][j]);
        if (channel + DEPTH == HEAD_DIM)
#pragma unroll
            for (u32 i = 0; i < 4; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++)
                    totals[i][j] = __fadd_rn(totals[i][j], sums[i][j]), sums[i][j] = 0;
    }
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) {
            u32 vector = first_vector + row * 4 + i, key = first_key + column * 4 + j;
            if (vector < vectors && key < groups)
                logits[vector * logit_stride + key] = totals[i][j];
        }
}
EXPORT(long_logits)

// e^x for x ≤ 0, as `kernel/mod.rs` of riffle-attention computes it.
__device__ __forceinline__ float ordered_exp(float x) {
    float t = fmaxf(__fmul_rn(x, LOG2_E), -160.0f);
    float n = rintf(t), f = __fsub_rn(t, n), p = 0.0013264727f;
    const float factors[5] = {0.009671513f, 0.055507336f, 0.24022242f, 0.693147f, 1.0f};
#pragma unroll
    for (int i = 0; i < 5; i++)
        p = __fmaf_rn(p, f, factors[i]);
    return ldexpf(p, int(n));
}

// The sum of 16 lanes: the upper half is added to the lower, again and again.
__device__ __forceinline__ float sum_of_lanes(const float *lanes) {
    float sums[8];
    for (u32 i = 0; i < 8; i++)
        sums[i] = __fadd_rn(lanes[i], lanes[i + 8]);
    for (u32 width = 4; width > 0; width /= 2)
        for (u32 i = 0; i < width; i++)
            sums[i] = __fadd_rn(sums[i], sums[i + width]);
    return sums[0];
}

// Turns each row's first min(first_group + row % groups_per_head + 1, groups) logits into exp(logit − largest logit).
// The row's last element, logit_stride − 1, becomes the factor that turns these weights into a softmax. Each lane of 64
// vectors of 16 is summed in f32; these sums are summed in f64. A block takes one row.
KERNEL __launch_bounds__(256) ordered_weights(float *logits, u64 logit_stride, u32 first_group, u32 groups_per_head, u32 groups) {
    STATIC_SHARED float tops[8];
    STATIC_SHARED float lanes[256];
    STATIC_SHARED float sums[16];
    float *row = logits + blockIdx.x * logit_stride;
    u32 count = min(first_group + blockIdx.x % groups_per_head + 1, groups);
    float top = NEGATIVE_INFINITY;
    for (u32 i = threadIdx.x; i < count; i += 256)
        top = fmaxf(top, row[i]);
    top = warp_max(top);
    if (lane_index() == 0)
        tops[warp_index()] = top;
    __syncthreads();
    for (u32 warp = 0; warp < 8; warp++)
        top = fmaxf(top, tops[warp]);
    for (u32 i = threadIdx.x; i < count; i += 256)
        row[i] = ordered_exp(__fsub_rn(row[i], top));
    __syncthreads();
    const u32 whole = count / 16 * 16, together = 64 * 16;
    u32 part = threadIdx.x / 16, lane = threadIdx.x % 16;
    double total = 0;
    for (u32 first = 0; first < whole; first += 16 * together) {
        // Sixteen parts of 64 vectors at a time; each thread takes one lane of one part.
        float sum = 0;
        u32 begin = first + part * together;
        for (u32 i = begin; i < min(begin + together, whole); i += 16)
            sum = __fadd_rn(sum, row[i + lane]);
        lanes[threadIdx.x] = sum;
        __syncthreads();
        if (lane == 0)
            sums[part] = sum_of_lanes(lanes + part * 16);
        __syncthreads();
        if (threadIdx.x == 0)
            for (u32 i = 0; i < 16; i++)
                if (first + i * together < whole)
                    total = __dadd_rn(total, double(sums[i]));
    }
    __syncthreads();
    if (threadIdx.x < 16)
        lanes[threadIdx.x] = whole + threadIdx.x < count ? row[whole + threadIdx.x] : 0.0f;
    __syncthreads();
    if (threadIdx.x == 0)
        row[logit_stride - 1] = float(__ddiv_rn(1.0, __dadd_rn(total, double(sum_of_lanes(lanes)))));
}
EXPORT(ordered_weights)

// XAttention: scores[block row, block] = Σ of the softmax over the row's long queries (head by head, in order) and the
// block's long keys (in order). A block has `per_block` long tokens. Block row r is block first_row + r. A thread
// computes one score.
KERNEL antidiagonal_scores(float *scores, u32 blocks, const float *weights, u64 weight_stride, u32 first_group,
                           u32 groups_per_head, u32 heads, u32 groups, u32 per_block, u32 first_row) {
    u32 block = blockIdx.x * blockDim.x + threadIdx.x, number = first_row + blockIdx.y;
    if (block >= blocks)
        return;
    float score = 0;
    if (block <= number) {
        u32 begin = max(number * per_block, first_group), end = min((number + 1) * per_block, first_group + groups_per_head);
        for (u32 head = 0; head < heads; head++)
            for (u32 group = begin; group < end; group++) {
                const float *row = weights + (u64(head) * groups_per_head + group - first_group) * weight_stride;
                u32 last = min(min((block + 1) * per_block, group + 1), groups);
                float sum = 0;
                for (u32 i = block * per_block; i < last; i++)
                    sum = __fadd_rn(sum, row[i]);
                score = __fadd_rn(score, __fmul_rn(sum, row[weight_stride - 1]));
            }
    }
    scores[u64(blockIdx.y) * blocks + block] = score;
}
EXPORT(antidiagonal_scores)

// Softmax weight of key `at`, summed over the heads of a group in order. Keys in whole vectors of 16 of the `visible`
// keys fuse product and sum.
__device__ __forceinline__ float mass_of_heads(const float *weights, u64 weight_stride, u32 rows, u32 heads, u32 at, u32 visible) {
    float sum = 0;
    for (u32 head = 0; head < heads; head++) {
        const float *row = weights + u64(head) * rows * weight_stride;
        float weight = row[at], factor = row[weight_stride - 1];
        sum = at < visible / 16 * 16 ? __fmaf_rn(weight, factor, sum) : __fadd_rn(sum, __fmul_rn(weight, factor));
    }
    return sum;
}

// Vertical-slash: mass of every column, and of every distance query − key, over queries in order. Row head · rows + r
// of `weights` is the query at first_query + r. If the launch `continues`, `columns` and `distances` [tokens] hold the
// sums of earlier queries. A thread takes one column and one distance.
KERNEL line_mass(float *columns, float *distances, const float *weights, u64 weight_stride, u32 first_query, u32 rows,
                 u32 heads, u32 tokens, u32 continues) {
    u32 line = blockIdx.x * blockDim.x + threadIdx.x;
    if (line >= tokens)
        return;
    float column = continues ? columns[line] : 0.0f, distance = continues ? distances[line] : 0.0f;
    for (u32 row = 0; row < rows; row++) {
        u32 visible = min(first_query + row + 1, tokens);
        if (line >= visible)
            continue;
        const float *of_row = weights + row * weight_stride;
        column = __fadd_rn(column, mass_of_heads(of_row, weight_stride, rows, heads, line, visible));
        distance = __fadd_rn(distance, mass_of_heads(of_row, weight_stride, rows, heads, visible - 1 - line, visible));
    }
    columns[line] = column, distances[line] = distance;
}
EXPORT(line_mass)
