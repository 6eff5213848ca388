"""Support of the tests: servers, clusters, and a clock that tests set."""
