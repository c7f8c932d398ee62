// One forward pass of a Llama-like decoder over the rows of growing trees, compiled for the machine it runs on.
//
// A row is computed in the same way whichever rows share its pass: products are summed in the order of inputs, and a
// row attends to its visible keys in the order in which they were fed. The logits of a row are therefore equal bit by
// bit in plain decoding, in a tree, in a batch and in a prefill. Weights are stored in panels of two vectors of outputs,
// in the layouts of `Floats`, `Words` and `Pairs`. Vectors and fused operations are explicit, because compilers would
// round differently from place to place. All threads run one parallel region and synchronise between its stages. They
// allocate only buffers that they keep and reuse.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

#include <omp.h>
#include <sys/mman.h>
#if defined(__FMA__)
#include <immintrin.h>
#endif
#ifndef LANES  // the caller sets 8 if heads are too narrow for 16
#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif
#endif

namespace {

constexpr int PARTS = 2, PANEL = PARTS * LANES;
constexpr int ROWS_OF_A_TILE = LANES == 16 ? 12 : 6;  // their sums fit in registers with weights and an input
constexpr long KEYS = 128;                            // keys that a thread takes at once
constexpr long TOGETHER = 16;                         // rows whose attention scores are kept at once
constexpr long AHEAD = 4096;                          // bytes from a weight in use to the one that is fetched
constexpr long BLOCK = 32;                            // inputs with one scale, in weights of 4 or 8 bits

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
#if LANES == 16  // compilers convert in two halves
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
#if LANES == 16
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
#if LANES == 16
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
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
#if LANES == 16
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

// Memory layouts of weights. Each handles the weights of a panel for STEP inputs at a time. `join` makes two vectors of
// a layout out of 32 bits of each output: one float, or the bfloat16 weights of two inputs. `round` makes the weights
// of a step out of float32 numbers [part, input], and `keep` stores them in the layout.
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

#if LANES == 16 && defined(__AVX512BF16__)
#define HAS_PAIRS 1
struct Pairs {  // bfloat16 [panel, input / 2, output, 2]: inputs are rounded to bfloat16 and multiplied in pairs
    typedef uint16_t Weight;
    typedef uint16_t Input;
    static constexpr int STEP = 2;
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
    static void round(const Vec* numbers, Vec* to) {
        const Bits lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        for (int part = 0; part < PARTS; ++part, numbers += STEP) {
            const __m512bh both = _mm512_cvtne2ps_pbh((__m512)numbers[1], (__m512)numbers[0]);
            to[part] = (Vec)_mm512_permutexvar_epi16((__m512i)(lane | (lane + LANES) << 16), (__m512i)both);
        }
    }
    static void keep(const Vec* weights, uint16_t* to) { std::memcpy(to, weights, PARTS * sizeof(Vec)); }
    static void join(Bits&, Bits&) {}
};
#else
#define HAS_PAIRS 0
#endif

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

struct Share {  // the range of `count` items that one thread handles
    long first, last;
    Share(long count, int thread, int threads)
        : first(count * thread / threads), last(count * (thread + 1) / threads) {}
};

// Calls `work` with a constant: `number`, which is at least 1 and at most MOST.
template <int MOST, class Work>
inline void with(long number, Work work) {
    if constexpr (MOST > 1)
        if (number < MOST) return with<MOST - 1>(number, work);
    work(std::integral_constant<int, MOST>());
}

// A buffer that a thread keeps and reuses, at the start of a line of the CPU cache.
template <class T>
struct Room {
    std::vector<T> kept;
    T* of(long size) {
        if ((long)kept.size() < size + 64) kept.resize(size + 64);
        return (T*)(((uintptr_t)kept.data() + 63) / 64 * 64);
    }
};

// Number `place` of the BITS-bit numbers of each word, as 1 + number / 2^BITS: its bits are the first after the point.
template <int BITS>
inline Vec fraction(Bits words, int place) {
    const int shift = 23 - BITS * (place + 1);
    return (Vec)(((shift < 0 ? words >> -shift : words << shift) & (((1 << BITS) - 1) << (23 - BITS))) | 0x3f800000);
}

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
template <class Kind>
struct Product {
    typedef typename Kind::Weight Weight;
    const typename Kind::Input* x;  // [rows, width]
    long rows, width;
    float* out;  // [rows, stride]
    long stride;
    const float* bias = nullptr;
    bool add = false;  // to the values of `out`

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

