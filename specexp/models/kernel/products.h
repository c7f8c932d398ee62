// The products. A tile keeps the sums of up to ROWS_OF_A_TILE rows and one panel of outputs in registers. More rows are
// split into blocks of even sizes, which take a panel one after the other: the first from memory, the others from the
// CPU cache. Weights are stored in the order of use, so a thread reads one stream: panel by panel, input by input, two
// vectors of outputs side by side (see the layouts). A sum is one chain of fused multiply-adds over the inputs from
// first to last, in any tile, so its bits are the same in all. The first block fetches AHEAD bytes ahead, because
// processors do not fetch across pages; the others fetch an even part of the beginning of the next panel, and the stream
// brings the rest, since requests fill a processor's few buffers for lines. Weights of 4 or 8 BITS are expanded to the
// same bfloat16 numbers in registers, once for all rows: later blocks read the expanded panel. Each BLOCK of inputs
// holds scales and least values of the outputs in float16, then numbers in the order of use. One panel at a time is
// faster than several in turns.
#pragma once

#include <algorithm>
#include <type_traits>

#include "layouts.h"
#include "threads.h"

namespace {

constexpr int ROWS_OF_A_TILE = LANES == 16 ? 12 : 6;  // their sums fit in registers with weights and an input
constexpr long AHEAD = 4096;  // bytes from a weight in use to the one that is fetched
constexpr long BLOCK = 32;  // inputs with one scale, in weights of 4 or 8 bits

// Calls `work` with a constant: `number`, which is at least 1 and at most MOST.
template <int MOST, class Work>
inline void with(long number, Work work) {
    if constexpr (MOST > 1)
        if (number < MOST) return with<MOST - 1>(number, work);
    work(std::integral_constant<int, MOST>());
}

// Number `place` of the BITS-bit numbers of each word, as 1 + number / 2^BITS: its bits are the first after the point.
template <int BITS>
inline Vec fraction(Bits words, int place) {
    const int shift = 23 - BITS * (place + 1);
    return (Vec)(((shift < 0 ? words >> -shift : words << shift) & (((1 << BITS) - 1) << (23 - BITS))) | 0x3f800000);
}

template <class Kind>
struct Product {
    typedef typename Kind::Weight Weight;
    const typename Kind::Input* x;  // [rows, width]
    long rows, width;
    float* out;  // [rows, stride]
    long stride;
    const float* bias = nullptr;
    bool add = false;  // to the values of `out`
    float scale = 1.f;  // of a sum with its bias

    static constexpr long STEP = PANEL * Kind::STEP;  // weights

    template <int ROWS>
    struct Sums {
        Vec of[ROWS][PARTS] = {};
        inline void add(const Vec* w, const typename Kind::Input* from, long width) {
#pragma GCC unroll 12
            for (int row = 0; row < ROWS; ++row) {
                const Vec input = Kind::inputs(from + row * width);
#pragma GCC unroll 2
                for (int part = 0; part < PARTS; ++part) of[row][part] = Kind::times(w[part], input, of[row][part]);
            }
        }
    };

    template <int ROWS>
    void multiply(Sums<ROWS>& sums, long first, const Weight* weights, const char* ahead, long pace) const {
        Vec w[PARTS];
        for (long k = 0; k < width; k += Kind::STEP, weights += STEP, ahead += pace) {
            __builtin_prefetch(ahead);
            if (STEP * sizeof *weights > 64) __builtin_prefetch(ahead + pace / 2);
            Kind::weights(weights, w);
            sums.add(w, x + first * width + k, width);
        }
    }

