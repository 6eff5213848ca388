"""Rate limits that a Redis or Valkey server with the redis-ratelimit module decides."""
