"""Language models and what decoding needs of them."""
