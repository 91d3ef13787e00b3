"""Reproducible measurements: what the product reaches, beside what the same statements reach raw."""