    // Multiplies packed weights. Keeps the expanded ones, unless `kept` is null.
    template <int ROWS, int BITS>
    void expand(Sums<ROWS>& sums, long first, const char* weights, Weight* kept) const {
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
                    if (kept) Kind::keep(w, kept), kept += STEP;
                    sums.add(w, x + first * width + k + j + i, width);
                }
            }
        }
    }

    template <int ROWS>
    void finish(const Sums<ROWS>& sums, long first, long column) const {
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 2
            for (int part = 0; part < PARTS; ++part) {
                Vec value = sums.of[row][part];
                float* to = out + (first + row) * stride + column + part * LANES;
                if (bias) value += load(bias + column + part * LANES);
                if (add) value += load(to);
                store(to, value);
            }
    }

    // Computes the columns of panels [first, last) of a matrix with weights of BITS bits.
    template <int BITS>
    void columns(const char* weights, long first, long last) const {
        static thread_local Room<Weight> room;
        constexpr bool PACKED = BITS < 16;
        const long count = (rows + ROWS_OF_A_TILE - 1) / ROWS_OF_A_TILE, steps = width / Kind::STEP;
        const long bytes = (width * BITS / 8 + (PACKED ? width / BLOCK * 4 : 0)) * PANEL;
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
                            expand<size, BITS>(sums, from, own, kept);
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
            if (tries < 4096) _mm_pause();
            else
#endif
                std::this_thread::yield();
        }
    }
};

inline float scale_of(const float* x, long width, float epsilon) {
    Vec squares = {};
    for (long k = 0; k < width; k += LANES) squares = fused(load(x + k), load(x + k), squares);
    return 1.f / std::sqrt(sum(squares) / width + epsilon);
}

template <class Out>
void normalise(const float* x, const float* weight, Out* out, long width, float epsilon) {
    const float scale = scale_of(x, width, epsilon);
    for (long k = 0; k < width; k += LANES) store(out + k, load(x + k) * scale * load(weight + k));
}

}  // namespace

extern "C" {

struct Matrix {
    const void* panels;
    int64_t bits;  // of a weight: 4 or 8 in blocks, otherwise 16 or 32
};

struct Layer {
    Matrix qkv, out, gate_up, down;                             // panels of gate and up alternate
    const float *bias, *norm_attention, *norm_mlp, *norm_q, *norm_k;  // bias and the last two may be null
};

struct Model {
    int64_t layers, hidden, heads, kv_heads, head_dim, inner, vocabulary, is_bfloat16;
    float epsilon, rotary_scale;
    const float *frequencies, *norm;
    const void* embedding;  // [V, hidden]
    Matrix head;
    const Layer* of;
};

struct Rows {  // `count` rows, each with its own place in the cache
    int64_t count, answered;                   // the last `answered` rows get logits
    int64_t past, slot;                        // added to the numbers of every row
    const int64_t *tokens, *positions, *places, *pasts, *slots;  // place: row of the key in its slot
    const int64_t *starts, *lengths;           // attends to keys [0, past), and to key past + i ...
    const int64_t* steps;                      // first number of the row's noise, counted from results.noise
    const uint8_t* visible;                    // ... if visible[start + i] is not 0, for i < length

    long past_of(long row) const { return past + pasts[row]; }
    long slot_of(long row) const { return slot + slots[row]; }
};

struct Results {  // results computed from the logits, for the verifier and the drafter
    int64_t best;               // number of top tokens per row, the most probable first; may be 0
    uint16_t* rounded;          // output: logits in bfloat16, in rows of whole panels; null for no rounding
    int64_t* tokens;            // [answered, best], ties ordered by token id
    float* scores;              // [answered, best] their logits; the first is NaN if the row has a NaN logit
    const float* noise;         // [vocabulary] for each row from its step on; null if no tokens are drawn
    float temperature;
    int64_t draws;              // number of drawn tokens per row: those with the highest logit / temperature + noise
    int64_t* drawn;             // [answered, draws]
    float* drawn_scores;        // [answered, draws]
    int64_t noted;              // number of layers whose inputs are returned
    const int64_t* noted_layers;
    float* states;              // output: [count, noted, hidden]
};

struct Growing {  // a tree that is fed level by level; only nodes with children are fed
    int64_t levels, widest;                   // widest: most rows with logits in one pass
    const int64_t *rows, *nodes;              // [levels + 1] first fed row of each level, first node below it
    const int64_t *parents, *ranks, *places;  // for each node: row of its parent, its rank, its own row or -1
    int64_t* given;                           // tokens of all fed rows; output for rows of nodes
    int64_t* tokens;                          // output: token of each node
    int64_t stride;                           // numbers from a level's noise to the next one's
    const int64_t* kept;                      // token of each logit of a reduced head; null for all tokens
};

struct Cache {  // [2 * layers, slots, kv_heads, capacity, head_dim]
    void* storage;
    int64_t slots, capacity;
};

}  // extern "C"

