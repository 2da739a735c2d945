"""One file per method: plain functions from Moments to an eraser."""
