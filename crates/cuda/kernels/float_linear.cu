// output = input · weightsᵀ with weights [outputs, inputs] in FORMAT: f32, f16 or bf16.
#include "weights.cuh"

constexpr u32 ELEMENT_BYTES = FORMAT == W_F32 ? 4 : 2;

__device__ __forceinline__ float weight_at(const u8 *data, u64 at) {
    if (FORMAT == W_F32)
        return ((const float *)data)[at];
    return widen<FORMAT == W_BF16>(((const u16 *)data)[at]);
}

#if FORMAT == 1 || FORMAT == 2
// Converts activations to the type of the weights, for the matrix product of a library.
KERNEL narrow_rows(u16 *to, const float *from, u64 count) {
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x)
        to[i] = narrow<FORMAT == W_BF16>(from[i]);
}
EXPORT(narrow_rows)
#endif

// Each warp computes an output, for up to ROWS rows in f32.
template <int ROWS>
__device__ __forceinline__ void multiply_few(float *output, const u8 *data, const float *input, u32 rows, u32 outputs,
                                             u32 inputs) {
    u32 n = blockIdx.x * (blockDim.x / 32) + warp_index();
    if (n >= outputs)
        return;
    u32 first = blockIdx.y * ROWS;
    float total[ROWS] = {};
    // A lane reads eight weights at a time if rows of 16-bit weights are aligned for it.
    u32 done = 0;
    if (ELEMENT_BYTES == 2 && inputs % 8 == 0) {
        const uint4 *weights = (const uint4 *)(data + u64(n) * inputs * 2);
        for (u32 eight = lane_index(); eight < inputs / 8; eight += 32) {
            uint4 w = weights[eight];
            const u32 pairs[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (first + r >= rows)
                    break;
                const float4 *x = (const float4 *)(input + u64(first + r) * inputs + eight * 8);
                float4 x0 = x[0], x1 = x[1];
                const float xs[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
                for (int i = 0; i < 8; i++)
                    total[r] += widen<FORMAT == W_BF16>(u16(pairs[i / 2] >> (16 * (i % 2)))) * xs[i];
            }
        }
        done = inputs;
    }
    for (u32 i = done + lane_index(); i < inputs; i += 32) {
        float weight = weight_at(data, u64(n) * inputs + i);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (first + r < rows)
                total[r] += weight * input[u64(first + r) * inputs + i];
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_sum(total[r]);
        if (lane_index() == 0 && first + r < rows)
            output[u64(first + r) * outputs + n] = sum;
    }
}

KERNEL __launch_bounds__(128) multiply_1(float *output, const u8 *data, const float *input, u32 rows, u32 outputs, u32 inputs) {
    multiply_few<1>(output, data, input, rows, outputs, inputs);
}
EXPORT(multiply_1)
KERNEL __launch_bounds__(128) multiply_8(float *output, const u8 *data, const float *input, u32 rows, u32 outputs, u32 inputs) {
    multiply_few<8>(output, data, input, rows, outputs, inputs);
}
EXPORT(multiply_8)

#if FORMAT != 0
constexpr u32 TILE_ROWS = 128, TILE_OUTPUTS = 64, STEP = 32;
// 80 bytes from row to row: the eight rows of an ldmatrix lie in different banks.
constexpr u32 PITCH = 40;

struct Tile {
    u16 rows[2][TILE_ROWS][PITCH];
    u16 weights[2][TILE_OUTPUTS][PITCH];
};

constexpr bool IS_BF16 = FORMAT == W_BF16;

// Eight inputs as 16-bit numbers; f16 saturates, where bf16 has the range of f32.
__device__ __forceinline__ uint4 narrow_eight(const float (&x)[8]) {
    u32 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        if (!IS_BF16) {
            a = a > 65504.0f ? 65504.0f : a < -65504.0f ? -65504.0f : a;
            b = b > 65504.0f ? 65504.0f : b < -65504.0f ? -65504.0f : b;
        }
        pairs[i] = pack_pair(narrow<IS_BF16>(a), narrow<IS_BF16>(b));
    }
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

// A block of 256 threads computes 128 rows × 64 outputs, 32 inputs a step. It loads the next step to registers while it
// multiplies the present one. Its warps form a grid of 4 × 2, each of 32 × 32. Activations are rounded to the type of
// the weights.
KERNEL __launch_bounds__(256, 2) multiply_many(float *output, const u8 *data, const float *input, u32 rows, u32 outputs, u32 inputs) {
    DYNAMIC_SHARED(memory);
    Tile &tile = *(Tile *)memory;
    u32 first_row = blockIdx.y * TILE_ROWS, first_output = blockIdx.x * TILE_OUTPUTS;
    u32 warp_row = warp_index() / 2 * 32, warp_output = warp_index() % 2 * 32;
    u32 own_row = threadIdx.x / 4, own_column = threadIdx.x % 4 * 8;
    float total[2][4][4] = {};
    uint4 own_weights, own_rows[2];
    bool aligned = inputs % 8 == 0;
    auto fetch = [&](u32 k) {
        u32 column = k + own_column, n = first_output + own_row;
        own_weights = {0, 0, 0, 0};
        if (n < outputs && column < inputs) {
            const u16 *from = (const u16 *)data + u64(n) * inputs + column;
            if (aligned) {
                own_weights = *(const uint4 *)from;
            } else {
                u32 pairs[4] = {};
                for (u32 i = 0; i < 8 && column + i < inputs; i++)
                    pairs[i / 2] |= u32(from[i]) << (16 * (i % 2));
                own_weights = {pairs[0], pairs[1], pairs[2], pairs[3]};
            }
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            u32 row = first_row + own_row + 64 * j;
            float x[8] = {};
            if (row < rows && column < inputs) {
                const float *from = input + u64(row) * inputs + column;
                if (aligned) {
                    float4 x0 = ((const float4 *)from)[0], x1 = ((const float4 *)from)[1];
                    x[0] = x0.x, x[1] = x0.y, x[2] = x0.z, x[3] = x0.w;
                    x[4] = x1.x, x[5] = x1.y, x[6] = x1.z, x[7] = x1.w;
                } else {
                    for (u32 i = 0; i < 8 && column + i < inputs; i++)
                        x[i] = from[i];
                }
            }
            own_rows[j] = narrow_eight(x);
        }
    };
    fetch(0);
    for (u32 k = 0, turn = 0; k < inputs; k += STEP, turn ^= 1) {
        *(uint4 *)&tile.weights[turn][own_row][own_column] = own_weights;
        *(uint4 *)&tile.rows[turn][own_row][own_column] = own_rows[0];
        *(uint4 *)&tile.rows[turn][own_row + 64][own_column] = own_rows[1];
        __syncthreads();
        if (k + STEP < inputs)
            fetch(k + STEP);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 a[2][4], b[2][4];
            u32 lane = lane_index();
#pragma unroll
            for (int m = 0; m < 2; m++)
                load_matrices<false>(a[m], &tile.rows[turn][warp_row + 16 * m + lane % 16][16 * half + lane / 16 * 8]);
            // Two tiles of eight outputs at a time: their inputs 0..8 and 8..16.
#pragma unroll
            for (int n = 0; n < 2; n++)
                load_matrices<false>(b[n], &tile.weights[turn][warp_output + 16 * n + lane / 16 * 8 + lane % 8]
                                                        [16 * half + lane / 8 % 2 * 8]);
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    u32 pair[2] = {b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]};
                    multiply_add_16x8x16<IS_BF16>(total[m][n], a[m], pair);
                }
        }
    }
    u32 group = lane_index() / 4, place = lane_index() % 4;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 row = first_row + warp_row + 16 * m + group + 8 * (i / 2);
                u32 column = first_output + warp_output + 8 * n + 2 * place + i % 2;
                if (row < rows && column < outputs)
                    output[u64(row) * outputs + column] = total[m][n][i];
            }
}
EXPORT(multiply_many)
#endif

// output[row] = the weights of output `ids[row]`. A block takes one row.
KERNEL gather(float *output, const u8 *data, const u32 *ids, u32 outputs, u32 inputs) {
    u64 id = min(ids[blockIdx.x], outputs - 1);
    for (u32 i = threadIdx.x; i < inputs; i += blockDim.x)
        output[u64(blockIdx.x) * inputs + i] = weight_at(data, id * inputs + i);
}
EXPORT(gather)
