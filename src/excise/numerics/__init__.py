"""Arrays of any library, and the linear algebra on them: precision, rounding, whitening, shrinkage."""
