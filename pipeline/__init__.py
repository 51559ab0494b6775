"""From the CSVs of a Korean sentence-similarity competition to the best submission."""

__version__ = "0.1.0"
