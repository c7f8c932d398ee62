// Products by AMX, for processors whose cores multiply tiles of 16 rows of bfloat16 inputs by 16 outputs. A product of 16
// rows takes about as long as one of a single row, so every pass uses tiles, one row too: a row's bits do not depend on the
// rows beside it. `tdpbf16ps` takes 32 inputs at a time. It sums the products of the even ones and those of the odd ones
// in two chains of fused multiply-adds from zero, adds both, and adds that to the sum so far.
//
// Inputs are copied into tiles [row / 16, input / 32, 16, 32], because rows that lie a power of two apart share a few
// lines of the CPU cache; for a single panel of keys they are read where they are. Up to three tiles of rows times the
// two of a panel are summed at once, in tiles 0 to 5; weights come in tile 6 and inputs in tile 7. A panel of `Tiles` can
// be loaded as it is. All tiles have 16 rows: rows beyond the last are computed and dropped. The system must permit tiles
// once for a process, and every thread sets their sizes once for a pass. With EMULATED_TILES the instructions are
// functions, so that a machine without AMX can test the rest.
#pragma once

#include "products.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr long SIDE = 16, DEEP = 32, TILE = SIDE * DEEP;  // rows or outputs, inputs, and bfloat16 numbers of a tile
constexpr long TILES_OF_A_PANEL = PANEL / SIDE;
constexpr long TILE_AHEAD = 8192;  // bytes from a weight in use to the one that is fetched

#if defined(EMULATED_TILES)
#define HAS_TILES 1

inline float tile_of[8][SIDE][SIDE];
#pragma omp threadprivate(tile_of)

template <int T>
void tile_zero() { std::memset(tile_of[T], 0, sizeof tile_of[T]); }

template <int T>
void tile_load(const uint16_t* from, long stride) {
    for (long row = 0; row < SIDE; ++row) std::memcpy(tile_of[T][row], (const char*)from + row * stride, 2 * DEEP);
}

template <int T>
void tile_store(float* to, long stride) {
    for (long row = 0; row < SIDE; ++row) std::memcpy((char*)to + row * stride, tile_of[T][row], 2 * DEEP);
}

template <int T>
void tile_multiply() {
    uint16_t inputs[SIDE][DEEP], weights[SIDE][SIDE][2];
    std::memcpy(inputs, tile_of[7], sizeof inputs);
    std::memcpy(weights, tile_of[6], sizeof weights);
    const auto number = [](uint16_t half) {
        const uint32_t bits = (uint32_t)half << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    };
    float numbers[DEEP][SIDE];
    for (long k = 0; k < DEEP; ++k)
        for (long output = 0; output < SIDE; ++output) numbers[k][output] = number(weights[k / 2][output][k % 2]);
    for (long row = 0; row < SIDE; ++row) {
        float chains[2][SIDE] = {};
        for (long k = 0; k < DEEP; ++k) {
            const float input = number(inputs[row][k]);
            for (long output = 0; output < SIDE; ++output)  // the compiler makes vectors of it
                chains[k % 2][output] = std::fma(input, numbers[k][output], chains[k % 2][output]);
        }
        for (long output = 0; output < SIDE; ++output) tile_of[T][row][output] += chains[0][output] + chains[1][output];
    }
}

inline bool may_use_tiles() { return true; }
inline void begin_tiles() {}
inline void end_tiles() {}

#elif defined(__AMX_BF16__) && defined(__linux__)
#define HAS_TILES 1

// In assembly, because the compiler's own functions name too little of the memory that they read: version 12 of GCC
// removes writes of the sizes.
template <int T>
void tile_zero() { asm volatile("tilezero %%tmm%c0" ::"i"(T)); }

template <int T>
void tile_load(const uint16_t* from, long stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
}

template <int T>
void tile_store(float* to, long stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(stride) : "memory");
}

template <int T>
void tile_multiply() { asm volatile("tdpbf16ps %%tmm6, %%tmm7, %%tmm%c0" ::"i"(T)); }

inline bool may_use_tiles() {
    static const bool allowed = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM for the tiles' state
    return allowed;
}

inline void begin_tiles() {
    struct {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } sizes;
    asm volatile("ldtilecfg %0" ::"m"(sizes));
}

inline void end_tiles() { asm volatile("tilerelease"); }

#else
#define HAS_TILES 0
inline bool may_use_tiles() { return false; }
#endif

