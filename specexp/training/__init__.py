"""The recipe of the embedded pair: corpus, tokenizer, training, export and its figures."""