namespace {

// Where the keys of each row are. Made once for a pass.
struct Keys {
    static constexpr long PADDING = 2 * PANEL;  // places that are only packed or fetched
    const int32_t *order, *tails;  // [longest] places 0, 1, 2 ...; places of the rows' visible keys after `past`
    const int32_t* starts;         // [count + 1] of each row in `tails`
    long longest;                  // most keys of a row
    float* scores;                 // [2, TOGETHER, heads, longest + LANES]

    Keys(const Model& model, const Rows& rows, long capacity) {
        static thread_local Room<int32_t> places;
        static thread_local Room<float> room;
        long most = 0, past = 0;
        for (long row = 0; row < rows.count; ++row) most += rows.lengths[row], past = std::max(past, rows.past_of(row));
        int32_t* made = places.of(rows.count + 1 + most + past + 2 * PADDING);
        starts = made, tails = made + rows.count + 1;
        int32_t* next = made + rows.count + 1;
        longest = 0;
        for (long row = 0; row < rows.count; ++row) {
            made[row] = next - tails;
            for (long k = 0; k < rows.lengths[row]; ++k)
                if (rows.visible[rows.starts[row] + k]) *next++ = rows.past_of(row) + k;
            longest = std::max(longest, rows.past_of(row) + (next - tails) - made[row]);
        }
        made[rows.count] = next - tails;
        for (long k = 0; k < PADDING; ++k) *next++ = 0;
        order = next;
        for (long k = 0; k < past + PADDING; ++k) *next++ = std::min(k, capacity - 1);
        scores = room.of((rows.count > TOGETHER ? 2 * TOGETHER : rows.count) * model.heads * (longest + LANES));
    }
};

template <class Kind>
struct Pass {
    typedef typename Kind::Weight W;
    typedef typename Kind::Input Input;
    const Model& m;
    const Rows& rows;
    const Cache& cache;
    const Results& results;
    float *x, *wide, *angles;
    Input* mixed;
    float* logits;
    const Keys& keys;
    Meeting& meeting;
    int thread, threads;

    W* kept(long layer, long values, long slot, long head, long row) const {
        long outer = ((2 * layer + values) * cache.slots + slot) * m.kv_heads + head;
        return (W*)cache.storage + (outer * cache.capacity + row) * m.head_dim;
    }

    // Computes this thread's panels of a product.
    void panels(const Input* from, long count, long width, const Matrix& matrix, long outputs, float* to, long stride,
                const float* bias, bool add) const {
        const Share share((outputs + PANEL - 1) / PANEL, thread, threads);
        const Product<Kind> product{from, count, width, to, stride, bias, add};
        product.panels(matrix.panels, matrix.bits, share.first, share.last);
    }

