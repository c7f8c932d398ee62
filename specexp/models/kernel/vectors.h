// Vectors of LANES floats. Operations are explicit, because compilers would round differently from place to place.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__FMA__)
#include <immintrin.h>
#endif
#ifndef LANES  // the caller sets 8 if the model's sizes are not multiples of 32, a panel of 16 lanes
#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif
#endif
#if defined(__AVX512F__) && LANES == 16  // a test may set 16 elsewhere
#define HAS_AVX512 1
#else
#define HAS_AVX512 0
#endif

namespace {

constexpr int PARTS = 2, PANEL = PARTS * LANES;

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

inline Vec load(const float* from) {
    Vec value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline Vec load(const uint16_t* from) {  // bfloat16 is the upper half of a float
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
#if HAS_AVX512  // compilers convert in two halves
    return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)halves), 16);
#else
    return (Vec)(__builtin_convertvector(halves, Bits) << 16);
#endif
}

inline void store(float* to, Vec value) { std::memcpy(to, &value, sizeof value); }

// Rounds to bfloat16, the upper half of the result: to nearest, ties to even.
inline Bits rounded(Vec value) { return (Bits)value + 0x7fff + (((Bits)value >> 16) & 1); }

inline void store(uint16_t* to, Vec value) {
    const Bits bits = rounded(value) >> 16;
#if HAS_AVX512
    const Halves halves = (Halves)_mm512_cvtepi32_epi16((__m512i)bits);
#else
    const Halves halves = __builtin_convertvector(bits & 0xffff, Halves);
#endif
    std::memcpy(to, &halves, sizeof halves);
}

inline Vec all(float value) { return value - Vec{}; }  // minus, because adding 0 would change -0 and cost an addition

inline Vec load_float16(const uint16_t* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    const Bits bits = __builtin_convertvector(halves, Bits);
    return (Vec)((Bits)((Vec)((bits & 0x7fff) << 13) * 0x1p112f) | (bits & 0x8000) << 16);
}

inline bool any(Bits values) {
    int64_t words[sizeof values / 8], found = 0;
    std::memcpy(words, &values, sizeof values);
    for (int64_t word : words) found |= word;
    return found != 0;
}

// Fused multiply-add if the processor has it. Explicit, because a compiler would fuse only in some places.
inline Vec fused(Vec a, Vec b, Vec c) {
#if HAS_AVX512
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && LANES == 8
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

inline float sum(Vec value) {
    float parts[LANES];
    store(parts, value);
    for (int half = LANES / 2; half; half /= 2)
        for (int k = 0; k < half; ++k) parts[k] += parts[k + half];
    return parts[0];
}

// Transposes LANES rows of LANES numbers.
inline void transpose(Bits* rows) {
#if HAS_AVX512
    Bits lane;
    for (int k = 0; k < LANES; ++k) lane[k] = k;
#pragma GCC unroll 4
    for (int step = 1; step < LANES; step *= 2) {
        const Bits low = lane + (((lane & step) != 0) & (LANES - step)), high = low + step;
#pragma GCC unroll 16
        for (int row = 0; row < LANES; ++row)
            if (!(row & step)) {
                const __m512i a = (__m512i)rows[row], b = (__m512i)rows[row + step];
                rows[row] = (Bits)_mm512_permutex2var_epi32(a, (__m512i)low, b);
                rows[row + step] = (Bits)_mm512_permutex2var_epi32(a, (__m512i)high, b);
            }
    }
#else
    for (int row = 0; row < LANES; ++row)
        for (int k = 0; k < row; ++k) {
            const int32_t value = rows[row][k];
            rows[row][k] = rows[k][row], rows[k][row] = value;
        }
#endif
}

// Fetches memory that is used soon.
inline void fetch(const void* from, long bytes) {
#pragma GCC unroll 2
    for (long line = 0; line < bytes; line += 64) __builtin_prefetch((const char*)from + line);
}

inline Vec exponential(Vec x) {
    x = x < -87.f ? Vec{} - 87.f : x;
    x = x > 88.f ? Vec{} + 88.f : x;
    const float magic = 12582912.f;  // adding it rounds to whole numbers
    Vec whole = x * 1.44269504f + magic;
    Bits power = (Bits)whole - (Bits)(Vec{} + magic);
    whole -= magic;
    Vec r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    Vec p = Vec{} + 1.9875691500e-4f;
    for (float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = fused(p, r, all(next));
    p = p * r * r + r + 1.f;
    return p * (Vec)((power + 127) << 23);
}

// Limits values softly: cap * tanh(value / cap).
inline Vec capped(Vec value, float cap) { return cap - 2.f * cap / (exponential(value * (2.f / cap)) + 1.f); }

}  // namespace
