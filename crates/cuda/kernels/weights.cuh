// The block formats of GGUF, read 32 weights at a time.
//
// A matrix of `outputs` rows is stored in planes, one for each field of a block: [outputs, blocks, bytes of the field].
// A plane begins at a multiple of 16 bytes. The bytes equal the file's, but every field is aligned to its size.
// `PLANES` in `src/ops/weights.rs` lists the fields of every format in the same order.
#pragma once
#include "device.cuh"

constexpr int W_F32 = 0, W_F16 = 1, W_BF16 = 2, W_Q4_0 = 3, W_Q4_1 = 4, W_Q5_0 = 5, W_Q5_1 = 6, W_Q8_0 = 7, W_Q2_K = 8,
              W_Q3_K = 9, W_Q4_K = 10, W_Q5_K = 11, W_Q6_K = 12;

// weight = scale · quant − minimum. If HALVES, each half has its own scale and minimum; otherwise the first of each
// counts.
struct Stretch {
    u32 quants[8];
    float scale[2], minimum[2];
};

// The planes of a matrix.
struct Planes {
    const u8 *plane[5];
    u64 blocks;
};

template <int KIND> struct Format;

__device__ __forceinline__ u64 aligned16(u64 bytes) { return (bytes + 15) & ~u64(15); }

template <int KIND> __device__ __forceinline__ Planes planes_of(const u8 *data, u32 outputs, u32 inputs) {
    Planes planes;
    planes.blocks = inputs / Format<KIND>::WEIGHTS;
    u64 rows = u64(outputs) * planes.blocks;
#pragma unroll
    for (int i = 0; i < Format<KIND>::FIELDS; i++) {
        planes.plane[i] = data;
        data += aligned16(rows * Format<KIND>::bytes(i));
    }
    return planes;
}

__device__ __forceinline__ float half_at(const u8 *at) { return f16_to_f32(*(const u16 *)at); }
__device__ __forceinline__ u32 low_nibbles(u32 bytes) { return bytes & 0x0f0f0f0fu; }
// Subtracts `center` from each of four bytes below 128.
__device__ __forceinline__ u32 centered(u32 bytes, u32 center) {
    return ((bytes | 0x80808080u) - center * 0x01010101u) ^ 0x80808080u;
}
// Spreads four bits to the lowest bits of four bytes.
__device__ __forceinline__ u32 spread_bits(u32 bits) { return (bits * 0x00204081u) & 0x01010101u; }

// Blocks of 32 weights of 4 bits: FIFTH for a fifth bit, MINIMUMS for minimums.
template <bool FIFTH, bool MINIMUMS> struct PlainNibbles {
    static constexpr int WEIGHTS = 32, FIELDS = FIFTH ? 3 : 2;
    static constexpr bool HALVES = false, HAS_MINIMUMS = MINIMUMS;
    // Fields: quants, scale (and minimum), fifth bits.
    static __device__ __forceinline__ constexpr u32 bytes(int field) {
        return field == 0 ? 16 : field == 1 ? (MINIMUMS ? 4 : 2) : 4;
    }
    static __device__ __forceinline__ void load(const Planes &p, u64 block, u32, Stretch &s) {
        uint4 pairs = *(const uint4 *)(p.plane[0] + block * 16);
        const u8 *scales = p.plane[1] + block * bytes(1);
        u32 fifth = FIFTH ? *(const u32 *)(p.plane[FIELDS - 1] + block * 4) : 0;
        const u32 words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
        for (int g = 0; g < 4; g++) {
            u32 low = low_nibbles(words[g]), high = low_nibbles(words[g] >> 4);
            if (FIFTH) {
                low |= spread_bits(fifth >> (4 * g) & 15) << 4;
                high |= spread_bits(fifth >> (4 * g + 16) & 15) << 4;
            }
            s.quants[g] = MINIMUMS ? low : centered(low, FIFTH ? 16 : 8);
            s.quants[g + 4] = MINIMUMS ? high : centered(high, FIFTH ? 16 : 8);
        }
        s.scale[0] = s.scale[1] = half_at(scales);
        s.minimum[0] = s.minimum[1] = MINIMUMS ? -half_at(scales + 2) : 0.0f;
    }
};
template <> struct Format<W_Q4_0> : PlainNibbles<false, false> {};
template <> struct Format<W_Q4_1> : PlainNibbles<false, true> {};
template <> struct Format<W_Q5_0> : PlainNibbles<true, false> {};
template <> struct Format<W_Q5_1> : PlainNibbles<true, true> {};

