// Column mass: the softmax weight that each key received, summed over rows and the heads of its group.
//
// A block takes 64 keys of one KV head and goes through all tiles in order, so that every sum has one order.
#include "softmax.cuh"

constexpr u32 WARPS = 4, THREADS = WARPS * 32;

// Writes mass[kv_head, key − first_key] for the `key_count` keys from first_key on. `log_sum_exp` [rows, heads] covers
// all keys of a row. The `tile_count` tiles may be of any KV head; the runs of a tile ascend.
KERNEL __launch_bounds__(THREADS) column_mass(
    float *mass, u32 mass_stride, u32 key_count, u32 first_key, const float *log_sum_exp, const float *queries, u64 query_stride,
    const QueryTile *tiles, u32 tile_count, const Run *runs, const u32 *diagonals, const u32 *extra_ends,
    const u32 *extras, const u64 *key_pages, u32 pages_per_head, u32 page_tokens, u32 key_format, u32 group, u32 heads,
    float scale, float soft_cap) {
    DYNAMIC_SHARED(memory);
    u16 *keys = (u16 *)memory, *own_queries = keys + KEY_BLOCK * PITCH + warp_index() * 16 * PITCH;
    STATIC_SHARED float sums[WARPS][KEY_BLOCK];
    u32 lane = lane_index(), kv_head = blockIdx.y, block = first_key + blockIdx.x * KEY_BLOCK;
    Lines lines = {diagonals, extra_ends, extras};
    float columns[KEY_BLOCK / 8][2] = {};
    u32 loaded = 0;
    for (u32 number = 0; number < tile_count; number++) {
        const QueryTile tile = tiles[number];
        if (tile.kv_head != kv_head || block >= tile.start + tile.rows)
            continue;
        // Finds the run that holds the block.
        u32 begin = tile.runs, end = tile.runs_end;
        while (begin < end) {
            u32 middle = (begin + end) / 2;
            if (runs[middle].first + runs[middle].blocks * KEY_BLOCK <= block)
                begin = middle + 1;
            else
                end = middle;
        }
        if (begin >= tile.runs_end || runs[begin].first > block)
            continue;
        Run run = runs[begin];
        u32 limit = tile.start + tile.rows;
        if (loaded < limit) {
            // A later tile may see keys that were masked for an earlier one.
            __syncthreads();
            Head head = {key_pages + u64(kv_head) * pages_per_head, nullptr, key_format, 0, page_tokens, limit};
            load_tile<KEY_BF16, KEY_BLOCK, THREADS>(Pitched{keys}, head.keys, key_format, head, block, threadIdx.x);
            copy_async_commit();
            copy_async_wait<0>();
            __syncthreads();
            loaded = limit;
        }
        u32 packed_rows = tile.rows * group;
        for (u32 first = warp_index() * 16; first < packed_rows; first += WARPS * 16) {
            for (u32 i = 0; i < 16; i++) {
                u32 packed = first + i;
                const float *query = nullptr;
                if (packed < packed_rows)
                    query = queries + u64(tile.row + packed / group) * query_stride +
                            u64(kv_head * group + packed % group) * HEAD_DIM;
                store_query<KEY_BF16>(own_queries + i * PITCH, query);
            }
            __syncwarp();
            float s[KEY_BLOCK / 8][4] = {};
#pragma unroll
            for (u32 step = 0; step < DEPTH_STEPS; step++) {
                u32 a[4];
                load_query(a, own_queries, step);
#pragma unroll
                for (u32 n = 0; n < KEY_BLOCK / 16; n++) {
                    u32 b[4];
                    load_matrices<false>(b, keys + (16 * n + lane / 16 * 8 + lane % 8) * PITCH + step * 16 + lane / 8 % 2 * 8);
                    u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
                    multiply_add_16x8x16<KEY_BF16>(s[2 * n], a, low);
                    multiply_add_16x8x16<KEY_BF16>(s[2 * n + 1], a, high);
                }
            }
            __syncwarp();
            u32 own = min(first + lane % 16, packed_rows - 1);
            u64 seen = visible_bits(tile, lines, run.bits, block, tile.start + own / group);
            u64 bits[2] = {shuffle_64(seen, lane / 4), shuffle_64(seen, lane / 4 + 8)};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 packed = first + lane / 4 + 8 * i;
                if (packed >= packed_rows)
                    continue;
                float base = log_sum_exp[u64(tile.row + packed / group) * heads + kv_head * group + packed % group];
#pragma unroll
                for (u32 n = 0; n < KEY_BLOCK / 8; n++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        float logit = s[n][2 * i + j] * scale;
                        if (soft_cap > 0)
                            logit = soft_cap * tanhf(logit / soft_cap);
                        if (bits[i] >> (8 * n + lane % 4 * 2 + j) & 1)
                            columns[n][j] += exp2_fast((logit - base) * LOG2_E);
                    }
            }
        }
    }
#pragma unroll
    for (u32 n = 0; n < KEY_BLOCK / 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            for (int mask = 4; mask < 32; mask <<= 1)
                columns[n][j] += __shfl_xor_sync(FULL_WARP, columns[n][j], mask);
            if (lane < 4)
                sums[warp_index()][8 * n + 2 * lane + j] = columns[n][j];
        }
    __syncthreads();
    u32 key = blockIdx.x * KEY_BLOCK + threadIdx.x;
    if (threadIdx.x < KEY_BLOCK && key < key_count) {
        float sum = 0;
        for (u32 warp = 0; warp < WARPS; warp++)
            sum += sums[warp][threadIdx.x];
        mass[u64(kv_head) * mass_stride + key] = sum;
    }
}
EXPORT(column_mass)
