// Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024): the causal convolution, the gates, and the delta rule, token by token
// or in chunks of 64 (the WY transform of Yang et al. 2024; `riffle-model` has the formulas). All in f32.
#include "device.cuh"

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// output[row, c] = silu(Σ taps[tap, c] · input[row + tap − (kernel − 1), c]); `before` [kernel − 1, channels] holds the
// rows before the first.
KERNEL convolve(float *output, const float *input, const float *before, const float *taps, u32 kernel, u32 channels,
                u64 count) {
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x) {
        u64 row = i / channels;
        u32 channel = u32(i % channels);
        float sum = 0;
        for (u32 tap = 0; tap < kernel; tap++) {
            u64 at = row + tap;
            float source = at < kernel - 1 ? before[at * channels + channel] : input[(at - (kernel - 1)) * channels + channel];
            sum += taps[tap * channels + channel] * source;
        }
        output[i] = sum / (1.0f + expf(-sum));
    }
}
EXPORT(convolve)

// Stores in `before` the last kernel − 1 rows of `before` followed by the input. A thread takes one channel.
KERNEL convolved(float *before, const float *input, u32 earlier, u32 channels, u64 rows) {
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels)
        return;
    for (u32 i = 0; i < earlier; i++) {
        // Row rows + i of both together. The order is ascending, so every row is read before it is overwritten.
        u64 at = rows + i;
        before[u64(i) * channels + channel] =
            at < earlier ? before[at * channels + channel] : input[(at - earlier) * channels + channel];
    }
}
EXPORT(convolved)

// strength[row, head] = sigmoid(strength); decay[row, head] = rate · softplus(decay + bias).
KERNEL delta_gates(float *strength, float *decay, const float *rates, const float *biases, u32 heads, u64 count) {
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x) {
        float x = decay[i] + biases[i % heads];
        strength[i] = sigmoid(strength[i]);
        decay[i] = rates[i % heads] * (x > 20.0f ? x : log1pf(expf(x)));
    }
}
EXPORT(delta_gates)

#ifdef KEY_DIM
// Sizes of the heads. The channels of a row are the queries of every key head, the keys of every key head, then the
// values of every value head.
struct Sizes {
    u32 key_heads, value_heads, value_dim, tiled, rows;
    __device__ __forceinline__ u32 channels() const { return 2 * key_heads * KEY_DIM + value_heads * value_dim; }
    __device__ __forceinline__ u32 key_head(u32 head) const {
        return tiled ? head % key_heads : head / (value_heads / key_heads);
    }
};

// Scales keys to length 1 and queries to length 1 / √KEY_DIM: units [rows, key_heads, 2, KEY_DIM], queries first. A
// warp takes one head.
KERNEL delta_units(float *units, const float *mixed, u32 key_heads, u32 value_heads, u32 value_dim, u32 rows) {
    Sizes sizes = {key_heads, value_heads, value_dim, 0, rows};
    u64 at = u64(blockIdx.x) * (blockDim.x / 32) + warp_index();
    if (at >= u64(rows) * key_heads * 2)
        return;
    u64 row = at / (key_heads * 2);
    u32 head = u32(at / 2 % key_heads), is_key = u32(at % 2);
    const float *from = mixed + row * sizes.channels() + u64(is_key * key_heads + head) * KEY_DIM;
    float sum = 0;
    for (u32 i = lane_index(); i < KEY_DIM; i += 32)
        sum += from[i] * from[i];
    float scale = rsqrtf(warp_sum(sum) + 1e-6f) * (is_key ? 1.0f : rsqrtf(float(KEY_DIM)));
    for (u32 i = lane_index(); i < KEY_DIM; i += 32)
        units[at * KEY_DIM + i] = from[i] * scale;
}
EXPORT(delta_units)

// Threads per column of the memory, and columns per block.
constexpr u32 SHARERS = 8, COLUMNS = 16, OWN = (KEY_DIM + SHARERS - 1) / SHARERS;

