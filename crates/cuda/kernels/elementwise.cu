// Maps over arrays of f32, and copies of columns.
#include "device.cuh"

#define FOR_EACH(i, count)                                                                                             \
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x)

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
// The tanh form: 0.5 (1 + tanh u) = sigmoid(2u).
__device__ __forceinline__ float gelu_tanh(float x) {
    float u = 0.7978846f * (x + 0.044715f * x * x * x);
    return x / (1.0f + expf(-2.0f * u));
}

// to[i] += from[i]
KERNEL add(float *to, const float *from, u64 count) {
    FOR_EACH(i, count) to[i] += from[i];
}
EXPORT(add)

// to[row, i] += bias[i]
KERNEL add_to_rows(float *to, const float *bias, u32 width, u64 count) {
    FOR_EACH(i, count) to[i] += bias[i % width];
}
EXPORT(add_to_rows)

// values[i] *= factor
KERNEL multiply(float *values, float factor, u64 count) {
    FOR_EACH(i, count) values[i] *= factor;
}
EXPORT(multiply)

// values[i] = f(values[i]), f is SiLU (0) or GELU (1)
KERNEL activate(float *values, u32 activation, u64 count) {
    FOR_EACH(i, count) values[i] = activation == 0 ? silu(values[i]) : gelu_tanh(values[i]);
}
EXPORT(activate)

// gate[i] = f(gate[i]) · up[i], f is SiLU (0), GELU (1) or a plain sigmoid (2)
KERNEL gate_product(float *gate, const float *up, u32 activation, u64 count) {
    FOR_EACH(i, count) {
        float x = gate[i];
        gate[i] = (activation == 0 ? silu(x) : activation == 1 ? gelu_tanh(x) : sigmoid(x)) * up[i];
    }
}
EXPORT(gate_product)

// logits[i] = cap · tanh(logits[i] / cap)
KERNEL soft_cap(float *logits, float cap, u64 count) {
    FOR_EACH(i, count) logits[i] = cap * tanhf(logits[i] / cap);
}
EXPORT(soft_cap)

// to[row · to_stride + piece · to_piece + i] = from[row · from_stride + piece · from_piece + i]
KERNEL copy_columns(float *to, u64 to_stride, u32 to_piece, const float *from, u64 from_stride, u32 from_piece,
                    u32 pieces, u32 width, u64 count) {
    FOR_EACH(i, count) {
        u64 row = i / (u64(pieces) * width);
        u32 rest = u32(i % (u64(pieces) * width)), piece = rest / width, column = rest % width;
        to[row * to_stride + u64(piece) * to_piece + column] =
            from[row * from_stride + u64(piece) * from_piece + column];
    }
}
EXPORT(copy_columns)
