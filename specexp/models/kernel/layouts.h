// Memory layouts of weights. Each handles the weights of a panel for STEP inputs at a time. `join` makes two vectors of
// a layout out of 32 bits of each output: one float, or the bfloat16 weights of two inputs. `round` makes the weights
// of a step out of float32 numbers [part, input], and `keep` stores them in the layout.
#pragma once

#include "vectors.h"

namespace {

enum Products : int64_t { FLOATS, WORDS, PAIRS, TILES };  // the layouts, as `Model` names them

struct Floats {  // [panel, input, output]
    typedef float Weight;
    typedef float Input;
    static constexpr int STEP = 1;
    static void weights(const float* from, Vec* to) {
        to[0] = load(from);
        to[1] = load(from + LANES);
    }
    static Vec inputs(const float* from) { return all(*from); }
    static Vec times(Vec weight, Vec input, Vec sum) { return fused(weight, input, sum); }
    static void join(Bits&, Bits&) {}
};

struct Words {  // bfloat16 [panel, input, word, 2]: word i holds output i (lower half) and i + LANES (upper half)
    typedef uint16_t Weight;
    typedef float Input;
    static constexpr int STEP = 1;
    static void weights(const uint16_t* from, Vec* to) {
        Bits words;
        std::memcpy(&words, from, sizeof words);
        to[0] = (Vec)(words << 16);
        to[1] = (Vec)(words & (int32_t)0xffff0000);
    }
    static Vec inputs(const float* from) { return all(*from); }
    static Vec times(Vec weight, Vec input, Vec sum) { return fused(weight, input, sum); }
    static void round(const Vec* numbers, Vec* to) {
        for (int part = 0; part < PARTS; ++part) to[part] = (Vec)(rounded(numbers[part]) & (int32_t)0xffff0000);
    }
    static void keep(const Vec* weights, uint16_t* to) {
        const Bits words = (((Bits)weights[0] >> 16) & 0xffff) | (Bits)weights[1];
        std::memcpy(to, &words, sizeof words);
    }
    static void join(Bits& a, Bits& b) {
        const Bits first = (a & 0xffff) | (b << 16);
        b = ((a >> 16) & 0xffff) | (b & (int32_t)0xffff0000), a = first;
    }
};

struct Tiles {  // bfloat16 [panel, input / 2, output, 2]: inputs are rounded to bfloat16 and multiplied as in tiles.h
    typedef uint16_t Weight;
    typedef uint16_t Input;
    static constexpr int STEP = 2;
    static void round(const Vec* numbers, Vec* to) {
#if HAS_AVX512 && defined(__AVX512BF16__)
        const Bits lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        for (int part = 0; part < PARTS; ++part, numbers += STEP) {
            const __m512bh both = _mm512_cvtne2ps_pbh((__m512)numbers[1], (__m512)numbers[0]);
            to[part] = (Vec)_mm512_permutexvar_epi16((__m512i)(lane | (lane + LANES) << 16), (__m512i)both);
        }
#else
        for (int part = 0; part < PARTS; ++part, numbers += STEP)
            to[part] = (Vec)(((rounded(numbers[0]) >> 16) & 0xffff) | (rounded(numbers[1]) & (int32_t)0xffff0000));
#endif
    }
    static void keep(const Vec* weights, uint16_t* to) { std::memcpy(to, weights, PARTS * sizeof(Vec)); }
    static void join(Bits&, Bits&) {}
};

#if HAS_AVX512 && defined(__AVX512BF16__)
#define HAS_PAIRS 1
struct Pairs : Tiles {  // the same layout: two inputs are multiplied at once
    static void weights(const uint16_t* from, Vec* to) {
        to[0] = load((const float*)from);
        to[1] = load((const float*)from + LANES);
    }
    static Vec inputs(const uint16_t* from) {
        int32_t two;
        std::memcpy(&two, from, sizeof two);
        return (Vec)(Bits{} + two);
    }
    static Vec times(Vec weight, Vec input, Vec sum) {
        return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weight, (__m512bh)input);
    }
};
#else
#define HAS_PAIRS 0
#endif

}  // namespace
