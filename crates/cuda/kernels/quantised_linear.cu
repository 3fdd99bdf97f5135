// output = input · weightsᵀ with weights in the block format FORMAT.
//
// Activations are rounded to 8 bits with a scale for each 32, as on the CPU. Products are summed as integers: with dp4a
// for few rows, on the tensor cores for many (mma.m16n8k32, or two of k16 if the halves have scales of their own).
#include "weights.cuh"

typedef Format<FORMAT> W;

// Rounds rows [rows, inputs] to quants [rows, inputs], scales [rows, inputs / 32] and the sums of both halves, as i16
// pairs. If an activation is not finite, its scale is NaN. A thread takes one stretch.
KERNEL quantise_rows(u8 *quants, float *scales, u32 *sums, const float *input, u64 stretches) {
    u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= stretches)
        return;
    const float4 *values = (const float4 *)(input + at * 32);
    u32 largest = 0;
    for (int g = 0; g < 8; g++) {
        float4 v = values[g];
        largest = max(largest, max(max(__float_as_uint(v.x) & 0x7fffffffu, __float_as_uint(v.y) & 0x7fffffffu),
                                   max(__float_as_uint(v.z) & 0x7fffffffu, __float_as_uint(v.w) & 0x7fffffffu)));
    }
    float magnitude = __uint_as_float(largest);
    bool finite = largest < 0x7f800000u, tiny = !(magnitude > 1e-36f);
    float inverse = finite && !tiny ? __fdiv_rn(127.0f, magnitude) : 0.0f;
    int sum[2] = {0, 0};
    for (int g = 0; g < 8; g++) {
        float4 v = values[g];
        const float four[4] = {v.x, v.y, v.z, v.w};
        u32 word = 0;
        for (int i = 0; i < 4; i++) {
            int quant = finite ? __float2int_rn(__fmul_rn(four[i], inverse)) : 0;
            sum[g / 4] += quant;
            word |= (u32(quant) & 255) << (8 * i);
        }
        ((u32 *)quants)[at * 8 + g] = word;
    }
    scales[at] = !finite ? __uint_as_float(0x7fc00000u) : tiny ? 0.0f : __fdiv_rn(magnitude, 127.0f);
    sums[at] = (u32(sum[0]) & 0xffff) | u32(sum[1]) << 16;
}
EXPORT(quantise_rows)

__device__ __forceinline__ float half_sum(u32 sums, int half) {
    return float(half == 0 ? int(short(sums & 0xffff)) : int(short(sums >> 16)));
}

// Each warp computes an output; each lane takes a stretch.
template <int ROWS>
__device__ __forceinline__ void multiply_few(float *output, const u8 *data, const u8 *quants, const float *scales,
                                             const u32 *sums, u32 rows, u32 outputs, u32 inputs) {
    u32 n = blockIdx.x * (blockDim.x / 32) + warp_index();
    if (n >= outputs)
        return;
    Planes planes = planes_of<FORMAT>(data, outputs, inputs);
    u32 stretches = inputs / 32, first = blockIdx.y * ROWS;
    float total[ROWS] = {};
    for (u32 at = lane_index(); at < stretches; at += 32) {
        Stretch s;
        load_stretch<FORMAT>(planes, n, at, s);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (first + r >= rows)
                break;
            u64 row = u64(first + r) * stretches + at;
            u32 words[8];
            load_words(words, quants + row * 32);
            int dots[2] = {0, 0};
#pragma unroll
            for (int g = 0; g < 8; g++)
                dots[g / 4] = __dp4a(int(s.quants[g]), int(words[g]), dots[g / 4]);
            float scale = scales[row];
            float sum;
            if (W::HALVES)
                sum = s.scale[0] * float(dots[0]) + s.scale[1] * float(dots[1]);
            else
                sum = s.scale[0] * float(dots[0] + dots[1]);
            if (W::HAS_MINIMUMS) {
                u32 both = sums[row];
                if (W::HALVES)
                    sum -= s.minimum[0] * half_sum(both, 0) + s.minimum[1] * half_sum(both, 1);
                else
                    sum -= s.minimum[0] * (half_sum(both, 0) + half_sum(both, 1));
            }
            total[r] += scale * sum;
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_sum(total[r]);
        if (lane_index() == 0 && first + r < rows)
            output[u64(first + r) * outputs + n] = sum;
    }
}

KERNEL __launch_bounds__(128) multiply_1(float *output, const u8 *data, const u8 *quants, const float *scales, const u32 *sums, u32 rows,
                  u32 outputs, u32 inputs) {
    multiply_few<1>(output, data, quants, scales, sums, rows, outputs, inputs);
}
EXPORT(multiply_1)
KERNEL __launch_bounds__(128) multiply_4(float *output, const u8 *data, const u8 *quants, const float *scales, const u32 *sums, u32 rows,
                  u32 outputs, u32 inputs) {
    multiply_few<4>(output, data, quants, scales, sums, rows, outputs, inputs);
}
EXPORT(multiply_4)

constexpr u32 TILE_ROWS = 128, TILE_OUTPUTS = 64, STEP = 4;
// A stretch of quants takes 8 words. A pitch of 12 words puts the eight rows of a fragment in different banks.
constexpr u32 PITCH = 12;

