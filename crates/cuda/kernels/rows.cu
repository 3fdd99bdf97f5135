// Kernels over rows of f32: norms, rotary positions, the largest logit.
#include "device.cuh"

// output[row] = input[row] / rms(input[row]) · weight. A block takes one row; rows lie `stride` apart.
KERNEL rms_norm(float *output, const float *input, const float *weight, u32 width, u64 stride, float epsilon) {
    STATIC_SHARED float scratch[32];
    const float *from = input + blockIdx.x * stride;
    float *to = output + blockIdx.x * stride;
    float sum = 0;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x)
        sum += from[i] * from[i];
    float scale = rsqrtf(block_sum(sum, scratch) / float(width) + epsilon);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x)
        to[i] = from[i] * scale * weight[i];
}
EXPORT(rms_norm)

// output[row] = (input[row] - mean) / deviation · weight + bias
KERNEL layer_norm(float *output, const float *input, const float *weight, const float *bias, u32 width, u64 stride,
                  float epsilon) {
    STATIC_SHARED float scratch[32];
    const float *from = input + blockIdx.x * stride;
    float *to = output + blockIdx.x * stride;
    float sum = 0;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x)
        sum += from[i];
    float mean = block_sum(sum, scratch) / float(width);
    sum = 0;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        float difference = from[i] - mean;
        sum += difference * difference;
    }
    float scale = rsqrtf(block_sum(sum, scratch) / float(width) + epsilon);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x)
        to[i] = (from[i] - mean) * scale * weight[i] + bias[i];
}
EXPORT(layer_norm)

// output[row, head] = rms-normalised input[row, head], times silu(gate[row, head]) if there is a gate. A warp takes one
// head.
KERNEL head_norm(float *data, const float *weight, const float *gate, u32 heads, u32 head_dim, u64 stride,
                 u64 gate_stride, float epsilon, u64 count) {
    u64 at = u64(blockIdx.x) * (blockDim.x / 32) + warp_index();
    if (at >= count)
        return;
    u64 row = at / heads, head = at % heads;
    float *x = data + row * stride + head * head_dim;
    float sum = 0;
    for (u32 i = lane_index(); i < head_dim; i += 32)
        sum += x[i] * x[i];
    float scale = rsqrtf(warp_sum(sum) / float(head_dim) + epsilon);
    for (u32 i = lane_index(); i < head_dim; i += 32) {
        float value = x[i] * scale * weight[i];
        if (gate) {
            float z = gate[row * gate_stride + head * head_dim + i];
            value *= z / (1.0f + expf(-z));
        }
        x[i] = value;
    }
}
EXPORT(head_norm)

// Rotates the pairs (i, i + turned / 2) of the first `turned` dimensions of every head by the row's angles. `turns`
// holds cosine and sine: [rows, turned / 2, 2].
KERNEL rotary(float *data, const float *turns, u32 heads, u32 head_dim, u32 turned, u64 stride, u64 count) {
    u32 half = turned / 2;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x) {
        u32 pair = u32(i % half), head = u32(i / half % heads);
        u64 row = i / half / heads;
        float cosine = turns[(row * half + pair) * 2], sine = turns[(row * half + pair) * 2 + 1];
        float *x = data + row * stride + u64(head) * head_dim;
        float a = x[pair], b = x[pair + half];
        x[pair] = a * cosine - b * sine;
        x[pair + half] = b * cosine + a * sine;
    }
}
EXPORT(rotary)

// index[row] = the index of the largest of input[row]; of equal ones the lowest. NaN counts as the smallest. A block
// takes one row.
KERNEL argmax(u32 *index, const float *input, u32 width) {
    STATIC_SHARED float values[32];
    STATIC_SHARED u32 places[32];
    const float *from = input + u64(blockIdx.x) * width;
    float best = NEGATIVE_INFINITY;
    u32 place = 0xffffffffu;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x)
        if (from[i] > best || (place == 0xffffffffu && from[i] == best))
            best = from[i], place = i;
    for (int mask = 16; mask > 0; mask >>= 1) {
        float other = __shfl_xor_sync(FULL_WARP, best, mask);
        u32 other_place = __shfl_xor_sync(FULL_WARP, place, mask);
        if (other > best || (other == best && other_place < place))
            best = other, place = other_place;
    }
    if (lane_index() == 0)
        values[warp_index()] = best, places[warp_index()] = place;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 warp = 1; warp < blockDim.x / 32; warp++)
            if (values[warp] > best || (values[warp] == best && places[warp] < place))
                best = values[warp], place = places[warp];
        index[blockIdx.x] = place == 0xffffffffu ? 0 : place;
    }
}
EXPORT(argmax)