// The delta rule token by token: memory [value_heads, KEY_DIM, value_dim], read [rows, value_heads, value_dim]. Eight
// neighbouring lanes hold a column of the memory in registers. Block (16 columns, value head).
KERNEL __launch_bounds__(SHARERS * COLUMNS) delta_tokens(float *read, float *memory, const float *units, const float *mixed,
                                                         const float *strength, const float *decay, u32 key_heads,
                                                         u32 value_heads, u32 value_dim, u32 tiled, u32 rows) {
    Sizes sizes = {key_heads, value_heads, value_dim, tiled, rows};
    u32 head = blockIdx.y, sharer = threadIdx.x % SHARERS, column = blockIdx.x * COLUMNS + threadIdx.x / SHARERS;
    bool live = column < value_dim;
    float *own = memory + u64(head) * KEY_DIM * value_dim + column;
    float s[OWN];
#pragma unroll
    for (u32 i = 0; i < OWN; i++) {
        u32 at = i * SHARERS + sharer;
        s[i] = live && at < KEY_DIM ? own[u64(at) * value_dim] : 0.0f;
    }
    for (u32 row = 0; row < rows; row++) {
        const float *query = units + (u64(row) * key_heads + sizes.key_head(head)) * 2 * KEY_DIM, *key = query + KEY_DIM;
        float remains = expf(decay[u64(row) * value_heads + head]), held = 0, sum = 0;
        float k[OWN];
#pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            u32 at = i * SHARERS + sharer;
            k[i] = at < KEY_DIM ? key[at] : 0.0f;
            held += k[i] * s[i];
        }
        for (int mask = 1; mask < int(SHARERS); mask <<= 1)
            held += __shfl_xor_sync(FULL_WARP, held, mask);
        float value = live ? mixed[row * u64(sizes.channels()) + 2 * key_heads * KEY_DIM + head * value_dim + column] : 0.0f;
        float write = strength[u64(row) * value_heads + head] * (value - remains * held);
#pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            u32 at = i * SHARERS + sharer;
            s[i] = remains * s[i] + k[i] * write;
            sum += (at < KEY_DIM ? query[at] : 0.0f) * s[i];
        }
        for (int mask = 1; mask < int(SHARERS); mask <<= 1)
            sum += __shfl_xor_sync(FULL_WARP, sum, mask);
        if (live && sharer == 0)
            read[(u64(row) * value_heads + head) * value_dim + column] = sum;
    }
#pragma unroll
    for (u32 i = 0; i < OWN; i++) {
        u32 at = i * SHARERS + sharer;
        if (live && at < KEY_DIM)
            own[u64(at) * value_dim] = s[i];
    }
}
EXPORT(delta_tokens)

constexpr u32 CHUNK = 64;

// Computes two matrices [64, 64] of a chunk: `scores`, decayed query · key up to the diagonal, and `inverse`, the
// inverse of the unit lower triangular system times the strength of each column. Block (chunk, value head).
KERNEL __launch_bounds__(256) delta_relations(float *scores, float *inverse, const float *units, const float *strength,
                                              const float *decay, u32 key_heads, u32 value_heads, u32 tiled, u32 rows) {
    STATIC_SHARED float system[CHUNK][CHUNK + 1], solved[CHUNK][CHUNK + 1];
    STATIC_SHARED double total[CHUNK];
    STATIC_SHARED float strengths[CHUNK];
    Sizes sizes = {key_heads, value_heads, 0, tiled, rows};
    u32 head = blockIdx.y, first = blockIdx.x * CHUNK, count = min(rows - first, CHUNK), key_head = sizes.key_head(head);
    if (threadIdx.x == 0) {
        double sum = 0;
        for (u32 i = 0; i < count; i++) {
            sum += double(decay[u64(first + i) * value_heads + head]);
            total[i] = sum;
            strengths[i] = strength[u64(first + i) * value_heads + head];
        }
    }
    __syncthreads();
    u64 place = (u64(blockIdx.x) * value_heads + head) * CHUNK * CHUNK;
    for (u32 pair = threadIdx.x; pair < CHUNK * CHUNK; pair += 256) {
        u32 i = pair / CHUNK, j = pair % CHUNK;
        float below = 0, score = 0;
        if (j <= i && i < count) {
            const float *query = units + (u64(first + i) * key_heads + key_head) * 2 * KEY_DIM, *key = query + KEY_DIM;
            const float *other = units + (u64(first + j) * key_heads + key_head) * 2 * KEY_DIM + KEY_DIM;
            float keys = 0, queries = 0;
            for (u32 d = 0; d < KEY_DIM; d++) {
                keys += key[d] * other[d];
                queries += query[d] * other[d];
            }
            float remains = expf(float(total[i] - total[j]));
            score = remains * queries;
            below = j < i ? strengths[i] * remains * keys : 0.0f;
        }
        system[i][j] = below;
        scores[place + pair] = score;
    }
    __syncthreads();
    // (I + system)⁻¹ by forward substitution; a thread takes one column.
    if (threadIdx.x < CHUNK) {
        u32 j = threadIdx.x;
        for (u32 i = 0; i < CHUNK; i++) {
            float sum = i == j ? 1.0f : 0.0f;
            for (u32 k = j; k < i; k++)
                sum -= system[i][k] * solved[k][j];
            solved[i][j] = i < j ? 0.0f : sum;
        }
    }
    __syncthreads();
    for (u32 pair = threadIdx.x; pair < CHUNK * CHUNK; pair += 256) {
        u32 j = pair % CHUNK;
        inverse[place + pair] = j < count ? solved[pair / CHUNK][j] * strengths[j] : 0.0f;
    }
}
EXPORT(delta_relations)

