// How the threads of a pass divide work, wait for each other and keep memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "vectors.h"

namespace {

struct Share {  // the range of `count` items that one thread handles
    long first, last;
    Share(long count, int thread, int threads)
        : first(count * thread / threads), last(count * (thread + 1) / threads) {}
};

// A buffer that a thread keeps and reuses, at the start of a line of the CPU cache.
template <class T>
struct Room {
    std::vector<T> kept;
    T* of(long size) {
        if ((long)kept.size() < size + 64) kept.resize(size + 64);
        return (T*)(((uintptr_t)kept.data() + 63) / 64 * 64);
    }
};

// Barrier for the threads of a pass: spins for a short time, then yields.
class Meeting {
    std::atomic<int> arrived{0}, round{0};

  public:
    void meet(int threads) {
        if (threads == 1) return;
        const int now = round.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            arrived.store(0, std::memory_order_relaxed);
            round.store(now + 1, std::memory_order_release);
            return;
        }
        for (int tries = 0; round.load(std::memory_order_acquire) == now; ++tries) {
#if defined(__FMA__)
            if (tries < 256) _mm_pause();
            else
#endif
                std::this_thread::yield();
        }
    }
};

}  // namespace
