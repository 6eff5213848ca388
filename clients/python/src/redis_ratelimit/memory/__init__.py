"""The limiter of one process, for tests: it answers the words of a call as the server does."""
