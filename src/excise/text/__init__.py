"""Text with labels on words -> tokens with labels. Nothing here needs PyTorch until batches are drawn."""
