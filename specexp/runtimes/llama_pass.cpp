// One forward pass of a Llama-like decoder over the rows of growing trees, compiled for the machine it runs on.
//
// Every row is computed alike, whatever shares its pass: a product is summed in the order of its inputs, and a row
// attends to the keys it sees in the order in which they were fed. So the logits of a row are the same bit for bit in
// plain decoding, in a tree, in a batch and in a prefill. Weights stand in panels of 16 outputs, [panel, input, 16] (in
// bfloat16 output i of a panel beside i + 8). Vectors and fused operations are spelt out, since a compiler's own round
// here so and there otherwise. All threads go through one parallel region and meet at barriers; nothing is allocated
// but scores, once a thread.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <omp.h>
#if defined(__FMA__)
#include <immintrin.h>
#endif

namespace {

typedef float Vec __attribute__((vector_size(32)));
typedef int32_t Bits __attribute__((vector_size(32)));
typedef uint16_t Halves __attribute__((vector_size(16)));
constexpr int LANES = 8, PANEL = 16, PARTS = PANEL / LANES;

inline Vec load(const float* from) {
    Vec value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline Vec load(const uint16_t* from) {  // bfloat16 is the upper half of a float
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return (Vec)(__builtin_convertvector(halves, Bits) << 16);
}

// Weights of 16 outputs and one input; in bfloat16 the first eight are the lower halves of eight words.
inline void load_panel(const float* from, Vec* to) {
    to[0] = load(from);
    to[1] = load(from + LANES);
}

inline void load_panel(const uint16_t* from, Vec* to) {
    Bits words;
    std::memcpy(&words, from, sizeof words);
    to[0] = (Vec)(words << 16);
    to[1] = (Vec)(words & (int32_t)0xffff0000);
}

inline void store(float* to, Vec value) { std::memcpy(to, &value, sizeof value); }

inline void store(uint16_t* to, Vec value) {  // to the nearest, ties to even
    Bits bits = (Bits)value;
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    Halves halves = __builtin_convertvector(bits & 0xffff, Halves);
    std::memcpy(to, &halves, sizeof halves);
}

inline Vec all(float value) { return Vec{value, value, value, value, value, value, value, value}; }

// One rounding where the processor has such an instruction; never left to the compiler, which fuses here and not there.
inline Vec fused(Vec a, Vec b, Vec c) {
#if defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

inline float sum(Vec value) {
    return ((value[0] + value[4]) + (value[2] + value[6])) + ((value[1] + value[5]) + (value[3] + value[7]));
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

struct Share {  // of `count` things, those of one thread
    long first, last;
    Share(long count, int thread, int threads)
        : first(count * thread / threads), last(count * (thread + 1) / threads) {}
};

// ROWS rows times PANELS panels of weights, all sums held in registers.
template <int ROWS, int PANELS, class W>
inline void tile(const float* x, long width, const W* weights, float* out, long stride, const float* bias,
                 bool add) {
    Vec sums[ROWS][PANELS][PARTS] = {};
    for (long k = 0; k < width; ++k) {
        Vec w[PANELS][PARTS];
#pragma GCC unroll 8
        for (int panel = 0; panel < PANELS; ++panel) load_panel(weights + (panel * width + k) * PANEL, w[panel]);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            const float value = x[row * width + k];
#pragma GCC unroll 8
            for (int panel = 0; panel < PANELS; ++panel)
#pragma GCC unroll 2
                for (int part = 0; part < PARTS; ++part) sums[row][panel][part] = fused(w[panel][part], all(value), sums[row][panel][part]);
        }
    }
    for (int row = 0; row < ROWS; ++row)
        for (int panel = 0; panel < PANELS; ++panel)
            for (int part = 0; part < PARTS; ++part) {
                long place = panel * PANEL + part * LANES;
                Vec value = sums[row][panel][part];
                if (bias) value += load(bias + place);
                if (add) value += load(out + row * stride + place);
                store(out + row * stride + place, value);
            }
}

// Rows [n, width] times some panels, into columns [0, 16 * panels) of `out`; the panels stay in the cache.
template <class W>
void product(const float* x, long rows, long width, const W* weights, long panels, float* out, long stride,
             const float* bias, bool add) {
    for (long panel = 0; panel < panels;) {
        const bool four = rows == 1 && panels - panel >= 4, two = rows <= 2 && panels - panel >= 2;
        const W* here = weights + panel * width * PANEL;
        float* to = out + panel * PANEL;
        const float* plus = bias ? bias + panel * PANEL : nullptr;
        if (four) {
            tile<1, 4>(x, width, here, to, stride, plus, add);
            panel += 4;
        } else if (two) {
            if (rows == 1) tile<1, 2>(x, width, here, to, stride, plus, add);
            else tile<2, 2>(x, width, here, to, stride, plus, add);
            panel += 2;
        } else {
            for (long row = 0; row < rows;) {
                const float* from = x + row * width;
                float* at = to + row * stride;
                switch (rows - row) {
                    case 1: tile<1, 1>(from, width, here, at, stride, plus, add); row += 1; break;
                    case 2: tile<2, 1>(from, width, here, at, stride, plus, add); row += 2; break;
                    case 3: tile<3, 1>(from, width, here, at, stride, plus, add); row += 3; break;
                    case 4: case 8: tile<4, 1>(from, width, here, at, stride, plus, add); row += 4; break;
                    case 5: tile<5, 1>(from, width, here, at, stride, plus, add); row += 5; break;
                    default: tile<6, 1>(from, width, here, at, stride, plus, add); row += 6;
                }
            }
            panel += 1;
        }
    }
}

inline float scale_of(const float* x, long width, float epsilon) {
    Vec squares = {};
    for (long k = 0; k < width; k += LANES) squares = fused(load(x + k), load(x + k), squares);
    return 1.f / std::sqrt(sum(squares) / width + epsilon);
}

void normalise(const float* x, const float* weight, float* out, long width, float epsilon) {
    const float scale = scale_of(x, width, epsilon);
    for (long k = 0; k < width; k += LANES) store(out + k, load(x + k) * scale * load(weight + k));
}

}  // namespace

extern "C" {

struct Layer {
    const void *qkv, *out, *gate_up, *down;                     // in panels; gate and up in turns
    const float *bias, *norm_attention, *norm_mlp, *norm_q, *norm_k;  // bias and the last two may be null
};

struct Model {
    int64_t layers, hidden, heads, kv_heads, head_dim, inner, vocabulary, is_bfloat16;
    float epsilon, rotary_scale;
    const float *frequencies, *norm;
    const void *embedding, *head;  // [V, hidden] as it is; in panels
    const Layer* of;
};

struct Rows {  // n of them, each with a place of its own
    int64_t count, answered;                   // the last `answered` rows get logits
    const int64_t *tokens, *positions, *slots, *places;  // the place is the key's row in the slot
    const int64_t *pasts, *starts, *lengths;   // sees keys [0, past), then of the slot's rows from past on ...
    const uint8_t* visible;                    // ... those whose byte in [start, start + length) is not 0
};

struct Cache {  // [2 * layers, slots, kv_heads, capacity, head_dim]
    void* storage;
    int64_t slots, capacity;
};

}  // extern "C"

namespace {

template <class W>
struct Pass {
    const Model& m;
    const Rows& rows;
    const Cache& cache;
    float *x, *normed, *mixed, *wide, *angles, *logits;
    int threads;

    W* kept(long layer, long values, long slot, long head, long row) const {
        long outer = ((2 * layer + values) * cache.slots + slot) * m.kv_heads + head;
        return (W*)cache.storage + (outer * cache.capacity + row) * m.head_dim;
    }

    // This thread's panels of a product; they start at multiples of 4 panels where that leaves nobody idle.
    void panels(const float* from, long count, long width, const void* weights, long outputs, float* to, long stride,
                const float* bias, bool add, int thread) const {
        const long all = (outputs + PANEL - 1) / PANEL, group = all >= 8 * threads ? 4 : 1;
        const Share share((all + group - 1) / group, thread, threads);
        const long first = share.first * group, last = share.last * group < all ? share.last * group : all;
        product(from, count, width, (const W*)weights + first * width * PANEL, last - first, to + first * PANEL,
                stride, bias ? bias + first * PANEL : nullptr, add);
    }

    // Embeddings, and the cosines and sines of every position.
    void embed(int thread) const {
        const Share share(rows.count, thread, threads);
        const long half = m.head_dim / 2;
        for (long row = share.first; row < share.last; ++row) {
            for (long k = 0; k < m.hidden; k += LANES)
                store(x + row * m.hidden + k, load((const W*)m.embedding + rows.tokens[row] * m.hidden + k));
            for (long k = 0; k < half; ++k) {
                const float angle = rows.positions[row] * m.frequencies[k];
                angles[row * m.head_dim + k] = std::cos(angle) * m.rotary_scale;
                angles[row * m.head_dim + half + k] = std::sin(angle) * m.rotary_scale;
            }
        }
    }

    void norms(const float* weight, long first, int thread) const {
        const Share share(rows.count - first, thread, threads);
        for (long row = first + share.first; row < first + share.last; ++row)
            normalise(x + row * m.hidden, weight, normed + row * m.hidden, m.hidden, m.epsilon);
    }

    // Turn queries and keys to their positions, and keep keys and values.
    void turn(const Layer& layer, long number, int thread) const {
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
            W* to = kept(number, value, rows.slots[row], value ? key - m.kv_heads : key, rows.places[row]);
            for (long k = 0; k < m.head_dim; k += LANES) store(to + k, load(at + k));
        }
    }

    // Keys [first, last) against ROWS queries.
    template <int ROWS>
    void dots(const float* queries, long stride, const W* keys, long first, long last, float* scores,
              long apart) const {
        const float scale = 1.f / std::sqrt((float)m.head_dim);
        for (long k = first; k < last; ++k) {
            Vec sums[ROWS] = {};
            for (long d = 0; d < m.head_dim; d += LANES) {
                const Vec key = load(keys + k * m.head_dim + d);
#pragma GCC unroll 4
                for (int row = 0; row < ROWS; ++row) sums[row] = fused(load(queries + row * stride + d), key, sums[row]);
            }
#pragma GCC unroll 4
            for (int row = 0; row < ROWS; ++row) scores[row * apart + k] = sum(sums[row]) * scale;
        }
    }

    // To ROWS answers, values [first, last), each by its share.
    template <int ROWS, int VECTORS>
    void mix(const W* values, long first, long last, const float* shares, long apart, float* to, long stride) const {
        for (long d = 0; d + VECTORS * LANES <= m.head_dim; d += VECTORS * LANES) {
            Vec sums[ROWS][VECTORS];
            for (int row = 0; row < ROWS; ++row)
                for (int part = 0; part < VECTORS; ++part) sums[row][part] = load(to + row * stride + d + part * LANES);
            for (long k = first; k < last; ++k) {
                Vec value[VECTORS];
#pragma GCC unroll 4
                for (int part = 0; part < VECTORS; ++part) value[part] = load(values + k * m.head_dim + d + part * LANES);
#pragma GCC unroll 4
                for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
                    for (int part = 0; part < VECTORS; ++part) sums[row][part] = fused(value[part], all(shares[row * apart + k]), sums[row][part]);
            }
            for (int row = 0; row < ROWS; ++row)
                for (int part = 0; part < VECTORS; ++part) store(to + row * stride + d + part * LANES, sums[row][part]);
        }
    }

    template <int ROWS>
    void mix_all(const W* values, long first, long last, const float* shares, long apart, float* to,
                 long stride) const {
        if (m.head_dim % (2 * LANES) == 0) mix<ROWS, 2>(values, first, last, shares, apart, to, stride);
        else mix<ROWS, 1>(values, first, last, shares, apart, to, stride);
    }

    // Scores become shares: their exponentials, divided by `count` of them together.
    static void soften(float* scores, long count) {
        float most = -INFINITY;
        for (long k = 0; k < count; ++k) most = scores[k] > most ? scores[k] : most;
        for (long k = 0; k < LANES; ++k) scores[count + k] = -INFINITY;
        Vec total = {};
        for (long k = 0; k < count; k += LANES) {
            const Vec e = exponential(load(scores + k) - most);
            store(scores + k, e);
            total += e;
        }
        const float scale = 1.f / sum(total);
        for (long k = 0; k < count; k += LANES) store(scores + k, load(scores + k) * scale);
    }

    // Blocks of four rows of a slot share the reading of the keys that all of them see.
    void attend(long number, int thread) const {
        static thread_local std::vector<float> room;
        const long apart = cache.capacity + LANES, blocks = (rows.count + 3) / 4, width = m.heads * m.head_dim;
        if ((long)room.size() < 4 * apart) room.resize(4 * apart);
        const Share share(blocks * m.heads, thread, threads);
        for (long unit = share.first; unit < share.last; ++unit) {
            const long head = unit / blocks, first = unit % blocks * 4, kv = head / (m.heads / m.kv_heads);
            const long slot = rows.slots[first], last = first + 4 < rows.count ? first + 4 : rows.count;
            const float* queries = wide + first * stride_qkv() + head * m.head_dim;
            float *scores = room.data(), *to = mixed + first * width + head * m.head_dim;
            long shared = last - first == 4 ? rows.pasts[first] : 0;
            for (long row = first; row < last; ++row) {
                if (rows.slots[row] != slot) shared = 0;
                if (rows.pasts[row] < shared) shared = rows.pasts[row];
            }
            const W* keys = kept(number, 0, slot, kv, 0);
            const W* values = kept(number, 1, slot, kv, 0);
            if (shared) dots<4>(queries, stride_qkv(), keys, 0, shared, scores, apart);
            for (long row = first; row < last; ++row) {
                float* own = scores + (row - first) * apart;
                const float* query = queries + (row - first) * stride_qkv();
                const long past = rows.pasts[row];
                long count = past;
                keys = kept(number, 0, rows.slots[row], kv, 0);
                dots<1>(query, 0, keys, shared, past, own, 0);
                for (long k = 0; k < rows.lengths[row]; ++k)
                    if (rows.visible[rows.starts[row] + k]) {
                        dots<1>(query, 0, keys, past + k, past + k + 1, own + count - past - k, 0);
                        ++count;
                    }
                soften(own, count);
                std::memset(to + (row - first) * width, 0, m.head_dim * sizeof(float));
            }
            if (shared) mix_all<4>(values, 0, shared, scores, apart, to, width);
            for (long row = first; row < last; ++row) {
                float *own = scores + (row - first) * apart, *at = to + (row - first) * width;
                const long past = rows.pasts[row];
                long count = past;
                values = kept(number, 1, rows.slots[row], kv, 0);
                mix_all<1>(values, shared, past, own, 0, at, 0);
                for (long k = 0; k < rows.lengths[row]; ++k)
                    if (rows.visible[rows.starts[row] + k]) {
                        mix_all<1>(values, past + k, past + k + 1, own + count - past - k, 0, at, 0);
                        ++count;
                    }
            }
        }
    }

    long stride_qkv() const { return ((m.heads + 2 * m.kv_heads) * m.head_dim + PANEL - 1) / PANEL * PANEL; }

    // silu(gate) * up of this thread's pairs of panels.
    void gate(const void* weights, int thread) const {
        const long pairs = (m.inner + PANEL - 1) / PANEL, width = m.hidden;
        const Share share(pairs, thread, threads);
        const long first = share.first, count = share.last - share.first, stride = 2 * pairs * PANEL;
        product(normed, rows.count, width, (const W*)weights + first * 2 * width * PANEL, 2 * count,
                wide + first * 2 * PANEL, stride, nullptr, false);
        for (long row = 0; row < rows.count; ++row)
            for (long pair = first; pair < first + count; ++pair)
                for (int part = 0; part < PARTS; ++part) {
                    const float* at = wide + row * stride + pair * 2 * PANEL + part * LANES;
                    const Vec g = load(at), up = load(at + PANEL);
                    store(mixed + row * pairs * PANEL + pair * PANEL + part * LANES, g / (exponential(-g) + 1.f) * up);
                }
    }

    void run(int thread) const {
        const long hidden = m.hidden, inner = (m.inner + PANEL - 1) / PANEL * PANEL;
        const long first = rows.count - rows.answered;
        embed(thread);
#pragma omp barrier
        for (long number = 0; number < m.layers; ++number) {
            const Layer& layer = m.of[number];
            norms(layer.norm_attention, 0, thread);
#pragma omp barrier
            panels(normed, rows.count, hidden, layer.qkv, (m.heads + 2 * m.kv_heads) * m.head_dim, wide, stride_qkv(),
                   layer.bias, false, thread);
#pragma omp barrier
            turn(layer, number, thread);
#pragma omp barrier
            attend(number, thread);
#pragma omp barrier
            panels(mixed, rows.count, m.heads * m.head_dim, layer.out, hidden, x, hidden, nullptr, true, thread);
#pragma omp barrier
            norms(layer.norm_mlp, 0, thread);
#pragma omp barrier
            gate(layer.gate_up, thread);
#pragma omp barrier
            panels(mixed, rows.count, inner, layer.down, hidden, x, hidden, nullptr, true, thread);
#pragma omp barrier
        }
        norms(m.norm, first, thread);
#pragma omp barrier
        panels(normed + first * hidden, rows.answered, hidden, m.head, m.vocabulary, logits,
               (m.vocabulary + PANEL - 1) / PANEL * PANEL, nullptr, false, thread);
    }
};

template <class W>
void run_all(const Model* model, const Rows* rows, const Cache* cache, float* const* buffers, float* logits,
             int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int here = omp_get_num_threads();  // may be fewer than were asked for
        const Pass<W> pass{*model, *rows, *cache, buffers[0], buffers[1], buffers[2], buffers[3], buffers[4], logits, here};
        pass.run(omp_get_thread_num());
    }
}

}  // namespace

extern "C" void forward(const Model* model, const Rows* rows, const Cache* cache, float* const* buffers,
                        float* logits, int threads) {
    if (model->is_bfloat16) run_all<uint16_t>(model, rows, cache, buffers, logits, threads);
    else run_all<float>(model, rows, cache, buffers, logits, threads);
}