    // Loads embeddings, and computes the cosines and sines of each position.
    void embed() const {
        const Share share(rows.count, thread, threads);
        const long half = m.head_dim / 2;
        for (long row = share.first; row < share.last; ++row) {
            for (long k = 0; k < m.hidden; k += LANES)
                store(x + row * m.hidden + k, load((const W*)m.embedding + rows.tokens[row] * m.hidden + k));
            for (long k = 0; k < half; ++k) {
                const float angle = (rows.past + rows.positions[row]) * m.frequencies[k];
                angles[row * m.head_dim + k] = std::cos(angle) * m.rotary_scale;
                angles[row * m.head_dim + half + k] = std::sin(angle) * m.rotary_scale;
            }
        }
    }

    // Normalises rows. Every thread normalises all of them, which is cheaper than a barrier.
    const Input* norms(const float* weight, long first) const {
        static thread_local Room<Input> room;
        Input* normed = room.of((rows.count - first) * m.hidden);
        for (long row = first; row < rows.count; ++row)
            normalise(x + row * m.hidden, weight, normed + (row - first) * m.hidden, m.hidden, m.epsilon);
        return normed;
    }

    // Applies rotary embeddings to queries and keys, and writes keys and values to the cache.
    void turn(const Layer& layer, long number) const {
        const long heads = m.heads + 2 * m.kv_heads, half = m.head_dim / 2;
        const Share share(rows.count * heads, thread, threads);
        for (long unit = share.first; unit < share.last; ++unit) {
            const long row = unit / heads, head = unit % heads, key = head - m.heads;
            float* at = wide + row * stride_qkv() + head * m.head_dim;
            if (key < m.kv_heads) {
                const float* weight = key < 0 ? layer.norm_q : layer.norm_k;
                if (weight) normalise(at, weight, at, m.head_dim, m.epsilon);
                const float *cosines = angles + row * m.head_dim, *sines = cosines + half;
                for (long k = 0; k < half; k += LANES) {
                    const Vec first = load(at + k), second = load(at + k + half);
                    const Vec c = load(cosines + k), s = load(sines + k);
                    store(at + k, first * c - second * s);
                    store(at + k + half, second * c + first * s);
                }
                if (key < 0) continue;
            }
            const bool value = key >= m.kv_heads;
            W* to = kept(number, value, rows.slot_of(row), value ? key - m.kv_heads : key, rows.past + rows.places[row]);
            for (long k = 0; k < m.head_dim; k += LANES) store(to + k, load(at + k));
        }
    }

    // Packs up to PANEL keys as a panel of weights, and fetches the next ones.
    void pack(const W* keys, const int32_t* places, long count, int32_t* to) const {
        for (long d = 0; d < m.head_dim; d += LANES * 4 / sizeof(W)) {
            Bits parts[PARTS][LANES];
            for (int part = 0; part < PARTS; ++part) {
                if (part * LANES >= count) {
                    std::memset(parts[part], 0, sizeof parts[part]);
                    continue;
                }
#pragma GCC unroll 16
                for (int k = 0; k < LANES; ++k) {
                    const int32_t* place = places + part * LANES + k;
                    std::memcpy(&parts[part][k], keys + *place * m.head_dim + d, sizeof(Bits));
                    __builtin_prefetch(keys + place[PANEL] * m.head_dim + d);
                }
                transpose(parts[part]);
            }
            for (int k = 0; k < LANES; ++k, to += PANEL) {
                Kind::join(parts[0][k], parts[1][k]);
                std::memcpy(to, &parts[0][k], sizeof(Bits));
                std::memcpy(to + LANES, &parts[1][k], sizeof(Bits));
            }
        }
    }

