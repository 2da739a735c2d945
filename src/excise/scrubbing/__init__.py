"""Concept scrubbing: erasers at every site of a Hugging Face transformer, fitted in order."""
