// Emulates CUDA's functions for the kernels, on the fibers of `fibers.h`.
#pragma once
#include "fibers.h"
#include <cmath>
#include <limits>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__
#define __align__(bytes) alignas(bytes)

#define threadIdx (::emulated::machine.current->index)
#define blockIdx (::emulated::machine.block_index)
#define blockDim (::emulated::machine.block)
#define gridDim (::emulated::machine.grid)

#define DYNAMIC_SHARED(name) unsigned char *name = ::emulated::aligned_shared()
#define STATIC_SHARED static thread_local

#define EXPORT(name)                                                                                                   \
    extern "C" const char *riffle_launch_##name(const ::emulated::Launch *l, void **arguments) {                      \
        return ::emulated::launch(name, l, arguments);                                                                 \
    }                                                                                                                  \
    extern "C" const unsigned *riffle_parameters_##name() { return ::emulated::parameter_bytes(name); }

namespace emulated {
inline unsigned char *aligned_shared() { return machine.shared.data(); }
} // namespace emulated

struct uint4 {
    unsigned x, y, z, w;
};
struct uint2 {
    unsigned x, y;
};
struct float4 {
    float x, y, z, w;
};
struct float2 {
    float x, y;
};

inline void __syncthreads() { emulated::barrier(0, emulated::machine.count); }
inline void __syncwarp() { emulated::meet(0); }

template <class T> T __shfl_sync(unsigned, T value, int lane) {
    return emulated::slot<T>(emulated::meet(value), unsigned(lane) & 31);
}
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) {
    unsigned lane = emulated::machine.current->lane;
    return emulated::slot<T>(emulated::meet(value), (lane ^ unsigned(mask)) & 31);
}
template <class T> T __shfl_down_sync(unsigned, T value, unsigned delta) {
    unsigned lane = emulated::machine.current->lane;
    const auto *slots = emulated::meet(value);
    return lane + delta < 32 ? emulated::slot<T>(slots, lane + delta) : value;
}
inline unsigned __ballot_sync(unsigned, int predicate) {
    const auto *slots = emulated::meet(predicate);
    unsigned bits = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        bits |= unsigned(emulated::slot<int>(slots, lane) != 0) << lane;
    return bits;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == ~0u; }

inline float atomicAdd(float *at, float value) {
    float before = *at;
    *at = before + value;
    return before;
}
inline int atomicMax(int *at, int value) {
    int before = *at;
    *at = before > value ? before : value;
    return before;
}

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline int __float2int_rn(float value) { return int(std::nearbyint(value)); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __ffsll(unsigned long long bits) { return __builtin_ffsll((long long)bits); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++)
        c += int((signed char)(unsigned(a) >> (8 * i))) * int((signed char)(unsigned(b) >> (8 * i)));
    return c;
}
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }

// --- Functions that are PTX in intrinsics.cuh -------------------------------------------------------------------

inline float exp2_fast(float x) { return std::exp2(x); }

