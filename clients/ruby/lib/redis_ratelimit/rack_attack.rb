# frozen_string_literal: true

require "rack/attack"
require "redis_ratelimit"

module RedisRatelimit
  # Store for `Rack::Attack.cache.store`: one key, set by one call, stores a counter and its expiry. During an outage
  # nothing is counted, as with the other stores.
  class RackAttackStore
    # Limit above any count.
    MOST = 10**12

    def initialize(redis)
      @limiter = Limiter.new(redis, once: false)
      @redis = redis
    end

    def increment(key, amount, expires_in: nil)
      limit = RedisRatelimit.fixed(MOST, "#{expires_in || 86_400}s")
      decision = @limiter.take(key, limit, cost: amount)
      decision.degraded? ? nil : MOST - decision.remaining
    end

    def read(key)
      rescuing { @redis.get(key) }
    end

    def write(key, value, expires_in: nil)
      rescuing { expires_in ? @redis.setex(key, expires_in, value) : @redis.set(key, value) }
    end

    def delete(key)
      rescuing { @redis.del(key) }
    end

    def delete_matched(pattern)
      rescuing { @redis.scan_each(match: pattern, count: 1000).each_slice(1000) { |keys| @redis.del(*keys) } }
    end

    private

    def rescuing
      yield
    rescue Redis::BaseConnectionError
      nil
    end
  end

  # Throttle of Rack::Attack with limits of the module, in place of the windows of Rack::Attack, which all begin at the
  # same time. `limits` can be a proc that returns the limits of a request.
  class Throttle < Rack::Attack::Throttle
    def initialize(name, limiter, limits, options = {}, &block)
      super(name, { limit: 0, period: 1, **options }, &block)
      @limiter = limiter
      @limits = limits
    end

    def matched_by?(request)
      discriminator = discriminator_for(request)
      return false unless discriminator

      limits = @limits.respond_to?(:call) ? @limits.call(request) : @limits
      decision = @limiter.take("#{name}:#{discriminator}", *limits)
      data = { discriminator: discriminator, limit: decision.limit, remaining: decision.remaining, decision: decision }
      annotate_request_with_throttle_data(request, data)
      return false if decision.allowed?

      annotate_request_with_matched_data(request, data)
      Rack::Attack.instrument(request)
      true
    end
  end

  # Limits requests: `RedisRatelimit.throttle("api", limiter, RedisRatelimit.sliding(100, "1m"), &:ip)`.
  def self.throttle(name, limiter, *limits, &discriminator)
    limits = limits.first if limits.first.respond_to?(:call)
    Rack::Attack.throttles[name] = Throttle.new(name, limiter, limits, &discriminator)
  end

  # Responder with Retry-After and X-RateLimit-*, in place of the responder of Rack::Attack, which knows no wait.
  RESPONDER = lambda do |request|
    decision = request.env["rack.attack.match_data"]&.fetch(:decision, nil)
    status = decision&.degraded? ? 503 : 429
    headers = decision ? decision.headers : {}
    [status, { "Content-Type" => "text/plain" }.merge(headers), ["Retry later\n"]]
  end
end
