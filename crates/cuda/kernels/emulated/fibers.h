// The threads of one block as fibers of one CPU thread.
//
// A fiber runs until it must meet others (a barrier, a shuffle, an mma) and then yields. Every round visits the fibers
// from a random place in a random direction; so a missing barrier gives a wrong result sooner or later. A round in
// which no fiber can run is a deadlock and ends the launch with an error.
#pragma once
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>
#include <utility>
#include <vector>

namespace emulated {

struct Dim3 {
    unsigned x, y, z;
};

struct Copy {
    void *to;
    const void *from;
    unsigned bytes, zeros;
};

struct Thread {
    jmp_buf context;
    void *stack = nullptr;
    Dim3 index;
    unsigned flat, lane, warp;
    bool started = false, done = true;
    // Blocked while the counter still has this value.
    const unsigned *waits_on = nullptr;
    unsigned waits_while = 0;
    // Asynchronous copies that are not carried out, by group.
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open_group;
};

struct Warp {
    alignas(16) unsigned char slots[2][32][64];
    unsigned arrived, generation;
};

struct Barrier {
    unsigned arrived, generation;
};

constexpr std::size_t STACK_BYTES = 256 * 1024, GUARD_BYTES = 256;

struct Machine {
    std::vector<std::unique_ptr<Thread>> threads;
    std::vector<Warp> warps;
    Barrier barriers[16];
    std::vector<unsigned char> shared;
    std::size_t shared_bytes = 0;
    Thread *current = nullptr;
    jmp_buf scheduler;
    ucontext_t entry;
    Dim3 grid, block, block_index;
    void (*body)(void *) = nullptr;
    void *body_data = nullptr;
    unsigned count = 0, live = 0;
    std::uint64_t random = 88172645463325252ull;
    const char *fault = nullptr;
};

// The machine of this CPU thread, behind a pointer: a `thread_local` with a constructor would check on every use
// whether it has run.
static thread_local Machine *machine_here = nullptr;

[[gnu::noinline]] static Machine &make_machine() {
    static thread_local Machine own;
    machine_here = &own;
    return own;
}

inline Machine &this_machine() { return machine_here ? *machine_here : make_machine(); }
#define machine this_machine()

// Callbacks of a block, for kernels with asynchronous products (warpgroup.h).
struct Hooks {
    void (*begin_block)(), (*end_block)();
    void (*wrote_shared)(const void *to, unsigned bytes);
};
static Hooks hooks = {};

inline unsigned random_number() {
    auto &x = machine.random;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return unsigned(x >> 33);
}

[[gnu::noinline]] static void yield() {
    Thread *self = machine.current;
    if (_setjmp(self->context) == 0)
        _longjmp(machine.scheduler, 1);
}

inline void wait_while(const unsigned *counter, unsigned value) {
    Thread *self = machine.current;
    self->waits_on = counter, self->waits_while = value;
    yield();
}

static void fiber_main() {
    for (;;) {
        machine.body(machine.body_data);
        machine.current->done = true;
        machine.live--;
        yield();
    }
}

static void resume(Thread *thread) {
    machine.current = thread;
    thread->waits_on = nullptr;
    if (_setjmp(machine.scheduler) != 0)
        return;
    if (thread->started)
        _longjmp(thread->context, 1);
    thread->started = true;
    ucontext_t here;
    getcontext(&machine.entry);
    machine.entry.uc_stack.ss_sp = thread->stack;
    machine.entry.uc_stack.ss_size = STACK_BYTES;
    machine.entry.uc_link = nullptr;
    makecontext(&machine.entry, fiber_main, 0);
    swapcontext(&here, &machine.entry);
}

inline void barrier(unsigned number, unsigned count) {
    Barrier &b = machine.barriers[number];
    if (++b.arrived == count) {
        b.arrived = 0;
        b.generation++;
    } else {
        wait_while(&b.generation, b.generation);
    }
}

// Every lane of the warp gives a value; the returned slots hold the values of all lanes. Two sets of slots take turns,
// so a lane may be one meeting ahead of the others.
template <class T> const unsigned char (*meet(const T &value))[64] {
    static_assert(sizeof(T) <= 64);
    Thread *self = machine.current;
    Warp &warp = machine.warps[self->warp];
    unsigned turn = warp.generation & 1;
    std::memcpy(warp.slots[turn][self->lane], &value, sizeof(T));
    if (++warp.arrived == 32) {
        warp.arrived = 0;
        warp.generation++;
    } else {
        wait_while(&warp.generation, warp.generation);
    }
    return warp.slots[turn];
}

template <class T> T slot(const unsigned char (*slots)[64], unsigned lane) {
    T value;
    std::memcpy(&value, slots[lane], sizeof(T));
    return value;
}

inline void reserve(unsigned count) {
    auto &threads = machine.threads;
    while (threads.size() < count) {
        auto thread = std::make_unique<Thread>();
        thread->stack =
            mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        thread->flat = unsigned(threads.size());
        thread->lane = thread->flat % 32, thread->warp = thread->flat / 32;
        threads.push_back(std::move(thread));
    }
    if (machine.warps.size() < (count + 31) / 32)
        machine.warps.resize((count + 31) / 32);
}

inline bool run_block() {
    unsigned count = machine.count;
    for (unsigned i = 0; i < count; i++) {
        Thread &t = *machine.threads[i];
        Dim3 b = machine.block;
        t.index = {i % b.x, i / b.x % b.y, i / b.x / b.y};
        t.done = false, t.waits_on = nullptr;
        t.groups.clear(), t.open_group.clear();
    }
    for (auto &warp : machine.warps)
        warp.arrived = 0;
    for (auto &b : machine.barriers)
        b.arrived = 0;
    machine.live = count;
    std::memset(machine.shared.data(), 0xff, machine.shared.size());
    if (hooks.begin_block)
        hooks.begin_block();
    while (machine.live > 0) {
        bool moved = false;
        unsigned first = random_number() % count, backwards = random_number() & 1;
        for (unsigned n = 0; n < count; n++) {
            Thread *t = machine.threads[(first + (backwards ? count - n : n)) % count].get();
            if (t->done || (t->waits_on && *t->waits_on == t->waits_while))
                continue;
            moved = true;
            resume(t);
            if (machine.fault)
                return false;
        }
        if (!moved) {
            machine.fault = "deadlock: not every thread of the block or warp came to the barrier";
            return false;
        }
    }
    for (std::size_t i = machine.shared_bytes; i < machine.shared.size(); i++) {
        if (machine.shared[i] != 0xff) {
            machine.fault = "a write behind the end of shared memory";
            return false;
        }
    }
    if (hooks.end_block)
        hooks.end_block();
    return !machine.fault;
}

struct Launch {
    Dim3 grid, block;
    unsigned shared_bytes;
    unsigned unused;
    std::uint64_t seed;
};

template <class... A, std::size_t... I>
void call(void (*kernel)(A...), void **arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A *>(arguments[I])...);
}

