# frozen_string_literal: true

# Rate limits in Redis and Valkey, decided by the redis-ratelimit module.
module RedisRatelimit
  # The base of all errors.
  class Error < StandardError; end

  # For tests.
  autoload :ManualClock, "redis_ratelimit/memory/clock"
  autoload :Memory, "redis_ratelimit/memory"

  # The server cannot decide at the moment: it is away, is loading, or has no primary.
  class UnavailableError < Error; end

  # There is no room for what the call would store. Nothing was charged.
  class FullError < Error; end

  # Something is set up in a way that cannot work, such as a wrong password. It says what to do.
  class SetupError < Error; end

  # The server has none of the policies that a call names. It is no open door: set the policy, by RL.POLICYSET.
  class NoPolicyError < SetupError; end

  # The call is wrong as it is.
  class CallError < Error; end

  # The call is denied.
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
