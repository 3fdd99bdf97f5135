// Planes of pages from the CPU's layout into the device's, many at once: nothing is rounded.
//
// The CPU keeps stripes of 16 tokens, keys interleaved within them (`crates/attention/src/layout.rs`); what the device keeps
// says pages.cuh. A plane's tokens first..first + tokens, whole stripes, lie at `from` and go to their place in the plane
// at `to`.
#include "device.cuh"

struct Move {
    u64 to, from;
    u32 first, tokens;
};

constexpr u32 LANES = 16, QUANT_BLOCK = 32;

KERNEL arrange(const Move *moves, u32 keys, u32 format, u32 head_dim, u32 page_tokens) {
    Move move = moves[blockIdx.y];
    const u8 *from = (const u8 *)move.from;
    u8 *to = (u8 *)move.to;
    u32 step = gridDim.x * blockDim.x, thread = blockIdx.x * blockDim.x + threadIdx.x;
    u32 blocks = (head_dim + QUANT_BLOCK - 1) / QUANT_BLOCK;
    if (format == F16 || format == BF16) {
        for (u32 i = thread; i < move.tokens * head_dim; i += step) {
            u32 token = i / head_dim, d = i % head_dim, lane = token % LANES;
            u32 source = keys ? token / LANES * LANES * head_dim + d * LANES + lane : i;
            ((u16 *)to)[u64(move.first) * head_dim + i] = ((const u16 *)from)[source];
        }
        return;
    }
    bool bytes = format == Q8_0;
    // Bytes of a token's quants, and of a stripe.
    u32 width = bytes ? head_dim : head_dim / 2, stripe_bytes = LANES * (width + 2 * blocks);
    for (u32 i = thread; i < move.tokens * width; i += step) {
        u32 token = i / width, lane = token % LANES, d = bytes ? i % width : 2 * (i % width);
        u32 first = d / QUANT_BLOCK * QUANT_BLOCK, at = d - first, block_width = min(QUANT_BLOCK, head_dim - first);
        const u8 *stripe = from + token / LANES * stripe_bytes;
        const u8 *block = keys ? stripe + 2 * LANES * (first / QUANT_BLOCK + 1) : stripe + 2 * LANES * blocks;
        u8 quant;
        if (bytes) {
            u32 place = keys ? LANES * first + at / 4 * 4 * LANES + 4 * lane + at % 4
                             : LANES * first + lane / 4 * 4 * block_width + 4 * at + lane % 4;
            quant = block[place] ^ 0x80;
        } else {
            quant = 0;
            for (u32 j = 0; j < 2; j++) {
                u32 a = at + j, place = keys ? LANES / 2 * first + a / 8 * 4 * LANES + 4 * lane + a % 4
                                             : LANES / 2 * first + lane / 8 * 4 * block_width + 4 * a + lane % 4;
                bool high = keys ? a % 8 >= 4 : lane % 8 >= 4;
                quant |= (high ? block[place] >> 4 : block[place] & 15) << (4 * j);
            }
        }
        to[u64(move.first) * width + i] = quant;
    }
    u16 *scales = (u16 *)(to + u64(page_tokens) * width) + u64(move.first) * blocks;
    for (u32 i = thread; i < move.tokens * blocks; i += step) {
        u32 token = i / blocks, block = i % blocks;
        u32 before = keys ? block * (2 * LANES + LANES * QUANT_BLOCK * width / head_dim) : 2 * LANES * block;
        scales[i] = *(const u16 *)(from + token / LANES * stripe_bytes + before + 2 * (token % LANES));
    }
}
EXPORT(arrange)