template <> struct Format<W_Q8_0> {
    static constexpr int WEIGHTS = 32, FIELDS = 2;
    static constexpr bool HALVES = false, HAS_MINIMUMS = false;
    static __device__ __forceinline__ constexpr u32 bytes(int field) { return field == 0 ? 32 : 2; }
    static __device__ __forceinline__ void load(const Planes &p, u64 block, u32, Stretch &s) {
        uint4 a = *(const uint4 *)(p.plane[0] + block * 32), b = *(const uint4 *)(p.plane[0] + block * 32 + 16);
        s.quants[0] = a.x, s.quants[1] = a.y, s.quants[2] = a.z, s.quants[3] = a.w;
        s.quants[4] = b.x, s.quants[5] = b.y, s.quants[6] = b.z, s.quants[7] = b.w;
        s.scale[0] = s.scale[1] = half_at(p.plane[1] + block * 2);
        s.minimum[0] = s.minimum[1] = 0.0f;
    }
};

// Loads 32 bytes at a multiple of 16.
__device__ __forceinline__ void load_words(u32 (&words)[8], const u8 *at) {
    uint4 a = *(const uint4 *)at, b = *(const uint4 *)(at + 16);
    words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
    words[4] = b.x, words[5] = b.y, words[6] = b.z, words[7] = b.w;
}

template <> struct Format<W_Q2_K> {
    static constexpr int WEIGHTS = 256, FIELDS = 3;
    static constexpr bool HALVES = true, HAS_MINIMUMS = true;
    // Fields: quants, pairs of a scale and a minimum, scales of the pairs.
    static __device__ __forceinline__ constexpr u32 bytes(int field) { return field == 0 ? 64 : field == 1 ? 16 : 4; }
    static __device__ __forceinline__ void load(const Planes &p, u64 block, u32 stretch, Stretch &s) {
        u32 fours[8];
        load_words(fours, p.plane[0] + block * 64 + 32 * (stretch / 4));
        u32 shift = 2 * (stretch % 4);
#pragma unroll
        for (int g = 0; g < 8; g++)
            s.quants[g] = fours[g] >> shift & 0x03030303u;
        float scale = half_at(p.plane[2] + block * 4), minimum = half_at(p.plane[2] + block * 4 + 2);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 pair = p.plane[1][block * 16 + 2 * stretch + half];
            s.scale[half] = __fmul_rn(scale, float(pair & 15));
            s.minimum[half] = __fmul_rn(minimum, float(pair >> 4));
        }
    }
};

template <> struct Format<W_Q3_K> {
    static constexpr int WEIGHTS = 256, FIELDS = 4;
    static constexpr bool HALVES = true, HAS_MINIMUMS = false;
    // Fields: low bits, high bits, scales, scale of the scales.
    static __device__ __forceinline__ constexpr u32 bytes(int field) {
        return field == 0 ? 64 : field == 1 ? 32 : field == 2 ? 12 : 2;
    }
    static __device__ __forceinline__ void load(const Planes &p, u64 block, u32 stretch, Stretch &s) {
        u32 fours[8], eights[8];
        load_words(fours, p.plane[0] + block * 64 + 32 * (stretch / 4));
        load_words(eights, p.plane[1] + block * 32);
        u32 shift = 2 * (stretch % 4);
#pragma unroll
        for (int g = 0; g < 8; g++)
            s.quants[g] =
                centered((fours[g] >> shift & 0x03030303u) | (eights[g] >> stretch & 0x01010101u) << 2, 4);
        const u8 *scales = p.plane[2] + block * 12;
        float scale = half_at(p.plane[3] + block * 2);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 index = 2 * stretch + half, low = scales[index % 8], high = scales[8 + index % 4];
            int six = int((low >> (4 * (index / 8)) & 15) | (high >> (2 * (index / 4)) & 3) << 4) - 32;
            s.scale[half] = __fmul_rn(scale, float(six));
            s.minimum[half] = 0.0f;
        }
    }
};

