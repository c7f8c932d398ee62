"""Compare backends: benchmarks of passes, steps and engines' loops, and models made for them."""
