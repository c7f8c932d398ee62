// The functions of the library that Python calls: a pass, a drafted tree, and moves in the cache.

#include <cstddef>

#include <omp.h>
#include <sys/mman.h>

#include "pass.h"

namespace {

template <class Kind>
void run_all(const Model* model, const Rows* rows, const Cache* cache, const Results* results, float* const* buffers,
             float* logits, int threads) {
    Meeting meeting;
    const Keys keys(*model, *rows, cache->capacity);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int here = omp_get_num_threads();  // may be fewer than requested
        const Pass<Kind> pass{{*model, *rows, *cache, keys, meeting, buffers[1], (typename Kind::Input*)buffers[3],
                               omp_get_thread_num(), here},
                              *results, buffers[0], buffers[2], logits};
#if HAS_TILES
        if (std::is_same_v<Kind, Tiles>) begin_tiles();
#endif
        pass.run();
#if HAS_TILES
        if (std::is_same_v<Kind, Tiles>) end_tiles();
#endif
    }
}

}  // namespace

// The type of a field: an address, a matrix, a real number or a whole number.
template <class T>
constexpr char type_of() {
    return std::is_pointer_v<T> ? 'P' : std::is_same_v<T, Matrix> ? 'M' : std::is_same_v<T, float> ? 'f' : 'q';
}

// The fields of every structure in order, then the structure itself. A matrix is part of others, so it comes first.
#define FIELD(type, field) {#type, #field, type_of<decltype(type::field)>(), offsetof(type, field)}
#define WHOLE(type) {#type, nullptr, 0, sizeof(type)}
extern "C" const Field fields[] = {
    FIELD(Matrix, panels), FIELD(Matrix, bits), WHOLE(Matrix), FIELD(Layer, qkv), FIELD(Layer, out),
    FIELD(Layer, gate_up), FIELD(Layer, down), FIELD(Layer, qkv_bias), FIELD(Layer, out_bias),
    FIELD(Layer, gate_up_bias), FIELD(Layer, down_bias), FIELD(Layer, norm_attention), FIELD(Layer, norm_mlp),
    FIELD(Layer, norm_attended), FIELD(Layer, norm_mixed), FIELD(Layer, norm_q), FIELD(Layer, norm_k),
    FIELD(Layer, rotation), FIELD(Layer, window), WHOLE(Layer), FIELD(Model, layers), FIELD(Model, hidden),
    FIELD(Model, heads), FIELD(Model, kv_heads), FIELD(Model, head_dim), FIELD(Model, inner), FIELD(Model, vocabulary),
    FIELD(Model, products), FIELD(Model, rotations), FIELD(Model, rotated), FIELD(Model, norms_by_head),
    FIELD(Model, has_gelu), FIELD(Model, epsilon), FIELD(Model, embedding_scale), FIELD(Model, attention_scale),
    FIELD(Model, residual_scale), FIELD(Model, logit_scale), FIELD(Model, attention_cap), FIELD(Model, logit_cap),
    FIELD(Model, frequencies), FIELD(Model, norm), FIELD(Model, rotation_scales), FIELD(Model, embedding),
    FIELD(Model, head), FIELD(Model, of), WHOLE(Model), FIELD(Rows, count), FIELD(Rows, answered), FIELD(Rows, past),
    FIELD(Rows, slot), FIELD(Rows, tokens), FIELD(Rows, positions), FIELD(Rows, places), FIELD(Rows, pasts),
    FIELD(Rows, slots), FIELD(Rows, starts), FIELD(Rows, lengths), FIELD(Rows, steps), FIELD(Rows, visible),
    WHOLE(Rows), FIELD(Results, best), FIELD(Results, rounded), FIELD(Results, tokens), FIELD(Results, scores),
    FIELD(Results, noise), FIELD(Results, temperature), FIELD(Results, draws), FIELD(Results, drawn),
    FIELD(Results, drawn_scores), FIELD(Results, noted), FIELD(Results, noted_layers), FIELD(Results, states),
    WHOLE(Results), FIELD(Growing, levels), FIELD(Growing, widest), FIELD(Growing, rows), FIELD(Growing, nodes),
    FIELD(Growing, parents), FIELD(Growing, ranks), FIELD(Growing, places), FIELD(Growing, given),
    FIELD(Growing, tokens), FIELD(Growing, stride), FIELD(Growing, kept), WHOLE(Growing), FIELD(Cache, storage),
    FIELD(Cache, slots), FIELD(Cache, capacity), WHOLE(Cache), {},
};

extern "C" int lanes() { return LANES; }

extern "C" int has_tiles() { return HAS_TILES; }

// The fastest products of bfloat16 weights: tiles need the system's permission, and widths of whole tiles.
extern "C" int64_t products(int whole_tiles) {
    return whole_tiles && may_use_tiles() ? TILES : HAS_PAIRS ? PAIRS : WORDS;
}

// Asks for huge pages for memory that nothing was written to yet.
extern "C" void use_huge_pages(void* from, int64_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 4096, first = ((uintptr_t)from + page - 1) / page * page;
    madvise((void*)first, (uintptr_t)from + bytes - first, MADV_HUGEPAGE);
#endif
}

extern "C" void forward(const Model* model, const Rows* rows, const Cache* cache, const Results* results,
                        float* const* buffers, float* logits, int threads) {
    const auto run = [&](auto kind) {
        run_all<decltype(kind)>(model, rows, cache, results, buffers, logits, threads);
    };
    switch (model->products) {
        case FLOATS: return run(Floats());
        case WORDS: return run(Words());
#if HAS_PAIRS
        case PAIRS: return run(Pairs());
#endif
#if HAS_TILES
        case TILES: return run(Tiles());
#endif
    }
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
    const long bytes = model->head_dim * (model->products == FLOATS ? 4 : 2);
    for (long block = 0; block < 2 * model->layers; ++block)
        for (long head = 0; head < model->kv_heads; ++head) {
            const long first = ((block * cache->slots + slot) * model->kv_heads + head) * cache->capacity + past;
            char* to = (char*)cache->storage + first * bytes;
            for (int row = 0; row < count; ++row)
                if (rows[row] != row) std::memcpy(to + row * bytes, to + rows[row] * bytes, bytes);
        }
}