// Reads scale and minimum `index` of the eight 6-bit pairs in 12 bytes.
__device__ __forceinline__ void six_bit_pair(const u8 *bytes, u32 index, u32 &scale, u32 &minimum) {
    if (index < 4) {
        scale = bytes[index] & 63, minimum = bytes[index + 4] & 63;
    } else {
        u32 low = bytes[index + 4];
        scale = (low & 15) | (u32(bytes[index - 4]) >> 6) << 4;
        minimum = low >> 4 | (u32(bytes[index]) >> 6) << 4;
    }
}

template <bool FIFTH> struct FourBitK {
    static constexpr int WEIGHTS = 256, FIELDS = FIFTH ? 4 : 3;
    static constexpr bool HALVES = false, HAS_MINIMUMS = true;
    // Fields: quants, scales and minimums, their own scales, fifth bits.
    static __device__ __forceinline__ constexpr u32 bytes(int field) {
        return field == 0 ? 128 : field == 1 ? 12 : field == 2 ? 4 : 32;
    }
    static __device__ __forceinline__ void load(const Planes &p, u64 block, u32 stretch, Stretch &s) {
        u32 pairs[8], eights[8];
        load_words(pairs, p.plane[0] + block * 128 + 32 * (stretch / 2));
        if (FIFTH)
            load_words(eights, p.plane[FIELDS - 1] + block * 32);
        u32 shift = 4 * (stretch % 2);
#pragma unroll
        for (int g = 0; g < 8; g++) {
            s.quants[g] = low_nibbles(pairs[g] >> shift);
            if (FIFTH)
                s.quants[g] |= (eights[g] >> stretch & 0x01010101u) << 4;
        }
        u32 six, six_minimum;
        six_bit_pair(p.plane[1] + block * 12, stretch, six, six_minimum);
        s.scale[0] = s.scale[1] = __fmul_rn(half_at(p.plane[2] + block * 4), float(six));
        s.minimum[0] = s.minimum[1] = __fmul_rn(half_at(p.plane[2] + block * 4 + 2), float(six_minimum));
    }
};
template <> struct Format<W_Q4_K> : FourBitK<false> {};
template <> struct Format<W_Q5_K> : FourBitK<true> {};

template <> struct Format<W_Q6_K> {
    static constexpr int WEIGHTS = 256, FIELDS = 4;
    static constexpr bool HALVES = true, HAS_MINIMUMS = false;
    // Fields: low bits, high bits, scales, scale of the scales.
    static __device__ __forceinline__ constexpr u32 bytes(int field) {
        return field == 0 ? 128 : field == 1 ? 64 : field == 2 ? 16 : 2;
    }
    static __device__ __forceinline__ void load(const Planes &p, u64 block, u32 stretch, Stretch &s) {
        u32 half = stretch / 4, quarter = stretch % 4, low[8], high[8];
        load_words(low, p.plane[0] + block * 128 + 64 * half + 32 * (quarter % 2));
        load_words(high, p.plane[1] + block * 64 + 32 * half);
#pragma unroll
        for (int g = 0; g < 8; g++)
            s.quants[g] = centered(low_nibbles(low[g] >> (4 * (quarter / 2))) |
                                       (high[g] >> (2 * quarter) & 0x03030303u) << 4,
                                   32);
        float scale = half_at(p.plane[3] + block * 2);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            s.scale[part] = __fmul_rn(scale, float(i8(p.plane[2][block * 16 + 2 * stretch + part])));
            s.minimum[part] = 0.0f;
        }
    }
};

template <int KIND>
__device__ __forceinline__ void load_stretch(const Planes &p, u64 row, u32 stretch, Stretch &s) {
    constexpr u32 PER_BLOCK = Format<KIND>::WEIGHTS / 32;
    Format<KIND>::load(p, row * p.blocks + stretch / PER_BLOCK, stretch % PER_BLOCK, s);
}

__device__ __forceinline__ float quant_at(const Stretch &s, int i) {
    return float(i8(s.quants[i / 4] >> (8 * (i % 4))));
}
