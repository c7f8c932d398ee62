// One forward pass of a Llama-like decoder over the rows of growing trees, compiled for the machine it runs on.
//
// A row is computed in the same way whichever rows share its pass: products are summed in the order of inputs, and a
// row attends to its visible keys in the order in which they were fed. The logits of a row are therefore equal bit by
// bit in plain decoding, in a tree, in a batch and in a prefill. Weights are stored in panels of two vectors of outputs,
// in the layouts of `Floats`, `Words` and `Pairs`. Vectors and fused operations are explicit, because compilers would
// round differently from place to place. All threads run one parallel region and synchronise between its stages. They
// allocate only buffers that they keep and reuse.
#pragma once

#include <cmath>
#include <cstring>

#include "attention.h"

namespace {

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

template <class Kind>
struct Pass : Attention<Kind> {
    typedef Attention<Kind> Base;
    using typename Base::Input, typename Base::W;
    using Base::m, Base::rows, Base::cache, Base::wide, Base::mixed, Base::thread, Base::threads;
    using Base::attend, Base::kept, Base::meet, Base::stride_qkv;
    const Results& results;
    float *x, *angles, *logits;

    // Computes this thread's panels of a product.
    void panels(const Product<Kind>& product, const Matrix& matrix, long outputs) const {
        const Share share((outputs + PANEL - 1) / PANEL, thread, threads);
        product.panels(matrix.panels, matrix.bits, share.first, share.last);
    }

    // Adds a product to the rows of `x`, after a norm if there is one.
    void add(const Input* from, long width, const Matrix& matrix, const float* bias, const float* norm) const {
        if (!norm) return panels({from, rows.count, width, x, m.hidden, bias, true, m.residual_scale}, matrix, m.hidden);
        panels({from, rows.count, width, wide, m.hidden, bias}, matrix, m.hidden);
        meet();
        const Share share(rows.count, thread, threads);
        for (long row = share.first; row < share.last; ++row) {
            float *made = wide + row * m.hidden, *to = x + row * m.hidden;
            normalise(made, norm, made, m.hidden, m.epsilon);
            for (long k = 0; k < m.hidden; k += LANES) store(to + k, load(to + k) + load(made + k));
        }
    }

    // Loads embeddings, and computes the cosines and sines of each position.
    void embed() const {
        const Share share(rows.count, thread, threads);
        const long half = m.rotated / 2;
        for (long row = share.first; row < share.last; ++row) {
            for (long k = 0; k < m.hidden; k += LANES)
                store(x + row * m.hidden + k,
                      load((const W*)m.embedding + rows.tokens[row] * m.hidden + k) * m.embedding_scale);
            for (long table = 0; table < m.rotations; ++table)
                for (long k = 0; k < half; ++k) {
                    const float angle = (rows.past + rows.positions[row]) * m.frequencies[table * half + k];
                    float* to = angles + (row * m.rotations + table) * m.rotated + k;
                    to[0] = std::cos(angle) * m.rotation_scales[table];
                    to[half] = std::sin(angle) * m.rotation_scales[table];
                }
        }
    }

    // Normalises rows if there is a norm. Every thread normalises all of them, which is cheaper than a barrier.
    const Input* norms(const float* weight, long first) const {
        static thread_local Room<Input> room;
        const long size = (rows.count - first) * m.hidden;
        Input* normed = room.of(size);
        if (!weight)
            for (long k = 0; k < size; k += LANES) store(normed + k, load(x + first * m.hidden + k));
        for (long row = first; weight && row < rows.count; ++row)
            normalise(x + row * m.hidden, weight, normed + (row - first) * m.hidden, m.hidden, m.epsilon);
        return normed;
    }

