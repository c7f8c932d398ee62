// Attention of the rows of a pass to the keys in the cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tiles.h"
#include "structures.h"

namespace {

constexpr long KEYS = 128;  // keys that a thread takes at once
constexpr long TOGETHER = 16;  // rows whose attention scores are kept at once

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
struct Attention {
    typedef typename Kind::Weight W;
    typedef typename Kind::Input Input;
    const Model& m;
    const Rows& rows;
    const Cache& cache;
    const Keys& keys;
    Meeting& meeting;
    float* wide;   // [rows, stride_qkv()] queries, keys and values
    Input* mixed;  // [rows, heads, head_dim] output
    int thread, threads;

    void meet() const { meeting.meet(threads); }

    long stride_qkv() const { return ((m.heads + 2 * m.kv_heads) * m.head_dim + PANEL - 1) / PANEL * PANEL; }

    W* kept(long layer, long values, long slot, long head, long row) const {
        long outer = ((2 * layer + values) * cache.slots + slot) * m.kv_heads + head;
        return (W*)cache.storage + (outer * cache.capacity + row) * m.head_dim;
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
    float soften(float* scores, long count) const {
        for (long k = 0; m.attention_cap != 0 && k < count; k += LANES)
            store(scores + k, capped(load(scores + k), m.attention_cap));
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
    // their slot, the places of keys and the number of the first key. Keys that all rows have come once for all. The
    // keys of a query come in order, from the first that is in its window.
    template <class Work>
    void each_key(long start, long first, long last, long from, long to, long window, Work work) const {
        const long group = m.heads / m.kv_heads, slot = rows.slot_of(start + first / group);
        const long top = start + (last - 1) / group;
        long shared = rows.past_of(start + first / group), open = 0;  // keys that all rows have: [open, shared)
        for (long row = start + first / group; row <= top; ++row) {
            shared = rows.slot_of(row) != slot ? 0 : std::min(shared, rows.past_of(row));
            open = std::max(open, first_of(row, window));
        }
        open = std::min(open, shared);
        const auto part = [&](long a, long b, long row, const int32_t* places, long low, long high) {
            low = std::max(low, from), high = std::min(high, to);
            if (low < high) work(a, b, rows.slot_of(row), places + low, low, high - low);
        };
        const auto each_row = [&](auto of) {
            for (long row = start + first / group; row <= top; ++row)
                of(row, std::max(first, (row - start) * group), std::min(last, (row - start + 1) * group));
        };
        if (open) each_row([&](long row, long a, long b) { part(a, b, row, keys.order, first_of(row, window), open); });
        part(first, last, top, keys.order, open, shared);
        each_row([&](long row, long a, long b) {
            const long past = rows.past_of(row), least = first_of(row, window);
            part(a, b, row, keys.order, std::max(shared, least), past);
            part(a, b, row, keys.tails + keys.starts[row] - past, std::max(past, least), count_of(row));
        });
    }

    // The first key in a row's window. A row attends to one key at each position, so a key's number is its position.
    long first_of(long row, long window) const { return window ? std::max(0L, count_of(row) - window) : 0; }

    long count_of(long row) const { return rows.past_of(row) + keys.starts[row + 1] - keys.starts[row]; }

    // Attention of some rows, in two stages: threads divide the keys among them, and then the columns of values. Scores
    // are products with panels of keys. Each key and value is read once for all rows and for all heads that share it,
    // and stays in the CPU cache for them.
    void attend(long number, long start, long count, long window) const {
        static thread_local Room<Input> inputs;
        static thread_local Room<int32_t> packed;
        static thread_local Room<float> room;
        const long group = m.heads / m.kv_heads, queries = count * group, apart = keys.longest + LANES;
        float* const scores = keys.scores + start / TOGETHER % 2 * TOGETHER * m.heads * apart;
        const auto row_of = [&](long query) { return start + query / group; };
        long least = keys.longest;  // the first key of any row
        for (long row = start; row < start + count; ++row) least = std::min(least, first_of(row, window));
        const long skipped = least / KEYS, blocks = (keys.longest + KEYS - 1) / KEYS - skipped;
        Input* const scaled = inputs.of((queries + SIDE) * m.head_dim);  // tiles read beyond the last
        int32_t* const panel = packed.of(m.head_dim * PANEL);
        float* const few = room.of(queries * PANEL);
        Share share(m.kv_heads * blocks, thread, threads);
        for (long unit = share.first; unit < share.last; ++unit) {
            const long kv = unit / blocks, from = (unit % blocks + skipped) * KEYS;
            if (unit == share.first || unit % blocks == 0)
                for (long one = 0; one < queries; ++one) {
                    const float* at = wide + row_of(one) * stride_qkv() + (kv * group + one % group) * m.head_dim;
                    for (long d = 0; d < m.head_dim; d += LANES)
                        store(scaled + one * m.head_dim + d, load(at + d) * m.attention_scale);
                }
            for (long query = 0, end; query < queries; query = end) {
                const long own = rows.slot_of(row_of(query));
                for (end = query; end < queries && rows.slot_of(row_of(end)) == own;) end += group;
                each_key(start, query, end, from, from + KEYS, window,
                         [&](long first, long last, long slot, const int32_t* places, long key, long many) {
                             float* to = scores + (kv * queries + first) * apart + key;
                             for (long k = 0; k < many; k += PANEL) {
                                 const long count = std::min<long>(PANEL, many - k);
                                 pack(kept(number, 0, slot, kv, 0), places + k, count, panel);
                                 const Input* from = scaled + first * m.head_dim;
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
                    const long first = first_of(row_of(one), window), count = count_of(row_of(one)) - first;
                    std::memcpy(own + first, scores + (kv * queries + one) * apart + first, count * sizeof(float));
                    scales[one - query] = soften(own + first, count);
                }
            Vec sums[ROWS_OF_A_TILE][PARTS] = {};
            each_key(start, query, end, 0, keys.longest, window,
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
};

}  // namespace
