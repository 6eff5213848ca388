# frozen_string_literal: true

# Rate limits in Redis and Valkey, decided by the redis-ratelimit module.
module RedisRatelimit
  # Base class of all errors of this package.
  class Error < StandardError; end

  # Clock for tests.
  autoload :ManualClock, "redis_ratelimit/memory/clock"
  autoload :Memory, "redis_ratelimit/memory"

  # Outage: the server is unreachable, loading, or without a primary.
  class UnavailableError < Error; end

  # Lack of room for the data of the call. Nothing was charged.
  class FullError < Error; end

  # Misconfiguration, such as a wrong password. The message says what to do.
  class SetupError < Error; end

  # Missing policy: no policy with one of the names exists. Set one by RL.POLICYSET.
  class NoPolicyError < SetupError; end

  # Malformed call.
  class CallError < Error; end

  # Denied call.
  class DeniedError < Error
    attr_reader :decision

    def initialize(decision)
      @decision = decision
      super(decision.error ? decision.error.message : "denied: the limit is #{decision.limit}")
    end
  end
end

require "redis"

require "redis_ratelimit/version"
require "redis_ratelimit/limits"
require "redis_ratelimit/rates"
require "redis_ratelimit/addresses"
require "redis_ratelimit/decision"
require "redis_ratelimit/replies"
require "redis_ratelimit/breaker"
require "redis_ratelimit/limiter"