    // Adds a panel of columns of `count` values, weighted by their attention weights, to Q sums.
    template <int Q>
    void mix(const W* values, const int32_t* places, long count, const float* shares, long apart, Vec (*to)[PARTS]) const {
        Vec sums[Q][PARTS];
        std::memcpy(sums, to, sizeof sums);
        for (long k = 0; k < count; ++k) {
            const W* value = values + places[k] * m.head_dim;
            fetch(values + places[k + LANES] * m.head_dim, PANEL * sizeof(W));
            const Vec first = load(value), second = load(value + LANES);
#pragma GCC unroll 12
            for (int q = 0; q < Q; ++q) {
                const Vec share = all(shares[q * apart + k]);
                sums[q][0] = fused(first, share, sums[q][0]);
                sums[q][1] = fused(second, share, sums[q][1]);
            }
        }
        std::memcpy(to, sums, sizeof sums);
    }

    // Replaces `count` scores by their exponentials, and returns the factor that makes attention weights of them.
    static float soften(float* scores, long count) {
        store(scores + count, all(-INFINITY));
        Vec highest = all(-INFINITY);
        for (long k = 0; k < count; k += LANES) {
            const Vec next = load(scores + k);
            highest = next > highest ? next : highest;
        }
        float most = -INFINITY;
        for (long k = 0; k < LANES; ++k) most = highest[k] > most ? highest[k] : most;
        Vec total = {};
        for (long k = 0; k < count; k += LANES) {
            const Vec e = exponential(load(scores + k) - most);
            store(scores + k, e);
            total += e;
        }
        return 1.f / sum(total);
    }

    // Calls `work` for the keys [from, to) of queries [first, last), counted from row `start`: with a range of queries,
    // their slot, the places of keys and the number of the first key. Keys that all rows have come once for all.
    template <class Work>
    void each_key(long start, long first, long last, long from, long to, Work work) const {
        const long group = m.heads / m.kv_heads, slot = rows.slot_of(start + first / group);
        const long top = start + (last - 1) / group;
        long shared = rows.past_of(start + first / group);
        for (long row = start + first / group; row <= top; ++row)
            shared = rows.slot_of(row) != slot ? 0 : std::min(shared, rows.past_of(row));
        const auto part = [&](long a, long b, long row, const int32_t* places, long low, long high) {
            low = std::max(low, from), high = std::min(high, to);
            if (low < high) work(a, b, rows.slot_of(row), places + low, low, high - low);
        };
        part(first, last, top, keys.order, 0, shared);
        for (long row = start + first / group; row <= top; ++row) {
            const long a = std::max(first, (row - start) * group), b = std::min(last, (row - start + 1) * group);
            const long past = rows.past_of(row);
            part(a, b, row, keys.order, shared, past);
            part(a, b, row, keys.tails + keys.starts[row] - past, past, count_of(row));
        }
    }

    long count_of(long row) const { return rows.past_of(row) + keys.starts[row + 1] - keys.starts[row]; }

