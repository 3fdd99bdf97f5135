// Types, conversions and PTX functions that every kernel uses. The emulation has the same functions.
//
// No CUDA header is included, so a machine needs only a driver and NVRTC.
#pragma once
#ifdef RIFFLE_EMULATED
#include "emulated/intrinsics.h"
#else
#include "intrinsics.cuh"
#endif

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void

constexpr u32 FULL_WARP = 0xffffffffu;
constexpr float LOG2_E = 1.44269504088896340736f;
#define NEGATIVE_INFINITY __uint_as_float(0xff800000u)
#define POSITIVE_INFINITY __uint_as_float(0x7f800000u)

// Formats of the planes of a page and of weights, as the host numbers them.
constexpr int F32 = 0, F16 = 1, BF16 = 2, Q8_0 = 3, Q4_0 = 4;

__device__ __forceinline__ u32 lane_index() { return threadIdx.x & 31; }
__device__ __forceinline__ u32 warp_index() { return threadIdx.x >> 5; }

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1)
        value += __shfl_xor_sync(FULL_WARP, value, mask);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1)
        value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, mask));
    return value;
}

// Returns the sum over the block to every thread; `scratch` holds one float for each warp.
__device__ __forceinline__ float block_sum(float value, float *scratch) {
    value = warp_sum(value);
    __syncthreads();
    if (lane_index() == 0)
        scratch[warp_index()] = value;
    __syncthreads();
    float total = 0;
    for (u32 warp = 0; warp < blockDim.x / 32; warp++)
        total += scratch[warp];
    return total;
}

__device__ __forceinline__ u32 pack_pair(u16 low, u16 high) { return low | u32(high) << 16; }

template <bool IS_BF16> __device__ __forceinline__ u16 narrow(float value) {
    return IS_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
}
// Converts two numbers in one instruction; the first goes to the low half.
template <bool IS_BF16> __device__ __forceinline__ u32 narrow_pair(float low, float high) {
    return IS_BF16 ? f32_to_bf16_pair(low, high) : f32_to_f16_pair(low, high);
}
template <bool IS_BF16> __device__ __forceinline__ float widen(u16 bits) {
    return IS_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

__device__ __forceinline__ u64 shuffle_64(u64 value, u32 lane) {
    u32 low = __shfl_sync(FULL_WARP, u32(value), int(lane)), high = __shfl_sync(FULL_WARP, u32(value >> 32), int(lane));
    return u64(high) << 32 | low;
}
