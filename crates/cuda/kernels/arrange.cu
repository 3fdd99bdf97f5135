// Copies planes of pages from the CPU's layout to the device's, many in one launch. Nothing is rounded.
//
// Each move takes whole stripes at `from` to tokens first..first + tokens of the plane at `to` (layout: pages.cuh).
#include "stripes.cuh"

struct Move {
    u64 to, from;
    u32 first, tokens;
};

KERNEL arrange(const Move *moves, u32 keys, u32 format, u32 head_dim, u32 page_tokens) {
    Move move = moves[blockIdx.y];
    const u8 *from = (const u8 *)move.from;
    u8 *to = (u8 *)move.to;
    u32 step = gridDim.x * blockDim.x, thread = blockIdx.x * blockDim.x + threadIdx.x;
    u32 stripe = stripe_bytes(format, head_dim);
    if (format == F16 || format == BF16) {
        for (u32 i = thread; i < move.tokens * head_dim; i += step) {
            u32 token = i / head_dim;
            const u16 *source = (const u16 *)(from + token / LANES * stripe);
            ((u16 *)to)[u64(move.first) * head_dim + i] = source[stripe_element(keys, head_dim, token % LANES, i % head_dim)];
        }
        return;
    }
    bool bytes = format == Q8_0;
    u32 width = quant_bytes(bytes, head_dim), blocks = quant_blocks(head_dim);
    for (u32 i = thread; i < move.tokens * width; i += step) {
        u32 token = i / width, lane = token % LANES, d = bytes ? i % width : 2 * (i % width);
        const u8 *source = from + token / LANES * stripe;
        bool high;
        u8 quant;
        if (bytes) {
            quant = source[stripe_quant(keys, true, head_dim, lane, d, high)] ^ 0x80;
        } else {
            quant = 0;
            for (u32 j = 0; j < 2; j++) {
                u32 place = stripe_quant(keys, false, head_dim, lane, d + j, high);
                quant |= (high ? source[place] >> 4 : source[place] & 15) << (4 * j);
            }
        }
        to[u64(move.first) * width + i] = quant;
    }
    u16 *scales = (u16 *)(to + u64(page_tokens) * width) + u64(move.first) * blocks;
    for (u32 i = thread; i < move.tokens * blocks; i += step) {
        u32 token = i / blocks, block = i % blocks;
        const u8 *source = from + token / LANES * stripe;
        scales[i] = *(const u16 *)(source + stripe_scale(keys, bytes, token % LANES, block));
    }
}
EXPORT(arrange)
