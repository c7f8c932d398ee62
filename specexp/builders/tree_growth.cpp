// The inner loops of samplings.py on the same arrays, with the same order of comparisons and sums: bit-identical.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

using i64 = std::int64_t;

struct Growth {  // mirrored by compiled_samplings.py
    // samplings
    double *key, *weight;
    i64 *depth, *drafted, *parent, *rank, *token;
    float *log_prob;
    // drafted rows
    i64 *row_token, *row_parent, *row_rank;
    float *row_log_prob;
    double *row_weight;
    i64 *row_depth, *row_count;
    double *row_open;
    double *best;  // keys of the best samplings, in any order
    i64 size, rows, best_size, budget, drawn;
    double lowest, used_up;
};

struct Field {
    const char *name;
    i64 offset, size;
};

// The structure with its size, and every field with its offset and size, in bytes.
#define FIELD(field) {"Growth." #field, offsetof(Growth, field), sizeof(Growth::field)}
extern "C" const Field fields[] = {
    FIELD(key), FIELD(weight), FIELD(depth), FIELD(drafted), FIELD(parent), FIELD(rank), FIELD(token), FIELD(log_prob),
    FIELD(row_token), FIELD(row_parent), FIELD(row_rank), FIELD(row_log_prob), FIELD(row_weight), FIELD(row_depth),
    FIELD(row_count), FIELD(row_open), FIELD(best), FIELD(size), FIELD(rows), FIELD(best_size), FIELD(budget),
    FIELD(drawn), FIELD(lowest), FIELD(used_up), {"Growth", 0, sizeof(Growth)}, {},
};

namespace {

// Keeps the `count` largest keys and returns the least of them, or 0 if there are fewer keys.
double keep_largest(std::vector<double> &keys, i64 count) {
    if (static_cast<i64>(keys.size()) < count) return 0.0;
    std::nth_element(keys.begin(), keys.begin() + (count - 1), keys.end(), std::greater<double>());
    keys.resize(count);
    return keys.back();
}

}  // namespace

// Adds the answers [f, j] for rows. The columns of samplings must have room for f * j more.
extern "C" void add(Growth *g, const i64 *rows, i64 f, const i64 *tokens, const float *log_probs,
                    const double *probability, i64 j, i64 k) {
    std::vector<double> keys(g->best, g->best + g->best_size);
    for (i64 number = 0; number < f; ++number) {
        const i64 row = rows[number], answered = g->row_count[row];
        const i64 *said = tokens + number * j;
        const float *logs = log_probs + number * j;
        const double *of = probability + number * j;
        const double weight = g->row_weight[row];
        i64 count = 0;
        for (i64 at = 0; at < j; ++at) count += said[at] >= 0;
        double elder = 0.0;  // probability mass of the elder siblings
        for (i64 at = 0; at < j; ++at) {
            if (said[at] < 0) continue;
            double key = of[at], child = of[at];
            if (g->drawn) {
                key = std::max(1.0 - elder, 0.0);
                child = std::min(of[at], key);
                elder += of[at];
            }
            key *= weight;
            child *= weight;
            if (at < answered || !(key >= g->lowest)) continue;
            const i64 to = g->size++;
            g->key[to] = key;
            g->weight[to] = child;
            g->depth[to] = g->row_depth[row] + 1;
            g->drafted[to] = -1;
            g->parent[to] = row;
            g->rank[to] = at;
            g->token[to] = said[at];
            g->log_prob[to] = logs[at];
            keys.push_back(key);
        }
        double following = count == k && count > 0 ? of[count - 1] : 0.0;
        if (g->drawn) following = elder < 1.0 - g->used_up ? std::max(1.0 - elder, 0.0) : 0.0;
        g->row_open[row] = count > answered && count < g->budget ? weight * following : 0.0;
        g->row_count[row] = count;
    }
    const double least = keep_largest(keys, g->budget);
    g->best_size = static_cast<i64>(keys.size());
    std::copy(keys.begin(), keys.end(), g->best);
    if (g->best_size == g->budget) g->lowest = least;
}

