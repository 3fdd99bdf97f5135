// The scores that policies choose by. Every sum runs in the order of `riffle-policy`, product and sum rounded apart, so
// that scores, and what is chosen by them, are equal to the CPU's to the bit.
#include "keys.cuh"

// Smallest and largest value of each channel of blocks first_block.. of every KV head:
// bounds [kv_heads, capacity, 2, HEAD_DIM]. Block (key block, KV head), a thread a channel.
KERNEL key_bounds(float *bounds, u32 capacity, const u64 *key_pages, u32 pages_per_head, u32 page_tokens, u32 format,
                  u32 first_block, u32 block_tokens, u32 tokens) {
    u32 number = first_block + blockIdx.x, channel = threadIdx.x;
    if (channel >= HEAD_DIM)
        return;
    const u64 *planes = key_pages + u64(blockIdx.y) * pages_per_head;
    float smallest = POSITIVE_INFINITY, largest = NEGATIVE_INFINITY;
    u32 end = min((number + 1) * block_tokens, tokens);
    for (u32 token = number * block_tokens; token < end; token++) {
        float value = key_element(planes, format, page_tokens, token, channel);
        smallest = fminf(smallest, value);
        largest = fmaxf(largest, value);
    }
    float *to = bounds + (u64(blockIdx.y) * capacity + number) * 2 * HEAD_DIM;
    to[channel] = smallest, to[HEAD_DIM + channel] = largest;
}
EXPORT(key_bounds)

// Means of keys or values of whole blocks first_block.. of every KV head, summed in order of position:
// [kv_heads, capacity, HEAD_DIM].
KERNEL block_means(float *means, u32 capacity, const u64 *pages, u32 pages_per_head, u32 page_tokens, u32 format,
                   u32 first_block, u32 block_tokens) {
    u32 number = first_block + blockIdx.x, channel = threadIdx.x;
    if (channel >= HEAD_DIM)
        return;
    const u64 *planes = pages + u64(blockIdx.y) * pages_per_head;
    float sum = 0;
    for (u32 token = number * block_tokens; token < (number + 1) * block_tokens; token++)
        sum = __fadd_rn(sum, key_element(planes, format, page_tokens, token, channel));
    means[(u64(blockIdx.y) * capacity + number) * HEAD_DIM + channel] =
        __fmul_rn(sum, __fdiv_rn(1.0f, float(block_tokens)));
}
EXPORT(block_means)

// Quest's bound of each block, summed over rows and the heads of the group: scores [kv_heads, blocks]. Block (key
// block, KV head) of one warp, a lane a query.
KERNEL bound_scores(float *scores, u32 blocks, const float *bounds, u32 capacity, const float *queries, u64 query_stride,
                    u32 rows, u32 group) {
    const float *smallest = bounds + (u64(blockIdx.y) * capacity + blockIdx.x) * 2 * HEAD_DIM;
    const float *largest = smallest + HEAD_DIM;
    float score = 0;
    for (u32 first = 0; first < rows * group; first += 32) {
        u32 at = first + lane_index();
        float bound = 0;
        if (at < rows * group) {
            const float *query = queries + u64(at / group) * query_stride + (blockIdx.y * group + at % group) * HEAD_DIM;
            for (u32 channel = 0; channel < HEAD_DIM; channel++) {
                float q = query[channel];
                bound = __fadd_rn(bound, fmaxf(__fmul_rn(q, smallest[channel]), __fmul_rn(q, largest[channel])));
            }
        }
        for (u32 lane = 0; lane < 32; lane++) {
            float other = __shfl_sync(FULL_WARP, bound, int(lane));
            if (first + lane < rows * group)
                score = __fadd_rn(score, other);
        }
    }
    if (lane_index() == 0)
        scores[u64(blockIdx.y) * blocks + blockIdx.x] = score;
}
EXPORT(bound_scores)

constexpr u32 TILE = 64, DEPTH = 16;

