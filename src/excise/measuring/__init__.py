"""What scrubbing did to a language model."""
