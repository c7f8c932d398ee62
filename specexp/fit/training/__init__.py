"""The recipe of the embedded pair: tokenizer, training, export and its figures."""