// Runs all blocks one after another; returns null or the error.
template <class... A> const char *launch(void (*kernel)(A...), const Launch *l, void **arguments) {
    struct Call {
        void (*kernel)(A...);
        void **arguments;
    } data{kernel, arguments};
    machine.grid = l->grid, machine.block = l->block;
    machine.count = l->block.x * l->block.y * l->block.z;
    if (machine.count == 0 || machine.count % 32 != 0 || machine.count > 1024)
        return "a block must have a multiple of 32 threads, at most 1024";
    // After a fault, fibers in the middle of a kernel start again.
    if (machine.fault)
        for (auto &thread : machine.threads)
            thread->started = false;
    machine.fault = nullptr;
    machine.random = l->seed * 2654435761u + 88172645463325252ull;
    machine.shared_bytes = l->shared_bytes;
    machine.shared.assign(l->shared_bytes + GUARD_BYTES, 0xff);
    reserve(machine.count);
    machine.body_data = &data;
    machine.body = [](void *data) {
        auto *c = static_cast<Call *>(data);
        call(c->kernel, c->arguments, std::index_sequence_for<A...>());
    };
    Dim3 &b = machine.block_index;
    for (b.z = 0; b.z < l->grid.z; b.z++)
        for (b.y = 0; b.y < l->grid.y; b.y++)
            for (b.x = 0; b.x < l->grid.x; b.x++)
                if (!run_block())
                    return machine.fault;
    return nullptr;
}

// The sizes of a kernel's parameters, then a zero.
template <class... A> const unsigned *parameter_bytes(void (*)(A...)) {
    static const unsigned bytes[] = {unsigned(sizeof(A))..., 0};
    return bytes;
}

} // namespace emulated