#if HAS_TILES
// Adds the products of 32 inputs to the sums of `HIGH` tiles of rows. Both tiles of weights meet the inputs in opposite
// orders, so that the last ones are loaded once.
template <int HIGH>
inline void add_tiles(const uint16_t* weights, const uint16_t* x, long stride, long apart) {
    tile_load<6>(weights, 4 * PANEL);
    tile_load<7>(x, stride), tile_multiply<0>();
    if (HIGH > 1) tile_load<7>(x + apart, stride), tile_multiply<2>();
    if (HIGH > 2) tile_load<7>(x + 2 * apart, stride), tile_multiply<4>();
    if (TILES_OF_A_PANEL == 1) return;
    tile_load<6>(weights + 2 * SIDE, 4 * PANEL);
    if (HIGH > 2) tile_multiply<5>(), tile_load<7>(x + apart, stride);
    if (HIGH > 1) tile_multiply<3>(), tile_load<7>(x, stride);
    tile_multiply<1>();
}

// Computes the sums of `HIGH` tiles of rows with a panel, [16 * HIGH, PANEL]. Fetches `lines` of CPU cache for each 32
// inputs.
template <int HIGH>
void sum_tiles(const uint16_t* weights, const uint16_t* x, long deep, long stride, long step, long apart, float* to,
               const char* ahead, long lines) {
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>(), tile_zero<4>(), tile_zero<5>();
    for (long k = 0; k < deep; ++k, weights += DEEP * PANEL, x += step, ahead += 64 * lines) {
        fetch(ahead, 64 * lines);
        add_tiles<HIGH>(weights, x, stride, apart);
    }
    const auto write = [&](long row, auto left, auto right) {
        tile_store<left>(to + row * SIDE * PANEL, 4 * PANEL);
        if (TILES_OF_A_PANEL > 1) tile_store<right>(to + row * SIDE * PANEL + SIDE, 4 * PANEL);
    };
    write(0, std::integral_constant<int, 0>(), std::integral_constant<int, 1>());
    if (HIGH > 1) write(1, std::integral_constant<int, 2>(), std::integral_constant<int, 3>());
    if (HIGH > 2) write(2, std::integral_constant<int, 4>(), std::integral_constant<int, 5>());
}

template <>
template <int BITS>
void Product<Tiles>::columns(const char* weights, long first, long last) const {
    static thread_local Room<uint16_t> expanded, copied;
    static thread_local Room<float> sums;
    constexpr long MOST_HIGH = 3;
    const long deep = width / DEEP, high = (rows + SIDE - 1) / SIDE, groups = (high + MOST_HIGH - 1) / MOST_HIGH;
    const uint16_t* from = x;
    long stride = 2 * width, step = DEEP, apart = SIDE * width;
    if (last - first > 1) {
        uint16_t* to = copied.of(high * deep * TILE);
        for (long row = 0; row < rows; ++row)
            for (long k = 0; k < deep; ++k)
                std::memcpy(to + ((row / SIDE * deep + k) * SIDE + row % SIDE) * DEEP, x + row * width + k * DEEP, 2 * DEEP);
        from = to, stride = 2 * DEEP, step = TILE, apart = deep * TILE;
    }
    float* const made = sums.of(MOST_HIGH * SIDE * PANEL);
    const long bytes = bytes_of<BITS>();
    for (long panel = first; panel < last; ++panel) {
        const char *own = weights + panel * bytes, *next = own + bytes;
        const uint16_t* use = (const uint16_t*)own;
        if (BITS < 16) {
            uint16_t* kept = expanded.of(width * PANEL);
            expand<BITS>(own, [&](const Vec* w, long k) { Tiles::keep(w, kept + k * PANEL); });
            use = kept;
        }
        for (long group = 0; group < groups; ++group) {
            const long start = high * group / groups, end = high * (group + 1) / groups;
            const long lines = BITS < 16 ? 0 : bytes / 64 / deep / (group ? groups : 1);
            const char* ahead = group ? next + (group - 1) * deep * lines * 64 : own + TILE_AHEAD;
            with<MOST_HIGH>(end - start, [&](auto size) {
                sum_tiles<size>(use, from + start * apart, deep, stride, step, apart, made, ahead, lines);
            });
            for (long row = start * SIDE; row < std::min(rows, end * SIDE); ++row)
                for (int part = 0; part < PARTS; ++part)
                    put(load(made + (row - start * SIDE) * PANEL + part * LANES), row, panel * PANEL + part * LANES);
        }
    }
}
#endif

}  // namespace
