"""What is done to x: one protocol and its forms."""
