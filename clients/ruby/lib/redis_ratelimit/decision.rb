# frozen_string_literal: true

module RedisRatelimit
  # Decision of the server on a call. Times are in seconds; a `wait` of nil means never. Without a decision, `limit`,
  # `remaining` and `reset` are nil, `source` is :none, and `error` is the reason.
  Decision = Struct.new(:allowed, :limit, :remaining, :wait, :reset, :source, :id, :error, keyword_init: true) do
    alias_method :allowed?, :allowed

    def self.read(reply, id)
      allowed, limit, remaining, wait, reset = reply
      wait = wait.negative? ? nil : wait / 1000.0
      new(allowed: allowed == 1, limit: limit, remaining: remaining, wait: wait, reset: reset / 1000.0,
          source: :server, id: id)
    end

    # Returns true if the server did not decide.
    def degraded?
      source != :server
    end

    # Returns the decision itself, or raises DeniedError if the call is denied.
    def require!
      allowed ? self : raise(DeniedError, self)
    end

    # Returns the HTTP header fields: X-RateLimit-*, and Retry-After for a denial.
    def headers
      fields = {}
      unless limit.nil?
        fields["X-RateLimit-Limit"] = limit.to_s
        fields["X-RateLimit-Remaining"] = remaining.to_s
        fields["X-RateLimit-Reset"] = reset.ceil.to_s
      end
      fields["Retry-After"] = wait.ceil.to_s unless allowed || wait.nil?
      fields
    end
  end
end
