// Appends new keys and values to pages, after rotation and quantisation.
#include "pages.cuh"
#include "stripes.cuh"

// The largest power of two that divides HEAD_DIM.
constexpr u32 ROTATION = HEAD_DIM & (~HEAD_DIM + 1);

// Multiplies one head in shared memory by the normalised Walsh–Hadamard matrix, in blocks of ROTATION. It rounds as
// `riffle_attention::rotate_heads` does. The lanes of a warp share the work.
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

// Rotates data[row, head] in place. A warp takes one head.
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

// The sixteen tokens of a stripe in the format of their plane, before they are stored: bits of floats or quants, and
// scales.
struct Fresh {
    u16 elements[LANES][HEAD_DIM];
    u16 scales[LANES][SCALES];
};

// Encodes one rotated head in shared memory as token `token` of `fresh`. The lanes of a warp share the work.
__device__ __forceinline__ void encode(Fresh &fresh, u32 token, const float *head, u32 format) {
    u32 lane = lane_index();
    if (format == F16 || format == BF16) {
        for (u32 i = lane; i < HEAD_DIM; i += 32)
            fresh.elements[token][i] = format == F16 ? f32_to_f16(head[i]) : f32_to_bf16(head[i]);
        return;
    }
    // All lanes run the shuffles; lanes after a narrow last block hold zeros.
    for (u32 block = 0; block < SCALES; block++) {
        u32 i = block * 32 + lane;
        float value = i < HEAD_DIM ? head[i] : 0.0f, largest = value;
        // The value of largest magnitude; of equal ones the first.
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
            fresh.scales[token][block] = bits;
        const float magic = 12582912.0f;
        float rounded = __fsub_rn(__fadd_rn(__fmul_rn(value, inverse), magic), magic);
        u32 quant = format == Q8_0 ? u32(u8(int(fminf(fmaxf(rounded, -127.0f), 127.0f))))
                                   : u32(fminf(fmaxf(__fadd_rn(rounded, 8.0f), 0.0f), 15.0f));
        if (i < HEAD_DIM)
            fresh.elements[token][i] = u16(quant);
    }
}

// Stores token `token` of `fresh` as token `slot` of a plane (layout: pages.cuh). The lanes of a warp share the work.
__device__ __forceinline__ void place(u64 plane, u32 slot, u32 page_tokens, u32 format, const Fresh &fresh, u32 token) {
    u32 lane = lane_index();
    const u16 *elements = fresh.elements[token];
    if (format == F16 || format == BF16) {
        u16 *to = (u16 *)plane + u64(slot) * HEAD_DIM;
        for (u32 i = lane; i < HEAD_DIM; i += 32)
            to[i] = elements[i];
        return;
    }
    u32 token_bytes = quant_bytes(format == Q8_0, HEAD_DIM);
    u8 *to = (u8 *)plane + u64(slot) * token_bytes;
    for (u32 i = lane; i < token_bytes; i += 32)
        to[i] = format == Q8_0 ? u8(elements[i]) : u8(elements[2 * i] | elements[2 * i + 1] << 4);
    u16 *scales = (u16 *)((u8 *)plane + u64(page_tokens) * token_bytes) + u64(slot) * SCALES;
    for (u32 block = lane; block < SCALES; block += 32)
        scales[block] = fresh.scales[token][block];
}

// Appends `rows` keys and values [rows, kv_heads, HEAD_DIM], `stride` elements from row to row, with the CPU's
// roundings.
//
// A KV head's target holds the position of the first new token, then the addresses of the planes of keys from that
// token's page on, then the addresses of the planes of values. The address of a page that is not on the device is zero.
// `stripes` receives the same tokens in the CPU's layout: [keys and values, kv_heads, stripe_count], from the stripe of
// the first new token on. Tokens of a stripe that are not new are zero there. Block (stripe, KV head, keys or values).
KERNEL __launch_bounds__(WARPS * 32)
    append(u8 *stripes, u32 stripe_count, const u64 *targets, u32 pages_per_head, u32 page_tokens, const float *keys,
           u32 key_format, u32 rotated_keys, const float *values, u32 value_format, u32 rotated_values, u64 stride, u32 rows) {
    STATIC_SHARED float scratch[WARPS][HEAD_DIM];
    STATIC_SHARED Fresh fresh;
    bool is_key = blockIdx.z == 0;
    u32 kv_head = blockIdx.y, format = is_key ? key_format : value_format;
    const u64 *target = targets + kv_head * (1 + 2 * u64(pages_per_head));
    u32 start = u32(target[0]), first_page = start / page_tokens;
    const u64 *planes = target + 1 + (is_key ? 0 : pages_per_head);
    const float *source = is_key ? keys : values;
    float *head = scratch[warp_index()];
    for (u32 token = warp_index(); token < LANES; token += WARPS) {
        u32 at = start / LANES * LANES + blockIdx.x * LANES + token;
        bool is_new = at >= start && at - start < rows;
        if (!is_new) {
            for (u32 i = lane_index(); i < HEAD_DIM; i += 32)
                fresh.elements[token][i] = 0;
            for (u32 i = lane_index(); i < SCALES; i += 32)
                fresh.scales[token][i] = 0;
            continue;
        }
        const float *from = source + u64(at - start) * stride + u64(kv_head) * HEAD_DIM;
        for (u32 i = lane_index(); i < HEAD_DIM; i += 32)
            head[i] = from[i];
        __syncwarp();
        if (is_key ? rotated_keys : rotated_values)
            rotate(head);
        encode(fresh, token, head, format);
        __syncwarp();
        u64 plane = planes[at / page_tokens - first_page];
        if (plane)
            place(plane, at % page_tokens, page_tokens, format, fresh, token);
    }
    __syncthreads();
    u32 before = is_key ? 0 : gridDim.y * stripe_count * stripe_bytes(key_format, HEAD_DIM);
    u8 *to = stripes + before + u64(kv_head * stripe_count + blockIdx.x) * stripe_bytes(format, HEAD_DIM);
    if (format == F16 || format == BF16) {
        for (u32 i = threadIdx.x; i < LANES * HEAD_DIM; i += WARPS * 32)
            ((u16 *)to)[stripe_element(is_key, HEAD_DIM, i / HEAD_DIM, i % HEAD_DIM)] = fresh.elements[i / HEAD_DIM][i % HEAD_DIM];
        return;
    }
    for (u32 i = threadIdx.x; i < LANES * HEAD_DIM; i += WARPS * 32) {
        u32 token = i / HEAD_DIM, d = i % HEAD_DIM;
        bool is_high;
        u32 at = stripe_quant(is_key, format == Q8_0, HEAD_DIM, token, d, is_high);
        u32 quant = fresh.elements[token][d];
        if (format == Q8_0)
            to[at] = u8(quant) ^ 0x80;
        else if (!is_high)
            to[at] = u8(quant | (is_key ? fresh.elements[token][d + 4] : fresh.elements[token + 4][d]) << 4);
    }
    for (u32 i = threadIdx.x; i < LANES * SCALES; i += WARPS * 32)
        *(u16 *)(to + stripe_scale(is_key, format == Q8_0, i / SCALES, i % SCALES)) = fresh.scales[i / SCALES][i % SCALES];
}
EXPORT(append)
