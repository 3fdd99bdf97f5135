// For tests of the emulation alone: a product of a warpgroup, [64, 64] of [64, 16] and [16, 64], without the step that
// MISSING names.
#include "device.cuh"
#include "warpgroup.cuh"

constexpr int NOTHING = 0, PUBLISH = 1, BARRIER = 2, ARRIVE = 3, WAIT = 4, ORDER = 5, FIRST_OPERAND = 6, COMMIT = 7;

KERNEL hazards(float *output, const u16 *a, const u16 *b) {
    DYNAMIC_SHARED(memory);
    u16 *tile = (u16 *)(memory + (SWIZZLE_BYTES - shared_address(memory) % SWIZZLE_BYTES) % SWIZZLE_BYTES);
    u32 lane = lane_index(), row = threadIdx.x / 32 * 16 + lane / 4;
    // The tile holds b transposed in its first sixteen columns.
    for (u32 i = threadIdx.x; i < 64 * 8; i += 128) {
        Swizzled<64> place = {tile};
        copy_async_16(place.at(i / 8, i % 8 * 8), b + i * 8, 16);
    }
    copy_async_commit();
    copy_async_wait<0>();
    if (MISSING != PUBLISH)
        publish_shared();
    if (MISSING != BARRIER)
        __syncthreads();
    u32 fragment[4];
    for (int i = 0; i < 4; i++)
        fragment[i] = ((const u32 *)a)[((row + i % 2 * 8) * 16 + i / 2 * 8) / 2 + lane % 4];
    float sums[8][4];
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++)
            sums[n][i] = 1;
    if (MISSING != ARRIVE)
        warpgroup_arrive();
    multiply_warpgroup<false, false>(sums, fragment, describe<64>(tile), true);
    if (MISSING != COMMIT)
        warpgroup_commit();
    if (MISSING == FIRST_OPERAND)
        for (int i = 0; i < 4; i++)
            fragment[i] = 0;
    if (MISSING == ORDER) {
        // Another thread overwrites the operand while the product reads it.
        __syncthreads();
        for (u32 i = threadIdx.x; i < 64 * 8; i += 128)
            store_16(tile + i * 8, {0, 0, 0, 0});
        publish_shared();
        __syncthreads();
    }
    if (MISSING != WAIT)
        warpgroup_wait<0>();
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++)
            output[(row + i / 2 * 8) * 64 + n * 8 + lane % 4 * 2 + i % 2] = sums[n][i];
    if (MISSING == WAIT)
        warpgroup_wait<0>();
}
EXPORT(hazards)