struct Tile {
    u32 rows[STEP][TILE_ROWS][PITCH];
    u32 weights[STEP][TILE_OUTPUTS][PITCH];
    float row_scales[STEP][TILE_ROWS];
    u32 row_sums[STEP][TILE_ROWS];
    float scales[STEP][2][TILE_OUTPUTS];
    float minimums[STEP][2][TILE_OUTPUTS];
};

// A block of 256 threads computes 128 rows × 64 outputs, four stretches a step. Its warps form a grid of 4 × 2, each of
// 32 × 32.
KERNEL __launch_bounds__(256, 2) multiply_many(float *output, const u8 *data, const u8 *quants, const float *scales, const u32 *sums,
                     u32 rows, u32 outputs, u32 inputs) {
    DYNAMIC_SHARED(memory);
    Tile &tile = *(Tile *)memory;
    Planes planes = planes_of<FORMAT>(data, outputs, inputs);
    u32 stretches = inputs / 32, first_row = blockIdx.y * TILE_ROWS, first_output = blockIdx.x * TILE_OUTPUTS;
    u32 group = lane_index() / 4, place = lane_index() % 4;
    u32 warp_row = warp_index() / 2 * 32, warp_output = warp_index() % 2 * 32;
    float total[2][4][4] = {};
    // Each thread loads one stretch of weights and two of activations at each step.
    u32 own_step = threadIdx.x % STEP, own = threadIdx.x / STEP;
    for (u32 first = 0; first < stretches; first += STEP) {
        u32 stretch = first + own_step;
        Stretch s = {};
        if (stretch < stretches && first_output + own < outputs)
            load_stretch<FORMAT>(planes, first_output + own, stretch, s);
        u32 words[2][8] = {};
        float row_scale[2] = {0, 0};
        u32 row_sum[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 row = first_row + own + 64 * i;
            if (stretch < stretches && row < rows) {
                u64 at = u64(row) * stretches + stretch;
                load_words(words[i], quants + at * 32);
                row_scale[i] = scales[at];
                row_sum[i] = W::HAS_MINIMUMS ? sums[at] : 0;
            }
        }
        __syncthreads();
#pragma unroll
        for (int g = 0; g < 8; g++) {
            tile.weights[own_step][own][g] = s.quants[g];
            tile.rows[own_step][own][g] = words[0][g];
            tile.rows[own_step][own + 64][g] = words[1][g];
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            tile.row_scales[own_step][own + 64 * i] = row_scale[i];
            tile.row_sums[own_step][own + 64 * i] = row_sum[i];
            tile.scales[own_step][i][own] = s.scale[i];
            tile.minimums[own_step][i][own] = s.minimum[i];
        }
        __syncthreads();
        for (u32 step = 0; step < STEP; step++) {
            u32 a[2][4], b[4][2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const u32(*at)[PITCH] = &tile.rows[step][warp_row + 16 * m + group];
                a[m][0] = at[0][place], a[m][1] = at[8][place];
                a[m][2] = at[0][place + 4], a[m][3] = at[8][place + 4];
            }
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const u32 *at = tile.weights[step][warp_output + 8 * n + group];
                b[n][0] = at[place], b[n][1] = at[place + 4];
            }
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    int c[2][4] = {};
                    if (W::HALVES) {
                        multiply_add_16x8x16_bytes(c[0], a[m][0], a[m][1], b[n][0]);
                        multiply_add_16x8x16_bytes(c[1], a[m][2], a[m][3], b[n][1]);
                    } else {
                        multiply_add_16x8x32_bytes(c[0], a[m], b[n]);
                    }
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        u32 row = warp_row + 16 * m + group + 8 * (i / 2), column = warp_output + 8 * n + 2 * place + i % 2;
                        float sum = tile.scales[step][0][column] * float(c[0][i]);
                        if (W::HALVES)
                            sum += tile.scales[step][1][column] * float(c[1][i]);
                        if (W::HAS_MINIMUMS) {
                            u32 both = tile.row_sums[step][row];
                            if (W::HALVES)
                                sum -= tile.minimums[step][0][column] * half_sum(both, 0) +
                                       tile.minimums[step][1][column] * half_sum(both, 1);
                            else
                                sum -= tile.minimums[step][0][column] * (half_sum(both, 0) + half_sum(both, 1));
                        }
                        total[m][n][i] += tile.row_scales[step][row] * sum;
                    }
                }
        }
    }
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

// output[row] = the weights of output `ids[row]`, exactly as in the file. A block takes one row.
KERNEL gather(float *output, const u8 *data, const u32 *ids, u32 outputs, u32 inputs) {
    Planes planes = planes_of<FORMAT>(data, outputs, inputs);
    u32 id = min(ids[blockIdx.x], outputs - 1);
    for (u32 stretch = threadIdx.x; stretch < inputs / 32; stretch += blockDim.x) {
        Stretch s;
        load_stretch<FORMAT>(planes, id, stretch, s);
        float *to = output + u64(blockIdx.x) * inputs + stretch * 32;
        for (int i = 0; i < 32; i++) {
            int half = W::HALVES ? i / 16 : 0;
            float weight = __fmul_rn(s.scale[half], quant_at(s, i));
            to[i] = W::HAS_MINIMUMS ? __fsub_rn(weight, s.minimum[half]) : weight;
        }
    }
}
EXPORT(gather)
