"""Results -> figures and pages that a person can look at."""