    // Attention of some rows, in two stages: threads divide the keys among them, and then the columns of values. Scores
    // are products with panels of keys. Each key and value is read once for all rows and for all heads that share it,
    // and stays in the CPU cache for them.
    void attend(long number, long start, long count) const {
        static thread_local Room<Input> inputs;
        static thread_local Room<int32_t> packed;
        static thread_local Room<float> room;
        const long group = m.heads / m.kv_heads, queries = count * group, apart = keys.longest + LANES;
        float* const scores = keys.scores + start / TOGETHER % 2 * TOGETHER * m.heads * apart;
        const auto row_of = [&](long query) { return start + query / group; };
        const long blocks = (keys.longest + KEYS - 1) / KEYS;
        Input* const asked = inputs.of(queries * m.head_dim);
        int32_t* const panel = packed.of(m.head_dim * PANEL);
        float* const few = room.of(queries * PANEL);
        Share share(m.kv_heads * blocks, thread, threads);
        for (long unit = share.first; unit < share.last; ++unit) {
            const long kv = unit / blocks, from = unit % blocks * KEYS;
            if (unit == share.first || from == 0)
                for (long one = 0; one < queries; ++one) {
                    const float* at = wide + row_of(one) * stride_qkv() + (kv * group + one % group) * m.head_dim;
                    for (long d = 0; d < m.head_dim; d += LANES)
                        store(asked + one * m.head_dim + d, load(at + d) * (1.f / std::sqrt((float)m.head_dim)));
                }
            for (long query = 0, end; query < queries; query = end) {
                const long own = rows.slot_of(row_of(query));
                for (end = query; end < queries && rows.slot_of(row_of(end)) == own;) end += group;
                each_key(start, query, end, from, from + KEYS,
                         [&](long first, long last, long slot, const int32_t* places, long key, long many) {
                             float* to = scores + (kv * queries + first) * apart + key;
                             for (long k = 0; k < many; k += PANEL) {
                                 const long count = std::min<long>(PANEL, many - k);
                                 pack(kept(number, 0, slot, kv, 0), places + k, count, panel);
                                 const Input* from = asked + first * m.head_dim;
                                 Product<Kind> product{from, last - first, m.head_dim, to + k, apart};
                                 if (count < PANEL) product.out = few, product.stride = PANEL;
                                 product.panels(panel, 8 * sizeof(W), 0, 1);
                                 for (long one = 0; count < PANEL && one < last - first; ++one)
                                     std::memcpy(to + one * apart + k, few + one * PANEL, count * sizeof(float));
                             }
                         });
            }
        }
        meet();
        const long columns = m.head_dim / PANEL, tiles = (queries + ROWS_OF_A_TILE - 1) / ROWS_OF_A_TILE;
        share = Share(m.kv_heads * tiles * columns, thread, threads);
        float* const shares = room.of(ROWS_OF_A_TILE * apart);
        float scales[ROWS_OF_A_TILE];
        for (long unit = share.first; unit < share.last; ++unit) {
            const long kv = unit / columns / tiles, tile = unit / columns % tiles, column = unit % columns * PANEL;
            const long query = queries * tile / tiles, end = queries * (tile + 1) / tiles;
            if (unit == share.first || column == 0)
                for (long one = query; one < end; ++one) {
                    float* own = shares + (one - query) * apart;
                    const long count = count_of(row_of(one));
                    std::memcpy(own, scores + (kv * queries + one) * apart, count * sizeof(float));
                    scales[one - query] = soften(own, count);
                }
            Vec sums[ROWS_OF_A_TILE][PARTS] = {};
            each_key(start, query, end, 0, keys.longest,
                     [&](long first, long last, long slot, const int32_t* places, long key, long many) {
                         with<ROWS_OF_A_TILE>(last - first, [&](auto size) {
                             mix<size>(kept(number, 1, slot, kv, 0) + column, places, many,
                                       shares + (first - query) * apart + key, apart, sums + first - query);
                         });
                     });
            for (long one = query; one < end; ++one) {
                Input* to = mixed + (row_of(one) * m.heads + kv * group + one % group) * m.head_dim + column;
                for (int part = 0; part < PARTS; ++part)
                    store(to + part * LANES, sums[one - query][part] * scales[one - query]);
            }
        }
    }

    long stride_qkv() const { return ((m.heads + 2 * m.kv_heads) * m.head_dim + PANEL - 1) / PANEL * PANEL; }

    // Computes silu(gate) * up for this thread's pairs of panels.
    void gate(const Input* normed, const Matrix& matrix) const {
        const long pairs = (m.inner + PANEL - 1) / PANEL, width = m.hidden;
        const Share share(pairs, thread, threads);
        const long first = share.first, count = share.last - share.first, stride = 2 * pairs * PANEL;
        const Product<Kind> product{normed, rows.count, width, wide, stride, nullptr, false};
        product.panels(matrix.panels, matrix.bits, 2 * first, 2 * (first + count));
        for (long row = 0; row < rows.count; ++row)
            for (long pair = first; pair < first + count; ++pair)
                for (int part = 0; part < PARTS; ++part) {
                    const float* at = wide + row * stride + pair * 2 * PANEL + part * LANES;
                    const Vec g = load(at), up = load(at + PANEL);
                    store(mixed + row * pairs * PANEL + pair * PANEL + part * LANES, g / (exponential(-g) + 1.f) * up);
                }
    }

    void meet() const { meeting.meet(threads); }

