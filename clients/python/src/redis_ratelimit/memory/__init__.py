"""Limiter in memory, for tests: replies to the words of a call as the server does."""