    // Expands packed weights, and calls `use` with those of each step and the number of its first input.
    template <int BITS, class Use>
    inline void expand(const char* weights, Use use) const {
        constexpr int NUMBERS = PARTS * Kind::STEP, INPUTS = 32 / BITS / PARTS;  // of a step, of a word
        for (long k = 0; k < width; k += BLOCK) {
            Vec scale[PARTS], least[PARTS], numbers[NUMBERS], w[PARTS];
            fetch(weights + AHEAD, 2 * PANEL * sizeof(uint16_t));
            for (int part = 0; part < PARTS; ++part) {
                scale[part] = load_float16((const uint16_t*)weights + part * LANES) * (float)(1 << BITS);
                least[part] = load_float16((const uint16_t*)weights + PANEL + part * LANES) - scale[part];
            }
            weights += 2 * PANEL * sizeof(uint16_t);
            for (long j = 0; j < BLOCK; j += INPUTS, weights += sizeof(Bits)) {
                Bits words;
                std::memcpy(&words, weights, sizeof words);
                __builtin_prefetch(weights + AHEAD);
#pragma GCC unroll 4
                for (int i = 0; i < INPUTS; i += Kind::STEP) {
#pragma GCC unroll 4
                    for (int n = 0; n < NUMBERS; ++n)
                        numbers[n] = fused(fraction<BITS>(words, i * PARTS + n), scale[n / Kind::STEP], least[n / Kind::STEP]);
                    Kind::round(numbers, w);
                    use(w, k + j + i);
                }
            }
        }
    }

    // Writes the sums of some outputs of a row.
    inline void put(Vec value, long row, long column) const {
        float* to = out + row * stride + column;
        if (bias) value += load(bias + column);
        value *= scale;
        if (add) value += load(to);
        store(to, value);
    }

    template <int ROWS>
    void finish(const Sums<ROWS>& sums, long first, long column) const {
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 2
            for (int part = 0; part < PARTS; ++part) put(sums.of[row][part], first + row, column + part * LANES);
    }

    // Bytes of a panel with weights of BITS bits.
    template <int BITS>
    long bytes_of() const {
        return (width * BITS / 8 + (BITS < 16 ? width / BLOCK * 4 : 0)) * PANEL;
    }

    // Computes the columns of panels [first, last) of a matrix with weights of BITS bits.
    template <int BITS>
    void columns(const char* weights, long first, long last) const {
        static thread_local Room<Weight> room;
        constexpr bool PACKED = BITS < 16;
        const long count = (rows + ROWS_OF_A_TILE - 1) / ROWS_OF_A_TILE, steps = width / Kind::STEP;
        const long bytes = bytes_of<BITS>();
        const long whole = STEP * sizeof(Weight), part = bytes / steps / count;  // bytes fetched in a step
        Weight* const kept = PACKED && count > 1 ? room.of(width * PANEL) : nullptr;
        for (long panel = first; panel < last; ++panel) {
            const char *own = weights + panel * bytes, *next = own + bytes;
            for (long block = 0; block < count; ++block) {
                const long from = rows * block / count, to = rows * (block + 1) / count;
                const char* ahead = block ? next + (block - 1) * steps * part : own + AHEAD;
                with<ROWS_OF_A_TILE>(to - from, [&](auto size) {
                    Sums<size> sums;
                    if constexpr (PACKED)
                        if (!block) {
                            const auto use = [&](const Vec* w, long k) {
                                if (kept) Kind::keep(w, kept + k * PANEL);
                                sums.add(w, x + from * width + k, width);
                            };
                            expand<BITS>(own, use);
                            return finish<size>(sums, from, panel * PANEL);
                        }
                    multiply<size>(sums, from, PACKED ? kept : (const Weight*)own, ahead, block ? part : whole);
                    finish<size>(sums, from, panel * PANEL);
                });
            }
        }
    }

    void panels(const void* weights, long bits, long first, long last) const {
        if constexpr (sizeof(Weight) == 2) {
            if (bits == 4) return columns<4>((const char*)weights, first, last);
            if (bits == 8) return columns<8>((const char*)weights, first, last);
        }
        columns<8 * sizeof(Weight)>((const char*)weights, first, last);
    }
};

}  // namespace
