"""Compare backends: benchmarks of passes, steps and other engines' loops, and models made for them."""
