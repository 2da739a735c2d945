"""What must be known of (X, Z) to erase Z from X: streaming, mergeable, float64."""
