// Attention of many queries over pages, dense or under a `Selection`, on the warpgroup products of sm_90a, HEAD_DIM 64
// or 128 (FlashAttention-3, Shah et al. 2024). It computes the same as prefill.cu, which runs on every architecture,
// from the same arguments.
//
// Two warpgroups of 64 packed rows share the keys. The tensor cores multiply the queries by the keys of one tile, and
// the weights of the tile before by its values. Meanwhile the warps load the tile after next and turn finished logits
// into weights.
#include "prefill.cuh"
#include "warpgroup.cuh"

constexpr u32 KEYS = KEY_BLOCK, THREADS = 256, PACKED_ROWS = 128, TILE = KEYS * HEAD_DIM;
// Tiles in transit. The keys of a tile are read in its turn and its values in the next turn, so values need one more
// tile.
constexpr u32 AHEAD = 2, KEY_TILES = AHEAD + 1, VALUE_TILES = AHEAD + 2;

template <bool VALUE> struct Constant {
    static constexpr bool value = VALUE;
};

KERNEL __launch_bounds__(THREADS, 1) prefill(
    float *output, u64 output_stride, float *log_sum_exp, const float *queries, u64 query_stride, const u32 *work,
    const QueryTile *tiles, const Run *runs, const u32 *diagonals, const u32 *extra_ends, const u32 *extras,
    const u64 *key_pages, const u64 *value_pages, u32 pages_per_head, u32 page_tokens, u32 key_format, u32 value_format,
    u32 group, u32 heads, float scale, float soft_cap, const float *sinks, float *state_ml, float *state_o, u32 resume,
    u32 finish) {
    DYNAMIC_SHARED(memory);
    u16 *keys = (u16 *)(memory + (SWIZZLE_BYTES - shared_address(memory) % SWIZZLE_BYTES) % SWIZZLE_BYTES);
    u16 *values = keys + KEY_TILES * TILE;
    const QueryTile tile = tiles[work[2 * blockIdx.x]];
    const Packed packed = {tile, group, work[2 * blockIdx.x + 1], tile.rows * group};
    Head head = {key_pages + u64(tile.kv_head) * pages_per_head, value_pages + u64(tile.kv_head) * pages_per_head,
                 key_format, value_format, page_tokens, tile.start + tile.rows};
    const Results results = {output, output_stride, log_sum_exp, sinks, heads, state_ml, state_o, resume != 0, finish != 0};
    Lines lines = {diagonals, extra_ends, extras};
    Logits logits = {scale, soft_cap};

    // The queries pass through the tiles' memory into registers.
    u16 *own_queries = keys + warp_index() * 16 * PITCH;
    store_queries(own_queries, packed, queries, query_stride);
    __syncwarp();
    u32 fragments[DEPTH_STEPS][4];
#pragma unroll
    for (u32 step = 0; step < DEPTH_STEPS; step++)
        load_query(fragments[step], own_queries, step);
    __syncthreads();
    Rows16 rows;
    take_up(rows, results, packed);

    auto load = [&](const KeyTile &wanted, u32 number) {
        load_tile<KEY_BF16, KEYS, THREADS>(Swizzled<KEYS>{keys + number % KEY_TILES * TILE}, head.keys, key_format, head, wanted.first,
                                  threadIdx.x);
        load_tile<VALUE_BF16, KEYS, THREADS>(Swizzled<KEYS>{values + number % VALUE_TILES * TILE}, head.values, value_format, head,
                                    wanted.first, threadIdx.x);
    };
    float s[KEYS / 8][4];
    u32 weights[KEYS / 16][4];
    // s = queries · keys of tile `number`.
    auto multiply_keys = [&](u32 number) {
        u64 of_keys = describe<KEYS>(keys + number % KEY_TILES * TILE);
#pragma unroll
        for (u32 step = 0; step < DEPTH_STEPS; step++) {
            u32 bytes = step / 4 * (KEYS * 128) + step % 4 * 32;
            multiply_warpgroup<KEY_BF16, false>(s, fragments[step], of_keys + bytes / 16, step > 0);
        }
        warpgroup_commit();
    };
    // o += weights · values of tile `number`.
    auto multiply_values = [&](u32 number) {
        u64 of_values = describe<KEYS>(values + number % VALUE_TILES * TILE);
#pragma unroll
        for (u32 step = 0; step < KEYS / 16; step++)
            multiply_warpgroup<VALUE_BF16, true>(rows.o, weights[step], of_values + step * 16 * 128 / 16, true);
    };

    Walk<KEYS> walk = {runs, tile.runs, tile.runs_end, packed.last(PACKED_ROWS), 0, 0};
    // Tiles from `number` on, loaded or in transit.
    KeyTile coming[AHEAD + 1];
    bool is_coming[AHEAD + 1];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
        is_coming[i] = walk.next(coming[i]);
        if (is_coming[i])
            load(coming[i], i);
        copy_async_commit();
    }
    // Multiplies the keys of the first tile in transit, and the values of the tile before it if there is one.
    auto turn = [&](u32 number, auto is_first) {
        copy_async_wait<AHEAD - 1>();
        publish_shared();
        // After this barrier every thread's part of the tile is loaded, and no product reads the tiles that are
        // overwritten below.
        __syncthreads();
        warpgroup_arrive();
        multiply_keys(number);
        if (!is_first.value)
            multiply_values(number - 1);
        warpgroup_commit();

        is_coming[AHEAD] = walk.next(coming[AHEAD]);
        if (is_coming[AHEAD])
            load(coming[AHEAD], number + AHEAD);
        copy_async_commit();
        u64 bits[2];
        bool masked = masks<KEYS>(bits, coming[0], packed, lines);
        float keep[2];
        warpgroup_wait<1>();
        pin(s);
        weigh<KEYS>(s, rows.m, rows.l, keep, logits, masked, bits);
        // The branch precedes both waits: so the weights are computed before them, beside the products with values.
        if (has_moved(keep)) {
            warpgroup_wait<0>();
            pin(rows.o);
            rescale(rows, keep);
        } else {
            warpgroup_wait<0>();
            pin(rows.o);
        }
        pack_weights<VALUE_BF16, KEYS>(weights, s);
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++)
            coming[i] = coming[i + 1], is_coming[i] = is_coming[i + 1];
    };
    if (is_coming[0]) {
        turn(0, Constant<true>{});
        u32 number = 1;
        for (; is_coming[0]; number++)
            turn(number, Constant<false>{});
        warpgroup_arrive();
        multiply_values(number - 1);
        warpgroup_commit();
        warpgroup_wait<0>();
        pin(rows.o);
    }
    copy_async_wait<0>();
    leave(rows, results, packed);
}
EXPORT(prefill)
