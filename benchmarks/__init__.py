"""Ratios against peers and limits: same process, same data."""