// logits[vector, j] = scale · (vector · long key j). A long key is `stride` consecutive keys side by side; vector
// (head, i) is queries (first_group + i) · stride.. of that head, the latest first, zero where the chunk has none.
// Blocks of 64 × 64, a thread 4 × 4; each sum runs over its elements in order.
KERNEL __launch_bounds__(256) long_logits(float *logits, u64 logit_stride, const float *queries, u64 query_stride,
                                          u32 query_start, u32 rows, u32 first_group, u32 groups_per_head, u32 vectors,
                                          const u64 *planes, u32 page_tokens, u32 format, u32 stride, u32 groups,
                                          u32 tokens, float scale) {
    STATIC_SHARED float a[DEPTH][TILE + 4], b[DEPTH][TILE + 4];
    u32 first_vector = blockIdx.y * TILE, first_key = blockIdx.x * TILE;
    // A query sees no long key behind its own: tiles wholly above the diagonal are never read.
    u32 last_group = first_group;
    for (u32 v = first_vector; v < min(first_vector + TILE, vectors); v++)
        last_group = max(last_group, first_group + v % groups_per_head);
    if (first_key > last_group)
        return;
    u32 row = threadIdx.x / 16, column = threadIdx.x % 16;
    float sums[4][4] = {};
    for (u32 k = 0; k < stride * HEAD_DIM; k += DEPTH) {
        u32 part = k / HEAD_DIM, channel = k % HEAD_DIM;
        // Each thread brings four of 64 × 16 elements of both.
        u32 own = threadIdx.x / 4, at = threadIdx.x % 4 * 4;
        float x[4] = {}, y[4] = {};
        u32 vector = first_vector + own;
        if (vector < vectors) {
            u32 position = (first_group + vector % groups_per_head) * stride + stride - 1 - part;
            if (position >= query_start && position - query_start < rows) {
                const float *from = queries + u64(position - query_start) * query_stride +
                                    u64(vector / groups_per_head) * HEAD_DIM + channel + at;
                for (u32 i = 0; i < 4; i++)
                    x[i] = from[i];
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
                    sums[i][j] = __fadd_rn(sums[i][j], __fmul_rn(a[d][row * 4 + i], b[d][column * 4 + j]));
    }
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) {
            u32 vector = first_vector + row * 4 + i, key = first_key + column * 4 + j;
            if (vector < vectors && key < groups)
                logits[vector * logit_stride + key] = __fmul_rn(sums[i][j], scale);
        }
}
EXPORT(long_logits)

// e^x for x ≤ 0 as `kernel.rs` of riffle-policy has it.
__device__ __forceinline__ float ordered_exp(float x) {
    const float magic = 12582912.0f;
    x = x > -87.0f ? x : -87.0f;
    float shifted = __fadd_rn(__fmul_rn(x, LOG2_E), magic);
    float n = __fsub_rn(shifted, magic);
    float r = __fadd_rn(__fsub_rn(x, __fmul_rn(n, 0.6933594f)), __fmul_rn(n, 2.1219444e-4f));
    float p = 1.0f / 720.0f;
    const float factors[6] = {1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < 6; i++)
        p = __fadd_rn(__fmul_rn(p, r), factors[i]);
    u32 bits = (__float_as_uint(shifted) - __float_as_uint(magic) + 127) << 23;
    return __fmul_rn(p, __uint_as_float(bits));
}

// The softmax of each row over its first min(first_group + row % groups_per_head + 1, groups) logits, in place; what is
// behind them is not read. The total is kept in f64, in sixteen lanes as on the CPU. A block is a row.
KERNEL __launch_bounds__(256) ordered_softmax(float *logits, u64 logit_stride, u32 first_group, u32 groups_per_head, u32 groups) {
    STATIC_SHARED float tops[8];
    STATIC_SHARED double lanes[16];
    STATIC_SHARED float factor;
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
    u32 whole = count / 16 * 16;
    if (threadIdx.x < 16) {
        double total = 0;
        for (u32 i = threadIdx.x; i < whole; i += 16)
            total = __dadd_rn(total, double(row[i]));
        lanes[threadIdx.x] = total;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0;
        for (u32 lane = 0; lane < 16; lane++)
            total = __dadd_rn(total, lanes[lane]);
        for (u32 i = whole; i < count; i++)
            total = __dadd_rn(total, double(row[i]));
        factor = float(__ddiv_rn(1.0, total));
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += 256)
        row[i] = __fmul_rn(row[i], factor);
}
EXPORT(ordered_softmax)

// XAttention: scores[block row, block] = Σ of the weights of its long queries (head by head, in order) on the block's long keys
// (in order). `per_block` long tokens make a block; block row r is block first_row + r. A thread is a score.
KERNEL antidiagonal_scores(float *scores, u32 blocks, const float *weights, u64 weight_stride, u32 first_group,
                           u32 groups_per_head, u32 heads, u32 groups, u32 per_block, u32 first_row) {
    u32 block = blockIdx.x * blockDim.x + threadIdx.x, number = first_row + blockIdx.y;
    if (block >= blocks)
        return;
    float sum = 0;
    if (block <= number) {
        u32 begin = max(number * per_block, first_group), end = min((number + 1) * per_block, first_group + groups_per_head);
        for (u32 head = 0; head < heads; head++)
            for (u32 group = begin; group < end; group++) {
                const float *row = weights + (u64(head) * groups_per_head + group - first_group) * weight_stride;
                u32 last = min(min((block + 1) * per_block, group + 1), groups);
                for (u32 i = block * per_block; i < last; i++)
                    sum = __fadd_rn(sum, row[i]);
            }
    }
    scores[u64(blockIdx.y) * blocks + block] = sum;
}
EXPORT(antidiagonal_scores)

// Vertical-slash: mass of every column, and of every distance query − key, over the rows of `weights` in order; row r is
// the query at first_query + r % rows. columns and distances are [tokens]. A thread is a line of each.
KERNEL line_mass(float *columns, float *distances, const float *weights, u64 weight_stride, u32 first_query, u32 rows,
                 u32 heads, u32 tokens) {
    u32 line = blockIdx.x * blockDim.x + threadIdx.x;
    if (line >= tokens)
        return;
    float column = 0, distance = 0;
    for (u32 row = 0; row < rows * heads; row++) {
        const float *of_row = weights + row * weight_stride;
        u32 visible = min(first_query + row % rows + 1, tokens);
        if (line < visible) {
            column = __fadd_rn(column, of_row[line]);
            distance = __fadd_rn(distance, of_row[visible - 1 - line]);
        }
    }
    columns[line] = column, distances[line] = distance;
}
EXPORT(line_mass)

// sums[i] = Σ values[i · width..][..width] in order.
KERNEL block_sums(float *sums, const float *values, u32 width, u32 count, u32 blocks) {
    u32 block = blockIdx.x * blockDim.x + threadIdx.x;
    if (block >= blocks)
        return;
    float sum = 0;
    for (u32 i = block * width; i < min((block + 1) * width, count); i++)
        sum = __fadd_rn(sum, values[i]);
    sums[block] = sum;
}
EXPORT(block_sums)
