"""Arrays of any library, and the linear algebra on them: precision, rounding, correlations and their ridge."""
