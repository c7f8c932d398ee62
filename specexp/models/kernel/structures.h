// The structures that Python fills, with classes made from `fields` in interface.cpp.
#pragma once

#include <cstdint>

extern "C" {

struct Field {
    const char *structure, *name;  // null for a whole structure
    int64_t type, place;           // the place is the offset of a field, or the size of a structure, in bytes
};

struct Matrix {
    const void* panels;
    int64_t bits;  // of a weight: 4 or 8 in blocks, otherwise 16 or 32
};

struct Layer {
    Matrix qkv, out, gate_up, down;                              // panels of gate and up alternate
    const float *qkv_bias, *out_bias, *gate_up_bias, *down_bias;  // each may be null
    const float *norm_attention, *norm_mlp;                      // of inputs; null for none
    const float *norm_attended, *norm_mixed;                     // of the outputs of attention and MLP; null for none
    const float *norm_q, *norm_k;                                // null for none
    int64_t rotation;  // number of the table of frequencies, or -1 if positions do not rotate queries and keys
    int64_t window;    // keys that a row attends to, the latest of its path; 0 for all
};

struct Model {
    int64_t layers, hidden, heads, kv_heads, head_dim, inner, vocabulary;
    int64_t products;            // one of `Products`: the layout of the weights, and how they are multiplied
    int64_t rotations, rotated;  // tables of frequencies; numbers of a head that rotate
    int64_t norms_by_head;       // whether queries and keys are normalised by head, rather than all heads together
    int64_t has_gelu;            // the activation: tanh's approximation of GELU, rather than SiLU
    float epsilon, embedding_scale, attention_scale, residual_scale, logit_scale;
    float attention_cap, logit_cap;     // c * tanh(x / c) of scores and logits; 0 for none
    const float *frequencies, *norm;    // [rotations, rotated / 2]
    const float* rotation_scales;       // [rotations]
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