    // Normalises and rotates queries and keys, and writes keys and values to the cache.
    void turn(const Layer& layer, long number) const {
        const long heads = m.heads + 2 * m.kv_heads, half = m.rotated / 2;
        const long together = m.norms_by_head ? 1 : heads;  // heads of a row that one thread takes
        const Share share(rows.count * heads / together, thread, threads);
        for (long unit = share.first * together; unit < share.last * together; ++unit) {
            const long row = unit / heads, head = unit % heads, key = head - m.heads;
            float* at = wide + row * stride_qkv() + head * m.head_dim;
            if (key < m.kv_heads) {
                const float* weight = key < 0 ? layer.norm_q : layer.norm_k;
                if (weight && m.norms_by_head) normalise(at, weight, at, m.head_dim, m.epsilon);
                if (weight && !m.norms_by_head && (head == 0 || key == 0))  // the others follow in memory
                    normalise(at, weight, at, (head ? m.kv_heads : m.heads) * m.head_dim, m.epsilon);
                const float *cosines = angles + (row * m.rotations + layer.rotation) * m.rotated, *sines = cosines + half;
                for (long k = 0; layer.rotation >= 0 && k < half; k += LANES) {
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

    // Computes activation(gate) * up for this thread's pairs of panels. Both activations are gate * sigmoid(inner).
    void gate(const Input* normed, const Matrix& matrix, const float* bias) const {
        const long pairs = (m.inner + PANEL - 1) / PANEL, width = m.hidden;
        const Share share(pairs, thread, threads);
        const long first = share.first, count = share.last - share.first, stride = 2 * pairs * PANEL;
        const Product<Kind> product{normed, rows.count, width, wide, stride, bias};
        product.panels(matrix.panels, matrix.bits, 2 * first, 2 * (first + count));
        for (long row = 0; row < rows.count; ++row)
            for (long pair = first; pair < first + count; ++pair)
                for (int part = 0; part < PARTS; ++part) {
                    const float* at = wide + row * stride + pair * 2 * PANEL + part * LANES;
                    const Vec g = load(at), up = load(at + PANEL);
                    const Vec inner = m.has_gelu ? g * (0.0713548163f * g * g + 1.59576912f) : g;
                    store(mixed + row * pairs * PANEL + pair * PANEL + part * LANES, g / (exponential(-inner) + 1.f) * up);
                }
    }

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
        const long inner = (m.inner + PANEL - 1) / PANEL * PANEL;
        embed();
        meet();
        note(0);
        for (long number = 0; number < m.layers; ++number) {
            const Layer& layer = m.of[number];
            const long projected = (m.heads + 2 * m.kv_heads) * m.head_dim;
            panels({norms(layer.norm_attention, 0), rows.count, m.hidden, wide, stride_qkv(), layer.qkv_bias}, layer.qkv,
                   projected);
            meet();
            turn(layer, number);
            meet();
            for (long row = 0; row < rows.count; row += TOGETHER)
                attend(number, row, std::min(TOGETHER, rows.count - row), layer.window);
            meet();
            add(mixed, m.heads * m.head_dim, layer.out, layer.out_bias, layer.norm_attended);
            meet();
            gate(norms(layer.norm_mlp, 0), layer.gate_up, layer.gate_up_bias);
            meet();
            add(mixed, inner, layer.down, layer.down_bias, layer.norm_mixed);
            meet();
            note(number + 1);
        }
        answer();
        if (results.best || results.rounded || results.noise) {
            meet();
            read();
        }
    }

    // Computes this thread's columns of the logits of the last rows.
    void answer() const {
        const long count = (m.vocabulary + PANEL - 1) / PANEL, stride = count * PANEL;
        const Input* normed = norms(m.norm, rows.count - rows.answered);
        panels({normed, rows.answered, m.hidden, logits, stride, nullptr, false, m.logit_scale}, m.head, m.vocabulary);
        if (m.logit_cap == 0) return;
        const Share share(count, thread, threads);
        for (long row = 0; row < rows.answered; ++row)
            for (long k = share.first * PANEL; k < share.last * PANEL; k += LANES)
                store(logits + row * stride + k, capped(load(logits + row * stride + k), m.logit_cap));
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

}  // namespace
