"""Measurement code of `make bench` and `make bench-check`."""
