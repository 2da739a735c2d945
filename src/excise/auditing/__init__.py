"""Evidence: what is left of a concept after erasure, and what the edit cost."""
