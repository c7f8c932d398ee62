// Gumbel noise keyed by place: words of Philox4x32-10 (Salmon et al. 2011), then two float64 logarithms of each word.
// noise.py computes the same with tensors. Every loop over k is vectorised, with a logarithm of its own: libm's is not
// vectorised, and -ffast-math would make the loading thread flush denormal numbers to zero.

#include <cstdint>
#include <cstring>

// Accurate to two units in the last place: x = 2^power * part, with part between sqrt(1/2) and sqrt(2), and
// log(part) = 2 atanh(s) = 2 s (1 + s^2 / 3 + s^4 / 5 + ...) where s = (part - 1) / (part + 1), at most 0.172.
static inline double log_of(double x) {
    int64_t bits;
    std::memcpy(&bits, &x, sizeof x);
    const int64_t power = (bits - 0x3FE6A09E667F3BCD) >> 52;
    bits -= power << 52;
    double part;
    std::memcpy(&part, &bits, sizeof part);
    const double s = (part - 1) / (part + 1), square = s * s;
    double tail = 1. / 23;
    for (int odd = 21; odd > 1; odd -= 2) tail = tail * square + 1. / odd;
    const double high = 0x1.62e42feep-1, low = 0x1.a39ef35793c76p-33;  // of log 2
    return power * high + (2 * s + (2 * s * square * tail + power * low));
}

static const int AT_ONCE = 64;  // blocks of four words; few enough to stay in the L1 cache

// Writes noise [positions, size] of the positions from `first` on.
extern "C" void gumbel(uint32_t first_key, uint32_t second_key, int64_t first, int64_t positions, int64_t size, float* noise) {
    for (int64_t row = 0; row < positions; ++row)
        for (int64_t start = 0; 4 * start < size; start += AT_ONCE) {
            uint32_t block[AT_ONCE], position[AT_ONCE], low[AT_ONCE], high[AT_ONCE];
            for (int k = 0; k < AT_ONCE; ++k)
                block[k] = uint32_t(start + k), position[k] = uint32_t(first + row), low[k] = high[k] = 0;
            uint32_t one = first_key, other = second_key;
            for (int round = 0; round < 10; ++round, one += 0x9E3779B9u, other += 0xBB67AE85u)
                for (int k = 0; k < AT_ONCE; ++k) {
                    const uint64_t left = uint64_t(block[k]) * 0xD2511F53u, right = uint64_t(low[k]) * 0xCD9E8D57u;
                    block[k] = uint32_t(right >> 32) ^ position[k] ^ one;
                    low[k] = uint32_t(left >> 32) ^ high[k] ^ other;
                    position[k] = uint32_t(right), high[k] = uint32_t(left);
                }
            double uniform[4 * AT_ONCE];  // in (0, 1)
            for (int k = 0; k < AT_ONCE; ++k) {
                const uint32_t words[4] = {block[k], position[k], low[k], high[k]};
                for (int word = 0; word < 4; ++word) uniform[4 * k + word] = (words[word] + 0.5) * 0x1p-32;
            }
            float made[4 * AT_ONCE];
            for (int k = 0; k < 4 * AT_ONCE; ++k) made[k] = float(-log_of(-log_of(uniform[k])));
            float* to = noise + row * size + 4 * start;
            for (int64_t k = 0; k < 4 * AT_ONCE && 4 * start + k < size; ++k) to[k] = made[k];
        }
}

// Copies logits [rows, size] and writes each row's token with the highest logit or, with noise [depths, size], the highest
// logit / temperature + noise of its depth (null: all 0), and that value: NaN if the row has one. Ties go to the lowest token.
extern "C" void choose(const float* logits, int64_t rows, int64_t size, const float* noise, const int64_t* depths,
                       float temperature, float* copy, int64_t* tokens, float* values) {
    std::memcpy(copy, logits, rows * size * sizeof(float));
    for (int64_t row = 0; row < rows; ++row, logits += size) {
        const float* added = noise ? noise + (depths ? depths[row] * size : 0) : nullptr;
        const auto value = [&](int64_t token) { return added ? logits[token] / temperature + added[token] : logits[token]; };
        int64_t best = 0;
        for (int64_t start = 0; start < size; start += 256) {  // most blocks have nothing higher
            const int64_t end = start + 256 < size ? start + 256 : size;
            const float highest = value(best);
            int higher = 0;
            for (int64_t token = start; token < end; ++token) higher |= !(value(token) <= highest);
            if (higher)
                for (int64_t token = start; token < end; ++token)
                    if (value(token) > value(best) || value(token) != value(token)) best = token;
        }
        tokens[row] = best, values[row] = value(best);
    }
}
