"""Measurements of speed and memory: ratios, variants interleaved, medians of whole processes."""
