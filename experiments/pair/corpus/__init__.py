"""Sources of the text that the embedded pair is trained on."""
