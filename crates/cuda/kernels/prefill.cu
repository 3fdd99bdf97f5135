// Attention of many queries over pages, dense or under a `Selection`, on the tensor cores of every architecture
// (mma.sync). warpgroup_prefill.cu does the same with the instructions of sm_90. Keys and values are double-buffered
// in shared memory.
#include "prefill.cuh"

// A block has 64 keys and eight warps, with queries in registers. If HEAD_DIM is above 128 it has half of both, with
// queries in shared memory.
constexpr u32 KEYS = HEAD_DIM <= 128 ? 64 : 32, WARPS = HEAD_DIM <= 128 ? 8 : 4;
constexpr u32 THREADS = WARPS * 32, PACKED_ROWS = WARPS * 16;
constexpr bool QUERIES_IN_REGISTERS = HEAD_DIM <= 128;
constexpr u32 TILE = KEYS * PITCH;

KERNEL __launch_bounds__(THREADS) prefill(
    float *output, u64 output_stride, float *log_sum_exp, const float *queries, u64 query_stride, const u32 *work,
    const QueryTile *tiles, const Run *runs, const u32 *diagonals, const u32 *extra_ends, const u32 *extras,
    const u64 *key_pages, const u64 *value_pages, u32 pages_per_head, u32 page_tokens, u32 key_format, u32 value_format,
    u32 group, u32 heads, float scale, float soft_cap, const float *sinks, float *state_ml, float *state_o, u32 resume,
    u32 finish) {
    DYNAMIC_SHARED(memory);
    u16 *keys = (u16 *)memory, *values = keys + 2 * TILE, *query_rows = QUERIES_IN_REGISTERS ? keys : values + 2 * TILE;
    const QueryTile tile = tiles[work[2 * blockIdx.x]];
    const Packed packed = {tile, group, work[2 * blockIdx.x + 1], tile.rows * group};
    Head head = {key_pages + u64(tile.kv_head) * pages_per_head, value_pages + u64(tile.kv_head) * pages_per_head,
                 key_format, value_format, page_tokens, tile.start + tile.rows};
    const Results results = {output, output_stride, log_sum_exp, sinks, heads, state_ml, state_o, resume != 0, finish != 0};
    Lines lines = {diagonals, extra_ends, extras};
    Logits logits = {scale, soft_cap};

    u16 *own_queries = query_rows + warp_index() * 16 * PITCH;
    store_queries(own_queries, packed, queries, query_stride);
    __syncwarp();
    u32 fragments[QUERIES_IN_REGISTERS ? DEPTH_STEPS : 1][4];
    if (QUERIES_IN_REGISTERS) {
#pragma unroll
        for (u32 step = 0; step < DEPTH_STEPS; step++)
            load_query(fragments[QUERIES_IN_REGISTERS ? step : 0], own_queries, step);
        __syncthreads();
    }
    Rows16 rows;
    take_up(rows, results, packed);

    auto load = [&](const KeyTile &wanted, u32 turn) {
        load_tile<KEY_BF16, KEYS, THREADS>(Pitched{keys + turn * TILE}, head.keys, key_format, head, wanted.first, threadIdx.x);
        load_tile<VALUE_BF16, KEYS, THREADS>(Pitched{values + turn * TILE}, head.values, value_format, head, wanted.first, threadIdx.x);
    };
    Walk<KEYS> walk = {runs, tile.runs, tile.runs_end, packed.last(PACKED_ROWS), 0, 0};
    KeyTile current, following;
    bool more = walk.next(current);
    if (more)
        load(current, 0);
    copy_async_commit();
    for (u32 turn = 0; more; turn ^= 1) {
        bool follows = walk.next(following);
        if (follows)
            load(following, turn ^ 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        u64 bits[2];
        bool masked = masks<KEYS>(bits, current, packed, lines);
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
            keys + turn * TILE, values + turn * TILE, logits, masked, bits);
        __syncthreads();
        current = following, more = follows;
    }
    copy_async_wait<0>();
    leave(rows, results, packed);
}
EXPORT(prefill)
