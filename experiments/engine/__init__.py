"""The contest of backends, microbenchmarks, and models made for them."""
