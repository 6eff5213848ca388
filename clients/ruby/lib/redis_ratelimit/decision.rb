# frozen_string_literal: true

module RedisRatelimit
  # What the server says to a call. Seconds; `wait` nil: never. While nobody can decide, `limit`, `remaining` and `reset`
  # are nil, `source` is :none, and `error` says why.
  Decision = Struct.new(:allowed, :limit, :remaining, :wait, :reset, :source, :id, :error, keyword_init: true) do
    alias_method :allowed?, :allowed

    def self.read(reply, id)
      allowed, limit, remaining, wait, reset = reply
      wait = wait.negative? ? nil : wait / 1000.0
      new(allowed: allowed == 1, limit: limit, remaining: remaining, wait: wait, reset: reset / 1000.0,
          source: :server, id: id)
    end

    # The server did not decide.
    def degraded?
      source != :server
    end

    # Itself, if the call passes.
    def require!
      allowed ? self : raise(DeniedError, self)
    end

    # For HTTP: X-RateLimit-*, and Retry-After of a denial.
    def headers
      told = {}
      unless limit.nil?
        told["X-RateLimit-Limit"] = limit.to_s
        told["X-RateLimit-Remaining"] = remaining.to_s
        told["X-RateLimit-Reset"] = reset.ceil.to_s
      end
      told["Retry-After"] = wait.ceil.to_s unless allowed || wait.nil?
      told
    end
  end
end
