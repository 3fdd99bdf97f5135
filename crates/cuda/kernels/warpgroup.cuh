// Matrix products of a warpgroup (four warps), on sm_90a only. They run beside the warps' own instructions.
//
// The second operand lies in shared memory, the first operand and the sums in registers. Rules for the caller:
// - Between a product and the wait for its group, no thread uses the product's registers or writes the
//   shared memory that it reads.
// - `warpgroup_arrive` stands between other uses of these registers and a product.
// - A thread that has written shared memory calls `publish_shared` before the barrier that precedes the product.
//
// The given arrays stand for the registers: the emulation may read and write them at any time up to the wait.
#pragma once
#ifdef RIFFLE_EMULATED
#include "emulated/warpgroup.h"
#else

__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving other uses of the sums across this point.
template <int COLUMNS> __device__ __forceinline__ void pin(float (&c)[COLUMNS][4]) {
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(c[n][i])::"memory");
}

#define SUMS(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define SUMS_8(n) SUMS(n), SUMS(n + 1), SUMS(n + 2), SUMS(n + 3), SUMS(n + 4), SUMS(n + 5), SUMS(n + 6), SUMS(n + 7)
#define PRODUCT_64(types)                                                                                              \
    asm volatile("{.reg .pred more; setp.ne.b32 more, %37, 0; "                                                        \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." types " "                                               \
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                             \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                   \
                 "{%32, %33, %34, %35}, %36, more, 1, 1, %38;}"                                                        \
                 : SUMS_8(0)                                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(unsigned(adds)), "n"(int(B_IN_ROWS)))
#define PRODUCT_128(types)                                                                                             \
    asm volatile("{.reg .pred more; setp.ne.b32 more, %69, 0; "                                                        \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." types " "                                              \
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                             \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                    \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                    \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                   \
                 "{%64, %65, %66, %67}, %68, more, 1, 1, %70;}"                                                        \
                 : SUMS_8(0), SUMS_8(8)                                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(unsigned(adds)), "n"(int(B_IN_ROWS)))

// c = a · b, or c += a · b if `adds`: 64×64 of 64×16 and 16×64. Each warp holds sixteen rows of a and c, in the
// fragments of mma.m16n8k16. The descriptor `b` describes the second operand column by column, or row by row if
// B_IN_ROWS.
template <bool BF16, bool B_IN_ROWS>
__device__ __forceinline__ void multiply_warpgroup(float (&c)[8][4], const unsigned (&a)[4], unsigned long long b, bool adds) {
    if (BF16)
        PRODUCT_64("bf16.bf16");
    else
        PRODUCT_64("f16.f16");
}
// The same product with 128 columns.
template <bool BF16, bool B_IN_ROWS>
__device__ __forceinline__ void multiply_warpgroup(float (&c)[16][4], const unsigned (&a)[4], unsigned long long b, bool adds) {
    if (BF16)
        PRODUCT_128("bf16.bf16");
    else
        PRODUCT_128("f16.f16");
}
#undef PRODUCT_128
#undef PRODUCT_64
#undef SUMS_8
#undef SUMS
#endif

// The layout of operands in shared memory: columns of 64 elements, [columns / 64][rows][64]. Chunk i of 16 bytes of row
// r lies at place i ^ (r % 8). So the same chunk of eight rows lies in different banks, and so do the eight chunks of a
// row. A tile begins at a multiple of SWIZZLE_BYTES.
constexpr unsigned SWIZZLE_BYTES = 1024;
template <unsigned ROWS> struct Swizzled {
    unsigned short *tile;
    __device__ __forceinline__ unsigned short *at(unsigned row, unsigned channel) const {
        return tile + (channel / 64 * ROWS + row) * 64 + (channel % 64 / 8 ^ row % 8) * 8;
    }
};

// A matrix descriptor of the PTX ISA: address, leading offset and stride offset in units of 16 bytes at bits 0, 16 and
// 32, and the 128-byte swizzle in bit 62. The stride is eight rows, SWIZZLE_BYTES. If B_IN_ROWS, the leading offset is
// the distance between columns of 64 elements.
template <unsigned ROWS> __device__ __forceinline__ unsigned long long describe(const unsigned short *tile) {
    return (unsigned long long)(shared_address(tile) >> 4 & 0x3fff) | (unsigned long long)(ROWS * 128 / 16) << 16 |
           (unsigned long long)(SWIZZLE_BYTES / 16) << 32 | 1ull << 62;
}
