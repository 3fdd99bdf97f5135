// Single elements of the planes of `pages.cuh` as f32, exactly.
#pragma once
#include "pages.cuh"

__device__ __forceinline__ float plane_element(u64 plane, u32 format, u32 page_tokens, u32 slot, u32 channel) {
    if (format == F16)
        return f16_to_f32(((const u16 *)plane)[u64(slot) * HEAD_DIM + channel]);
    if (format == BF16)
        return bf16_to_f32(((const u16 *)plane)[u64(slot) * HEAD_DIM + channel]);
    const u8 *bytes = (const u8 *)plane;
    u32 token_bytes = format == Q8_0 ? HEAD_DIM : HEAD_DIM / 2;
    float scale = f16_to_f32(((const u16 *)(bytes + u64(page_tokens) * token_bytes))[slot * SCALES + channel / 32]);
    if (format == Q8_0)
        return __fmul_rn(float(i8(bytes[u64(slot) * HEAD_DIM + channel])), scale);
    u32 pair = bytes[u64(slot) * (HEAD_DIM / 2) + channel / 2];
    return __fmul_rn(float(int(pair >> (4 * (channel % 2)) & 15) - 8), scale);
}

// The element of a token; zero if its page is not on the device.
__device__ __forceinline__ float key_element(const u64 *planes, u32 format, u32 page_tokens, u32 token, u32 channel) {
    u64 plane = planes[token / page_tokens];
    return plane ? plane_element(plane, format, page_tokens, token % page_tokens, channel) : 0.0f;
}
