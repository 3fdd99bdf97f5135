// Products of warpgroups, which run beside their threads.
//
// On a device a product runs at some time between its issue and the wait for its group, in order. Here it runs at once
// or as late as possible, at random. So tests find operands that are written too late or overwritten too early. Sums
// are NaN until the wait, so tests also find sums that are read or written before it. Products read shared memory
// through a view of their own: a thread's writes reach it when the thread publishes them, or sooner at random.
#pragma once
#include <algorithm>
#include <map>

namespace emulated {

struct Product {
    float *sums;
    unsigned columns;
    const unsigned *a;
    std::uint64_t b;
    bool is_bf16, b_in_rows, adds;
    unsigned group;
    std::size_t number;

    bool is_as(const Product &other) const {
        return columns == other.columns && b == other.b && is_bf16 == other.is_bf16 && b_in_rows == other.b_in_rows &&
               adds == other.adds;
    }
};

// State of a thread's asynchronous products.
struct Products {
    // Products before their wait, and the number of these that have run. The number of a group is the number of commits
    // before it.
    std::vector<Product> pending;
    std::size_t run = 0, issued = 0;
    unsigned commits = 0, arrivals = 0;
    // Sums of the pending products.
    std::map<float *, std::vector<float>> sums;
    // Registers as a product last wrote or read them, and the number of arrivals at that time.
    struct Registers {
        std::vector<std::uint32_t> bits;
        unsigned arrivals;
    };
    std::map<const void *, Registers> registers;
    // Writes to shared memory that are not published: offsets and bytes.
    std::vector<std::pair<std::size_t, std::size_t>> written;
};

struct Asynchrony {
    std::vector<Products> threads;
    // `at_once`: for each warp and product, true if the product runs at once. `issued`: for each warpgroup, the
    // products that the first of its warps issued.
    std::vector<std::vector<bool>> at_once;
    std::vector<std::vector<Product>> issued;
    // For each warp, the number + 1 of the product that it runs and the product's second operand [16, columns].
    std::vector<std::pair<std::size_t, std::vector<float>>> second;
    // Shared memory as products see it.
    std::vector<unsigned char> view;
};
static thread_local Asynchrony asynchrony;

// First address of shared memory in its address space. Its alignment is the least that a kernel may assume.
constexpr unsigned SHARED_BASE = 1040;

inline void fault(const char *message) {
    if (!machine.fault)
        machine.fault = message;
}

inline Products &own_products() { return asynchrony.threads[machine.current->flat]; }

inline void publish(std::size_t at, std::size_t bytes) {
    std::memcpy(asynchrony.view.data() + at, machine.shared.data() + at, bytes);
}

static void begin_block() {
    asynchrony.threads.assign(machine.count, {});
    asynchrony.at_once.assign(machine.count / 32, {});
    asynchrony.second.assign(machine.count / 32, {});
    asynchrony.issued.assign((machine.count + 127) / 128, {});
    asynchrony.view.assign(machine.shared.size(), 0xff);
}

static void end_block() {
    for (unsigned i = 0; i < machine.count; i++) {
        const Products &products = asynchrony.threads[i];
        if (!products.sums.empty())
            fault("a block ended before its warpgroup products were waited for");
        if (products.issued != asynchrony.issued[i / 128].size())
            fault("a warpgroup product was issued by some of its four warps");
    }
}

static void wrote_shared(const void *to, unsigned bytes) {
    std::size_t at = (const unsigned char *)to - machine.shared.data();
    own_products().written.push_back({at, bytes});
    if (random_number() & 1)
        publish(at, bytes);
}

static const bool follows_blocks = (hooks = {begin_block, end_block, wrote_shared}, true);

// The 128-byte swizzle of the PTX ISA: bits 4 to 6 of a byte's address become their exclusive or with bits 7 to 9.
inline unsigned short operand(std::uint64_t address) {
    address ^= (address >> 7 & 7) << 4;
    if (address < SHARED_BASE || address + 2 > SHARED_BASE + machine.shared_bytes) {
        fault("a warpgroup product reads beside shared memory");
        return 0;
    }
    unsigned short bits;
    std::memcpy(&bits, asynchrony.view.data() + (address - SHARED_BASE), 2);
    return bits;
}

// Row k, column n of the second operand. The canonical layouts, shape in elements : offsets in bytes, are
// ((8, n), 64) : ((128, stride), 2) column by column and ((64, n), (8, k)) : ((2, leading), (128, stride)) row by row.
inline unsigned short second_operand(const Product &product, unsigned k, unsigned n) {
    std::uint64_t start = (product.b & 0x3fff) << 4, leading = (product.b >> 16 & 0x3fff) << 4;
    std::uint64_t stride = (product.b >> 32 & 0x3fff) << 4;
    if (product.b_in_rows)
        return operand(start + n / 64 * leading + n % 64 * 2 + k / 8 * stride + k % 8 * 128);
    return operand(start + n / 8 * stride + n % 8 * 128 + k * 2);
}

// Runs this thread's part of the first pending product that has not run, with the fragments of mma.m16n8k16. All lanes
// of the warp call it together.
static void run_next(Products &own) {
    const Product product = own.pending[own.run++];
    struct First {
        unsigned a[4];
    } mine;
    std::memcpy(mine.a, product.a, sizeof(mine.a));
    const auto *slots = meet(mine);
    auto widen = [&](unsigned short bits) { return product.is_bf16 ? bf16_to_f32(bits) : f16_to_f32(bits); };
    unsigned lane = machine.current->lane;
    float rows[2][16];
    for (unsigned k = 0; k < 16; k++) {
        First from = slot<First>(slots, lane / 4 * 4 + k % 8 / 2);
        for (unsigned i = 0; i < 2; i++)
            rows[i][k] = widen((unsigned short)(from.a[i + 2 * (k / 8)] >> (16 * (k % 2))));
    }
    auto &[of, second] = asynchrony.second[machine.current->warp];
    if (of != product.number + 1) {
        of = product.number + 1;
        second.resize(16 * product.columns);
        for (unsigned k = 0; k < 16; k++)
            for (unsigned n = 0; n < product.columns; n++)
                second[k * product.columns + n] = widen(second_operand(product, k, n));
    }
    std::vector<float> &sums = own.sums[product.sums];
    for (unsigned n = 0; n < product.columns / 8; n++)
        for (unsigned i = 0; i < 4; i++) {
            float sum = product.adds ? sums[4 * n + i] : 0;
            for (unsigned k = 0; k < 16; k++)
                sum += rows[i / 2][k] * second[k * product.columns + 8 * n + lane % 4 * 2 + i % 2];
            sums[4 * n + i] = sum;
        }
}

inline std::vector<std::uint32_t> bits_of(const void *registers, std::size_t count) {
    std::vector<std::uint32_t> bits(count);
    std::memcpy(bits.data(), registers, 4 * count);
    return bits;
}
inline void note_registers(Products &own, const void *at, std::size_t count) {
    own.registers[at] = {bits_of(at, count), own.arrivals};
}

// Reports registers that the thread has written since a product last used them, if no arrival followed.
inline void check_registers(Products &own, const void *at, std::size_t count) {
    auto known = own.registers.find(at);
    bool is_new = known == own.registers.end();
    if (is_new ? own.arrivals == 0 : own.arrivals == known->second.arrivals && known->second.bits != bits_of(at, count))
        fault("registers of a warpgroup product were written and no wgmma.fence followed");
    note_registers(own, at, count);
}

static void issue(const Product &product) {
    Products &own = own_products();
    unsigned warp = machine.current->warp, group = warp / 4;
    if ((product.b >> 62) != 1 || (product.b >> 49 & 7) != 0)
        fault("a descriptor with another layout than the 128-byte swizzle");
    std::size_t number = own.issued++;
    auto &issued = asynchrony.issued[group];
    if (number == issued.size())
        issued.push_back(product);
    else if (!issued[number].is_as(product))
        fault("the warps of a warpgroup issued different products");
    auto &at_once = asynchrony.at_once[warp];
    if (number == at_once.size())
        at_once.push_back(random_number() & 1);
    bool runs_now = at_once[number];
    check_registers(own, product.a, 4);
    std::size_t count = product.columns / 2;
    if (own.sums.find(product.sums) == own.sums.end()) {
        check_registers(own, product.sums, count);
        own.sums[product.sums].assign(product.sums, product.sums + count);
        for (std::size_t i = 0; i < count; i++)
            product.sums[i] = std::numeric_limits<float>::quiet_NaN();
    }
    own.pending.push_back(product);
    own.pending.back().group = own.commits;
    own.pending.back().number = number;
    if (runs_now)
        while (own.run < own.pending.size())
            run_next(own);
}

// Waits for all groups except the last `pending`.
static void wait_for_groups(unsigned pending) {
    Products &own = own_products();
    std::size_t count = 0;
    while (count < own.pending.size() && own.pending[count].group + pending < own.commits)
        count++;
    while (own.run < count)
        run_next(own);
    std::vector<Product> passed(own.pending.begin(), own.pending.begin() + count);
    own.pending.erase(own.pending.begin(), own.pending.begin() + count);
    own.run -= count;
    for (const Product &product : passed) {
        auto sums = own.sums.find(product.sums);
        auto has_same = [&](const Product &other) { return other.sums == product.sums; };
        if (sums == own.sums.end() || std::any_of(own.pending.begin(), own.pending.end(), has_same))
            continue;
        std::copy(sums->second.begin(), sums->second.end(), product.sums);
        note_registers(own, product.sums, sums->second.size());
        own.sums.erase(sums);
    }
}

template <bool BF16, bool B_IN_ROWS, int COLUMNS>
void multiply(float (&c)[COLUMNS][4], const unsigned (&a)[4], unsigned long long b, bool adds) {
    issue({&c[0][0], COLUMNS * 8, a, b, BF16, B_IN_ROWS, adds, 0, 0});
}

} // namespace emulated

inline void publish_shared() {
    auto &written = emulated::own_products().written;
    for (const auto &[at, bytes] : written)
        emulated::publish(at, bytes);
    written.clear();
}
inline void warpgroup_arrive() { emulated::own_products().arrivals++; }
inline void warpgroup_commit() { emulated::own_products().commits++; }
template <int PENDING> void warpgroup_wait() { emulated::wait_for_groups(PENDING); }
template <int COLUMNS> void pin(float (&)[COLUMNS][4]) {}

template <bool BF16, bool B_IN_ROWS>
void multiply_warpgroup(float (&c)[8][4], const unsigned (&a)[4], unsigned long long b, bool adds) {
    emulated::multiply<BF16, B_IN_ROWS>(c, a, b, adds);
}
template <bool BF16, bool B_IN_ROWS>
void multiply_warpgroup(float (&c)[16][4], const unsigned (&a)[4], unsigned long long b, bool adds) {
    emulated::multiply<BF16, B_IN_ROWS>(c, a, b, adds);
}
inline unsigned shared_address(const void *at) {
    return emulated::SHARED_BASE + unsigned((const unsigned char *)at - emulated::machine.shared.data());
}
