"""Sources of the texts on which the embedded pair is trained."""