inline float f16_to_f32(unsigned short bits) {
    unsigned magnitude = (bits & 0x7fffu) << 13;
    unsigned moved = __float_as_uint(__uint_as_float(magnitude) * __uint_as_float(0x77800000u));
    unsigned special = magnitude | 0x7f800000u;
    return __uint_as_float((magnitude >= 0x0f800000u ? special : moved) | (bits & 0x8000u) << 16);
}
inline unsigned short f32_to_f16(float value) {
    unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (unsigned short)(sign | 0x7fff);
    if (bits >= 0x477ff000u)
        return (unsigned short)(sign | 0x7c00);
    if (bits < 0x38800000u) {
        // Below the normal numbers: adding 0.5 leaves the rounded mantissa in the low bits.
        unsigned rounded = __float_as_uint(__uint_as_float(bits) + 0.5f) - 0x3f000000u;
        return (unsigned short)(sign | rounded);
    }
    unsigned rounded = bits + 0xfffu + (bits >> 13 & 1);
    return (unsigned short)(sign | (rounded - 0x38000000u) >> 13);
}
inline float bf16_to_f32(unsigned short bits) { return __uint_as_float(unsigned(bits) << 16); }
inline unsigned short f32_to_bf16(float value) {
    unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline unsigned f32_to_f16_pair(float low, float high) { return f32_to_f16(low) | unsigned(f32_to_f16(high)) << 16; }
inline unsigned f32_to_bf16_pair(float low, float high) { return f32_to_bf16(low) | unsigned(f32_to_bf16(high)) << 16; }

inline void store_16(void *to, uint4 value) {
    std::memcpy(to, &value, 16);
    if (emulated::hooks.wrote_shared)
        emulated::hooks.wrote_shared(to, 16);
}

namespace emulated {
inline void carry_out(const Copy &copy) {
    std::memcpy(copy.to, copy.from, copy.bytes);
    std::memset((char *)copy.to + copy.bytes, 0, copy.zeros);
    if (hooks.wrote_shared)
        hooks.wrote_shared(copy.to, copy.bytes + copy.zeros);
}
} // namespace emulated

// A copy is carried out at once or at its wait, at random. Until the wait, kernels must not read the bytes of its
// target.
inline void copy_async_16(void *to, const void *from, unsigned bytes) {
    emulated::Copy copy{to, from, bytes, 16 - bytes};
    if (emulated::random_number() & 1)
        emulated::carry_out(copy);
    else
        emulated::machine.current->open_group.push_back(copy);
}
inline void copy_async_commit() {
    auto *t = emulated::machine.current;
    t->groups.push_back(std::move(t->open_group));
    t->open_group.clear();
}
template <int PENDING> void copy_async_wait() {
    auto &groups = emulated::machine.current->groups;
    while (groups.size() > PENDING) {
        for (const auto &copy : groups.front())
            emulated::carry_out(copy);
        groups.erase(groups.begin());
    }
}

// Four 8×8 matrices of 16-bit elements; lane 8i + r gives the address of row r of matrix i.
template <bool TRANSPOSED> void load_matrices(unsigned (&to)[4], const void *row) {
    unsigned lane = emulated::machine.current->lane;
    const auto *slots = emulated::meet(row);
    for (unsigned i = 0; i < 4; i++) {
        unsigned short pair[2];
        for (unsigned j = 0; j < 2; j++) {
            unsigned r = TRANSPOSED ? lane % 4 * 2 + j : lane / 4, c = TRANSPOSED ? lane / 4 : lane % 4 * 2 + j;
            pair[j] = emulated::slot<const unsigned short *>(slots, 8 * i + r)[c];
        }
        to[i] = pair[0] | unsigned(pair[1]) << 16;
    }
}

// PTX ISA, fragments of mma.m16n8k16: with g = lane / 4 and t = lane % 4, register i of A holds row g + 8 (i % 2),
// columns 2t + 8 (i / 2) and the next; register i of B rows 2t + 8i and the next, column g; C rows g and g + 8,
// columns 2t and 2t + 1.
template <bool BF16> void multiply_add_16x8x16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    struct Fragments {
        unsigned a[4], b[2];
    } mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    unsigned lane = emulated::machine.current->lane;
    const auto *slots = emulated::meet(mine);
    auto widen = [](unsigned pair, unsigned half) {
        auto bits = (unsigned short)(pair >> (16 * half));
        return BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
    };
    for (unsigned i = 0; i < 4; i++) {
        unsigned g = lane / 4, column = lane % 4 * 2 + i % 2;
        float sum = c[i];
        for (unsigned k = 0; k < 16; k++) {
            const auto *from_a = reinterpret_cast<const Fragments *>(slots[g * 4 + k % 8 / 2]);
            const auto *from_b = reinterpret_cast<const Fragments *>(slots[column * 4 + k % 8 / 2]);
            sum += widen(from_a->a[i / 2 + 2 * (k / 8)], k % 2) * widen(from_b->b[k / 8], k % 2);
        }
        c[i] = sum;
    }
}

// mma.m16n8k32 of signed bytes: register i of A holds row g + 8 (i % 2), bytes 4t + 16 (i / 2) and the next three,
// register i of B rows 4t + 16i and the next three, column g. With k16 only the first halves.
template <unsigned K>
void multiply_add_bytes(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    struct Fragments {
        unsigned a[4], b[2];
    } mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    unsigned lane = emulated::machine.current->lane;
    const auto *slots = emulated::meet(mine);
    for (unsigned i = 0; i < 4; i++) {
        unsigned column = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < K; k++) {
            const auto *from_a = reinterpret_cast<const Fragments *>(slots[lane / 4 * 4 + k % 16 / 4]);
            const auto *from_b = reinterpret_cast<const Fragments *>(slots[column * 4 + k % 16 / 4]);
            int x = (signed char)(from_a->a[i / 2 + 2 * (k / 16)] >> (8 * (k % 4)));
            c[i] += x * (signed char)(from_b->b[k / 16] >> (8 * (k % 4)));
        }
    }
}
inline void multiply_add_16x8x32_bytes(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    multiply_add_bytes<32>(c, a, b);
}
inline void multiply_add_16x8x16_bytes(int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
    multiply_add_bytes<16>(c, {a0, a1, 0, 0}, {b, 0});
}
