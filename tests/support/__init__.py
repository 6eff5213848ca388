"""What the tests stand on: real servers and a clock that they set."""