    // Copies this thread's rows after `number` layers, if a drafter reads them.
    void note(long number) const {
        const Share share(rows.count, thread, threads);
        for (long one = 0; one < results.noted; ++one)
            if (results.noted_layers[one] == number)
                for (long row = share.first; row < share.last; ++row)
                    std::memcpy(results.states + (row * results.noted + one) * m.hidden, x + row * m.hidden,
                                m.hidden * sizeof(float));
    }

    void run() const {
        const long hidden = m.hidden, inner = (m.inner + PANEL - 1) / PANEL * PANEL;
        embed();
        meet();
        note(0);
        for (long number = 0; number < m.layers; ++number) {
            const Layer& layer = m.of[number];
            panels(norms(layer.norm_attention, 0), rows.count, hidden, layer.qkv, (m.heads + 2 * m.kv_heads) * m.head_dim,
                   wide, stride_qkv(), layer.bias, false);
            meet();
            turn(layer, number);
            meet();
            for (long row = 0; row < rows.count; row += TOGETHER) attend(number, row, std::min(TOGETHER, rows.count - row));
            meet();
            panels(mixed, rows.count, m.heads * m.head_dim, layer.out, hidden, x, hidden, nullptr, true);
            meet();
            gate(norms(layer.norm_mlp, 0), layer.gate_up);
            meet();
            panels(mixed, rows.count, inner, layer.down, hidden, x, hidden, nullptr, true);
            meet();
            note(number + 1);
        }
        panels(norms(m.norm, rows.count - rows.answered), rows.answered, hidden, m.head, m.vocabulary, logits,
               (m.vocabulary + PANEL - 1) / PANEL * PANEL, nullptr, false);
        if (results.best || results.rounded || results.noise) {
            meet();
            read();
        }
    }

    // Rounds this thread's rows of logits and finds their top tokens.
    void read() const {
        const long stride = (m.vocabulary + PANEL - 1) / PANEL * PANEL;
        const Share share(rows.answered, thread, threads);
        for (long row = share.first; row < share.last; ++row) {
            float* from = logits + row * stride;
            if (results.rounded)
                for (long k = 0; k < stride; k += LANES) {
                    uint16_t* to = results.rounded + row * stride + k;
                    store(to, load(from + k));
                    store(from + k, load(to));  // tokens are chosen from the rounded logits, which are returned
                }
            const long best = results.best;
            if (best) choose(Given{from}, best, results.tokens + row * best, results.scores + row * best);
            if (results.noise) {
                const long step = rows.steps[rows.count - rows.answered + row];
                const Noisy noisy{from, results.noise + step, results.temperature};
                const long place = row * results.draws;
                choose(noisy, results.draws, results.drawn + place, results.drawn_scores + place);
            }
        }
    }

    struct Given {
        const float* from;
        Vec at(long k) const { return load(from + k); }
        float one(long k) const { return from[k]; }
    };

    struct Noisy {
        const float *from, *noise;
        float temperature;
        Vec at(long k) const { return load(from + k) / temperature + load(noise + k); }
        float one(long k) const { return from[k] / temperature + noise[k]; }
    };

    // Finds the top tokens of a row in order. Skips panels that have no value above the lowest found so far.
    template <class Values>
    void choose(const Values& values, long best, int64_t* tokens, float* scores) const {
        for (long k = 0; k < best; ++k) tokens[k] = 0, scores[k] = -INFINITY;
        bool odd = false;
        for (long start = 0; start < m.vocabulary; start += PANEL) {
            const bool whole = start + PANEL <= m.vocabulary;  // the noise has no padding after the vocabulary
            if (whole) {
                const Vec one = values.at(start), other = values.at(start + LANES), least = all(scores[best - 1]);
                if (!any((one > least) | (other > least) | (one != one) | (other != other))) continue;
            }
            for (long token = start; token < (whole ? start + PANEL : m.vocabulary); ++token) {
                const float value = values.one(token);
                odd |= value != value;
                long place = best;
                for (; place && value > scores[place - 1]; --place)
                    if (place < best) tokens[place] = tokens[place - 1], scores[place] = scores[place - 1];
                if (place < best) tokens[place] = token, scores[place] = value;
            }
        }
        if (odd) scores[0] = NAN;
    }
};

template <class Kind>
void run_all(const Model* model, const Rows* rows, const Cache* cache, const Results* results, float* const* buffers,
             float* logits, int threads) {
    Meeting meeting;
    const Keys keys(*model, *rows, cache->capacity);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int here = omp_get_num_threads();  // may be fewer than requested
        const Pass<Kind> pass{*model, *rows, *cache, *results, buffers[0], buffers[1], buffers[2],
                              (typename Kind::Input*)buffers[3], logits, keys, meeting, omp_get_thread_num(), here};
        pass.run();
    }
}

}  // namespace

