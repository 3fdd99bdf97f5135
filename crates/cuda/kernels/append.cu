// New keys and values go into pages, rotated and quantised on the way.
#include "pages.cuh"

// The largest power of two that divides HEAD_DIM.
constexpr u32 ROTATION = HEAD_DIM & (~HEAD_DIM + 1);

// One head in shared memory times the normalised Walsh–Hadamard matrix, in blocks of ROTATION, with the roundings of
// `riffle_attention::rotate_heads`. A warp works together.
__device__ __forceinline__ void rotate(float *head) {
    float scale = __fdiv_rn(1.0f, __fsqrt_rn(float(ROTATION)));
    for (u32 i = lane_index(); i < HEAD_DIM; i += 32)
        head[i] = __fmul_rn(head[i], scale);
    __syncwarp();
    for (u32 stride = ROTATION / 2; stride > 0; stride /= 2) {
        for (u32 pair = lane_index(); pair < HEAD_DIM / 2; pair += 32) {
            u32 low = pair / stride * 2 * stride + pair % stride;
            float a = head[low], b = head[low + stride];
            head[low] = __fadd_rn(a, b), head[low + stride] = __fsub_rn(a, b);
        }
        __syncwarp();
    }
}

constexpr u32 WARPS = 4;

// data[row, head] rotated in place. A warp is a head.
KERNEL __launch_bounds__(WARPS * 32) rotate_heads(float *data, u32 heads, u64 stride, u64 count) {
    STATIC_SHARED float scratch[WARPS][HEAD_DIM];
    u64 at = u64(blockIdx.x) * WARPS + warp_index();
    if (at >= count)
        return;
    float *head = scratch[warp_index()], *from = data + at / heads * stride + at % heads * HEAD_DIM;
    for (u32 i = lane_index(); i < HEAD_DIM; i += 32)
        head[i] = from[i];
    __syncwarp();
    rotate(head);
    for (u32 i = lane_index(); i < HEAD_DIM; i += 32)
        from[i] = head[i];
}
EXPORT(rotate_heads)

// source[row, head] becomes token start + row of its head's plane. A warp is a (row, KV head).
KERNEL __launch_bounds__(WARPS * 32) append(const u64 *pages, u32 pages_per_head, u32 page_tokens, u32 format, const float *source,
                                            u64 stride, u32 heads, u32 start, u32 rotated, u64 count) {
    STATIC_SHARED float scratch[WARPS][HEAD_DIM];
    u64 at = u64(blockIdx.x) * WARPS + warp_index();
    if (at >= count)
        return;
    u32 row = u32(at / heads), number = u32(at % heads), lane = lane_index();
    u32 token = start + row, slot = token % page_tokens;
    u64 plane = pages[u64(number) * pages_per_head + token / page_tokens];
    float *head = scratch[warp_index()];
    const float *from = source + row * stride + u64(number) * HEAD_DIM;
    for (u32 i = lane; i < HEAD_DIM; i += 32)
        head[i] = from[i];
    __syncwarp();
    if (rotated)
        rotate(head);
    if (format == F16 || format == BF16) {
        u16 *to = (u16 *)plane + u64(slot) * HEAD_DIM;
        for (u32 i = lane; i < HEAD_DIM; i += 32)
            to[i] = format == F16 ? f32_to_f16(head[i]) : f32_to_bf16(head[i]);
        return;
    }
    u32 token_bytes = format == Q8_0 ? HEAD_DIM : HEAD_DIM / 2;
    u8 *to = (u8 *)plane + u64(slot) * token_bytes;
    u16 *scales = (u16 *)((u8 *)plane + u64(page_tokens) * token_bytes) + slot * SCALES;
    // Every lane takes part in the shuffles, those behind a narrow last block with zeros.
    for (u32 block = 0; block < SCALES; block++) {
        u32 i = block * 32 + lane;
        float value = i < HEAD_DIM ? head[i] : 0.0f, largest = value;
        // The value of largest magnitude, the first of equals.
        u32 place = lane;
        for (int mask = 16; mask > 0; mask >>= 1) {
            float other = __shfl_xor_sync(FULL_WARP, largest, mask);
            u32 other_place = __shfl_xor_sync(FULL_WARP, place, mask);
            if (fabsf(other) > fabsf(largest) || (fabsf(other) == fabsf(largest) && other_place < place))
                largest = other, place = other_place;
        }
        u16 bits = f32_to_f16(format == Q8_0 ? __fdiv_rn(fabsf(largest), 127.0f) : __fdiv_rn(largest, -8.0f));
        float scale = f16_to_f32(bits), inverse = scale == 0.0f ? 0.0f : __fdiv_rn(1.0f, scale);
        if (lane == 0)
            scales[block] = bits;
        const float magic = 12582912.0f;
        float rounded = __fsub_rn(__fadd_rn(__fmul_rn(value, inverse), magic), magic);
        if (format == Q8_0) {
            rounded = fminf(fmaxf(rounded, -127.0f), 127.0f);
            if (i < HEAD_DIM)
                to[i] = u8(int(rounded));
        } else {
            u32 quant = u32(fminf(fmaxf(__fadd_rn(rounded, 8.0f), 0.0f), 15.0f));
            u32 next = __shfl_down_sync(FULL_WARP, quant, 1);
            if (i < HEAD_DIM && lane % 2 == 0)
                to[i / 2] = u8(quant | next << 4);
        }
    }
}
EXPORT(append)
