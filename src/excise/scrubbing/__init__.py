"""Erasing a concept inside transformers, and measuring what that did."""