extern "C" int lanes() { return LANES; }

extern "C" int has_pairs() { return HAS_PAIRS; }

// Asks for huge pages for memory that nothing was written to yet.
extern "C" void use_huge_pages(void* from, int64_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 4096, first = ((uintptr_t)from + page - 1) / page * page;
    madvise((void*)first, (uintptr_t)from + bytes - first, MADV_HUGEPAGE);
#endif
}

extern "C" void forward(const Model* model, const Rows* rows, const Cache* cache, const Results* results,
                        float* const* buffers, float* logits, int threads) {
    if (!model->is_bfloat16) return run_all<Floats>(model, rows, cache, results, buffers, logits, threads);
#if HAS_PAIRS
    run_all<Pairs>(model, rows, cache, results, buffers, logits, threads);
#else
    run_all<Words>(model, rows, cache, results, buffers, logits, threads);
#endif
}

// Drafts a whole tree: feeds one level after the other, and gives each node the candidate of its rank. `results` has
// buffers for one level; `results->noise` is that of the first level. Returns 1 if a logit is NaN.
extern "C" int grow(const Model* model, const Rows* rows, const Cache* cache, const Results* results,
                    const Growing* growing, float* const* buffers, float* logits, int threads) {
    for (long level = 0; level < growing->levels; ++level) {
        const long first = growing->rows[level], count = growing->rows[level + 1] - first;
        const long answered = level ? count : 1;  // only the root, the last pending token, has children
        const Rows part{count, answered, rows->past, rows->slot, rows->tokens + first, rows->positions + first,
                        rows->places + first, rows->pasts + first, rows->slots + first, rows->starts + first,
                        rows->lengths + first, rows->steps + first, rows->visible};
        Results own = *results;
        if (own.noise) own.noise += level * growing->stride;
        forward(model, &part, cache, &own, buffers, logits, threads);
        const long best = results->noise ? results->draws : results->best, last = first + count - answered;
        const int64_t* chosen = results->noise ? results->drawn : results->tokens;
        const float* scores = results->noise ? results->drawn_scores : results->scores;
        for (long row = 0; row < answered; ++row)
            if (scores[row * best] != scores[row * best]) return 1;
        for (long node = growing->nodes[level]; node < growing->nodes[level + 1]; ++node) {
            int64_t token = chosen[(growing->parents[node] - last) * best + growing->ranks[node]];
            if (growing->kept) token = growing->kept[token];
            growing->tokens[node] = token;
            if (growing->places[node] >= 0) growing->given[growing->places[node]] = token;
        }
    }
    return 0;
}

// Moves some rows of a slot's last pass directly after its `past` committed rows. `rows` must be ascending.
extern "C" void keep(const Model* model, const Cache* cache, int64_t slot, int64_t past, const int64_t* rows, int count) {
    const long bytes = model->head_dim * (model->is_bfloat16 ? 2 : 4);
    for (long block = 0; block < 2 * model->layers; ++block)
        for (long head = 0; head < model->kv_heads; ++head) {
            const long first = ((block * cache->slots + slot) * model->kv_heads + head) * cache->capacity + past;
            char* to = (char*)cache->storage + first * bytes;
            for (int row = 0; row < count; ++row)
                if (rows[row] != row) std::memcpy(to + row * bytes, to + rows[row] * bytes, bytes);
        }
}