constexpr u32 SLICE = 32;

// The delta rule chunk by chunk, in order, with a block's part S of the memory in shared memory:
// writes = inverse · (values − D · keys · S), read = D · queries · S + scores · writes, then
// S ← D S + Σ decayed keys ⊗ writes. Block (32 columns, value head).
KERNEL __launch_bounds__(256) delta_chunks(float *read, float *memory, const float *units, const float *mixed, const float *scores,
                                           const float *inverse, const float *decay, u32 key_heads, u32 value_heads,
                                           u32 value_dim, u32 tiled, u32 rows) {
    DYNAMIC_SHARED(bytes);
    float(*s)[SLICE] = (float(*)[SLICE])bytes;
    float(*missing)[SLICE] = s + KEY_DIM, (*writes)[SLICE] = missing + CHUNK;
    STATIC_SHARED float since[CHUNK], until[CHUNK];
    STATIC_SHARED float whole;
    Sizes sizes = {key_heads, value_heads, value_dim, tiled, rows};
    u32 head = blockIdx.y, column = threadIdx.x % SLICE, at = blockIdx.x * SLICE + column, group = threadIdx.x / SLICE;
    bool live = at < value_dim;
    float *own = memory + u64(head) * KEY_DIM * value_dim + at;
    for (u32 d = group; d < KEY_DIM; d += 8)
        s[d][column] = live ? own[u64(d) * value_dim] : 0.0f;
    const u64 unit_stride = u64(key_heads) * 2 * KEY_DIM;
    for (u32 first = 0, chunk = 0; first < rows; first += CHUNK, chunk++) {
        u32 count = min(rows - first, CHUNK);
        u64 place = (u64(chunk) * value_heads + head) * CHUNK * CHUNK;
        const float *queries = units + first * unit_stride + sizes.key_head(head) * 2 * KEY_DIM, *keys = queries + KEY_DIM;
        __syncthreads();
        if (threadIdx.x == 0) {
            double sum = 0;
            for (u32 i = 0; i < count; i++) {
                sum += double(decay[u64(first + i) * value_heads + head]);
                since[i] = float(sum);
            }
            double run = 0;
            for (u32 i = 0; i < count; i++) {
                run += double(decay[u64(first + i) * value_heads + head]);
                until[i] = expf(float(sum - run));
                since[i] = expf(since[i]);
            }
            whole = expf(float(sum));
        }
        __syncthreads();
        for (u32 i = group; i < count; i += 8) {
            float held = 0;
            for (u32 d = 0; d < KEY_DIM; d++)
                held += keys[i * unit_stride + d] * s[d][column];
            float value = live ? mixed[(first + i) * u64(sizes.channels()) + 2 * key_heads * KEY_DIM + head * value_dim + at] : 0.0f;
            missing[i][column] = value - since[i] * held;
        }
        __syncthreads();
        for (u32 i = group; i < count; i += 8) {
            float sum = 0;
            for (u32 j = 0; j <= i; j++)
                sum += inverse[place + i * CHUNK + j] * missing[j][column];
            writes[i][column] = sum;
        }
        __syncthreads();
        for (u32 i = group; i < count; i += 8) {
            float sum = 0, seen = 0;
            for (u32 d = 0; d < KEY_DIM; d++)
                sum += queries[i * unit_stride + d] * s[d][column];
            for (u32 j = 0; j <= i; j++)
                seen += scores[place + i * CHUNK + j] * writes[j][column];
            if (live)
                read[(u64(first + i) * value_heads + head) * value_dim + at] = since[i] * sum + seen;
        }
        __syncthreads();
        for (u32 d = group; d < KEY_DIM; d += 8) {
            float sum = whole * s[d][column];
            for (u32 j = 0; j < count; j++)
                sum += keys[j * unit_stride + d] * until[j] * writes[j][column];
            s[d][column] = sum;
        }
    }
    __syncthreads();
    for (u32 d = group; d < KEY_DIM; d += 8)
        if (live)
            own[u64(d) * value_dim] = s[d][column];
}
EXPORT(delta_chunks)
#endif
