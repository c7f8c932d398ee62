// Fills a tree of fixed shape from the Token Recycling matrix, as propose() in token_recycling.py would depth by depth.

#include <cmath>
#include <cstdint>

static const int MOST = 64;  // most candidates per token

// Writes tokens[1] to tokens[count - 1]; tokens[0] is the root's. Parents precede their children, siblings are adjacent.
// `rows` holds the parents, ranks and depths of all rows.
// With noise [depths, vocabulary], candidates are ranked by logit / temperature + noise; ties keep their order.
extern "C" void fill(const int32_t* matrix, const float* logits, int64_t vocabulary, int64_t k, const float* noise,
                     float temperature, const int64_t* rows, int64_t count, int64_t* tokens) {
    const int64_t *parents = rows, *ranks = rows + count, *depths = rows + 2 * count;
    int64_t ranked = -1;  // the parent with its candidates in `order`
    int32_t order[MOST];
    for (int64_t row = 1; row < count; ++row) {
        const int64_t parent = parents[row], token = tokens[parent];
        const int32_t* candidates = matrix + token * k;
        if (token < 0) {
            tokens[row] = -1;
        } else if (!noise) {
            tokens[row] = candidates[ranks[row]];
        } else {
            if (parent != ranked) {
                float scores[MOST];
                for (int64_t place = 0; place < k; ++place) {
                    const int32_t one = candidates[place];
                    const float own = one < 0 ? -INFINITY
                                              : logits[token * k + place] / temperature + noise[depths[parent] * vocabulary + one];
                    int64_t to = place;
                    for (; to && own > scores[to - 1]; --to) scores[to] = scores[to - 1], order[to] = order[to - 1];
                    scores[to] = own, order[to] = one;
                }
                ranked = parent;
            }
            tokens[row] = order[ranks[row]];
        }
    }
}