// Appends the nodes of samplings to the drafted rows. The columns of rows must have room for `count` more.
extern "C" void draft(Growth *g, const i64 *samplings, i64 count) {
    for (i64 number = 0; number < count; ++number) {
        const i64 from = samplings[number], to = g->rows++;
        g->row_token[to] = g->token[from];
        g->row_parent[to] = g->parent[from];
        g->row_rank[to] = g->rank[from];
        g->row_log_prob[to] = g->log_prob[from];
        g->row_weight[to] = g->weight[from];
        g->row_depth[to] = g->depth[from];
        g->row_count[to] = 0;
        g->row_open[to] = 0.0;
        g->drafted[from] = to;
    }
}

// Writes the rows that need more candidates, the samplings to be drafted (best first) and both counts;
// returns the least key that can enter the tree.
extern "C" double waiting(Growth *g, i64 max_depth, i64 *more, i64 *chosen, i64 *counts) {
    if (g->size > g->budget + g->budget / 4) {
        i64 kept = 0;
        for (i64 at = 0; at < g->size; ++at) {
            if (!(g->key[at] >= g->lowest)) continue;
            g->key[kept] = g->key[at];
            g->weight[kept] = g->weight[at];
            g->depth[kept] = g->depth[at];
            g->drafted[kept] = g->drafted[at];
            g->parent[kept] = g->parent[at];
            g->rank[kept] = g->rank[at];
            g->token[kept] = g->token[at];
            g->log_prob[kept] = g->log_prob[at];
            ++kept;
        }
        g->size = kept;
    }
    std::vector<i64> undrafted;
    std::vector<double> keys(g->best, g->best + g->best_size);
    for (i64 at = 0; at < g->size; ++at) {
        if (g->drafted[at] >= 0 || g->depth[at] >= max_depth) continue;
        undrafted.push_back(at);
        if (g->weight[at] >= g->lowest) keys.push_back(g->weight[at]);
    }
    for (i64 row = 0; row < g->rows; ++row)
        if (g->row_open[row] >= g->lowest) keys.push_back(g->row_open[row]);
    const bool full = g->best_size == g->budget;
    double cut = 0.0;
    if (full || static_cast<i64>(keys.size()) > g->budget) cut = keep_largest(keys, g->budget);
    // the tree is full if all of the best samplings reach the cut, which is never below the lowest of them
    const bool whole = cut > 0 && full && std::all_of(g->best, g->best + g->best_size, [cut](double key) { return key >= cut; });
    i64 deepest = 0;  // depth of the deepest sampling at the cut; others with this key enter only if they are less deep
    for (i64 at = 0; whole && at < g->size; ++at)
        if (g->key[at] == cut) deepest = std::max(deepest, g->depth[at]);
    const auto wanted = [&](double key, i64 depth) {
        return whole ? key > cut || (key == cut && depth < deepest) : key >= cut && key > 0;
    };
    i64 rows = 0, nodes = 0;
    for (i64 row = 0; row < g->rows; ++row)
        if (wanted(g->row_open[row], g->row_depth[row])) more[rows++] = row;
    for (const i64 at : undrafted)
        if (wanted(g->weight[at], g->depth[at])) chosen[nodes++] = at;
    std::stable_sort(chosen, chosen + nodes, [g](i64 one, i64 other) { return g->weight[one] > g->weight[other]; });
    counts[0] = rows;
    counts[1] = nodes;
    return cut;
}

// Sorts a closed set of samplings in place, breadth first, siblings by rank. Writes the parents' rows [count + 1]
// and the new row of each drafted row.
extern "C" void order(const Growth *g, i64 *chosen, i64 count, i64 *parents, i64 *new_row) {
    std::fill(new_row, new_row + g->rows + 1, -1);
    new_row[0] = 0;
    parents[0] = -1;
    std::stable_sort(chosen, chosen + count, [g](i64 one, i64 other) { return g->depth[one] < g->depth[other]; });
    for (i64 start = 0; start < count;) {
        i64 end = start;
        while (end < count && g->depth[chosen[end]] == g->depth[chosen[start]]) ++end;
        std::sort(chosen + start, chosen + end, [g, new_row](i64 one, i64 other) {
            return std::make_pair(new_row[g->parent[one]], g->rank[one]) <
                   std::make_pair(new_row[g->parent[other]], g->rank[other]);
        });
        for (i64 at = start; at < end; ++at) parents[at + 1] = new_row[g->parent[chosen[at]]];
        for (i64 at = start; at < end; ++at)
            if (g->drafted[chosen[at]] >= 0) new_row[g->drafted[chosen[at]]] = at + 1;
        start = end;
    }
}
