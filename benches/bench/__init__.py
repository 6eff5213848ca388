"""What `make bench` and `make bench-check` measure with."""
