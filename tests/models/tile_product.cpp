// Products by tiles alone, for the tests of their layout and of their order of sums.
#include "tiles.h"

extern "C" int panel() { return PANEL; }

extern "C" void multiply(const void* weights, int64_t bits, const uint16_t* x, int64_t rows, int64_t width, int64_t panels,
                         float* out) {
    const Product<Tiles> product{x, rows, width, out, panels * PANEL};
    begin_tiles();
    product.panels(weights, bits, 0, panels);
    end_tiles();
}
