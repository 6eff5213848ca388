# frozen_string_literal: true

require "logger"
require "securerandom"

module RedisRatelimit
  # Limiter that charges limits on the server, and falls back during an outage. `redis` is a `Redis` of redis-rb, for one
  # server or a cluster; its timeouts are those of a call, so give it a short `timeout`.
  #
  # on_outage::    fallback while the server does not decide: :open allows every call, :closed denies every call, :raise
  #                raises UnavailableError
  # setup_errors:: reaction to a misconfiguration: :raise raises SetupError, :outage falls back. Both log an error
  # once::         true to give calls an idempotency key where charging them twice would matter
  # failures::     number of consecutive calls without a reply after which no call is sent for `pause`
  # pause::        seconds until one call is sent as a probe
  class Limiter
    # Largest share of a limit that may be charged twice.
    NEGLIGIBLE_SHARE = 0.01

    # Default lifetime of an idempotency key: longer than redis-rb may resend a call.
    ID_TTL = "30s"

    MERGED = "a sketch cannot tell apart again what it has merged: no item is settled or charged once"
    private_constant :MERGED

    # Creates a limiter for tests, which decides in this process as the server does. `clock` returns the seconds since
    # 1970: a ManualClock stands still until a test moves it.
    def self.local(clock: -> { Time.now.to_f }, **options)
      new(Memory.new(clock: clock), clock: clock, **options)
    end

    def initialize(redis, on_outage: :open, setup_errors: :raise, once: true, prefix: "", failures: 3, pause: 1.0,
                   log: Logger.new($stderr), clock: -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) })
      unless %i[open closed raise].include?(on_outage)
        raise ArgumentError, "on_outage must be :open, :closed or :raise, not #{on_outage.inspect}"
      end

      @redis = redis
      @on_outage = on_outage
      @setup_errors = setup_errors
      @once = once
      @prefix = prefix
      @pause = pause
      @log = log
      @clock = clock
      @breaker = Breaker.new(failures: failures, pause: pause, clock: clock, log: log)
      @concurrency_policies = {}
    end

    # Charges all limits of a key, or none. A limit can be a rate such as "100/minute". `once` is your idempotency key,
    # true for a new one, or false for none; `ttl` is the time within which the charge can be settled. `refundable`
    # gives the charge an idempotency key at any cost, so that `settle` can refund it. `force` charges even past a
    # limit, for units that were used already.
    def take(key, *limits, cost: 1, once: nil, ttl: nil, refundable: false, force: false)
      limits = check(key, limits, cost)
      once = true if refundable && !once.is_a?(String)
      refuse_sketches(limits) if once || ttl
      options = cost == 1 ? [] : ["COST", number(cost)]
      options << "FORCE" if force
      id, ttl = id_of(limits, cost, once, ttl)
      decided(key, limits, options, id, ttl, is_ours: once.nil? || once == true)
    end

    # Returns the decision that `take` would make, and charges nothing.
    def peek(key, *limits, cost: 1)
      limits = check(key, limits, cost)
      words = ["rl.peek", key_of(key, limits), "COST", number(cost), *specs(key, limits)]
      without_server { Decision.read(call(words), nil) }
    end

    # Corrects a charge by its idempotency key. Denied only if the idempotency key is unknown or expired.
    def settle(key, *limits, id:, cost:)
      limits = check(key, limits, cost)
      if id.nil?
        raise ArgumentError, "the charge has no idempotency key: make it refundable, by take(..., refundable: true)"
      end

      refuse_sketches(limits)
      without_server(allowed: false) { Decision.read(call(words(key, limits, ["SETTLE", id, number(cost)])), id) }
    end

    # Deletes the usage of a key, or of all items of a sketch by its own key. Returns true if there was any.
    def reset(key)
      call(["del", full(key)]) == 1
    end

    # Checks the server at the start. Raises SetupError that says what to do, or UnavailableError if it is unreachable.
    def check!
      call(%w[rl.peek redis-ratelimit:check FIXED 1 1s])
      true
    end

    private

    def decided(key, limits, options, id, ttl, is_ours:)
      named = id ? [*options, "ONCE", id, ttl] : options
      Decision.read(call(words(key, limits, named)), id)
    rescue CallError => e
      raise unless id.nil? && is_ours && @once && e.message.start_with?("the policy has a CONCURRENCY limit")

      limits.each { |limit| @concurrency_policies[limit.words] = true }
      decided(key, limits, options, SecureRandom.hex(16), ttl || ID_TTL, is_ours: false)
    rescue FullError => e
      # The key has no room for the id. Rather than deny the call, risk a double charge if it is resent.
      return refused(e) unless id && is_ours && Replies.may_pass_without_id?(e.cause.message)

      @log&.error("Redis refuses a call for #{key.inspect}: #{e.message}")
      without_server { Decision.read(call(words(key, limits, options)), nil) }
    rescue UnavailableError, SetupError => e
      refused(e)
    end

    def without_server(allowed: nil)
      yield
    rescue UnavailableError, SetupError, FullError => e
      refused(e, allowed: allowed)
    end

    # Returns the fallback decision. A full key is not an outage, and denies.
    def refused(error, allowed: nil)
      @log&.error("Redis refuses a call: #{error.message}") unless error.is_a?(UnavailableError)
      is_outage = error.is_a?(UnavailableError) || (error.is_a?(SetupError) && @setup_errors == :outage)
      raise error unless error.is_a?(FullError) || (is_outage && @on_outage != :raise)

      allowed = @on_outage == :open && is_outage if allowed.nil?
      Decision.new(allowed: allowed, wait: allowed ? 0.0 : @pause, source: :none, error: error)
    end

    def call(words)
      sent_at = @clock.call
      raise UnavailableError, "the server was not asked: it failed a moment ago" unless @breaker.allows?

      begin
        reply = @redis.call(*words)
      rescue Redis::CommandError => e
        @breaker.succeeded
        raise Replies.explained(e.message)
      rescue Redis::BaseError, SystemCallError, IOError => e
        @breaker.failed(sent_at, "#{e.class}: #{e.message}")
        raise UnavailableError, e.message
      end
      @breaker.succeeded
      reply
    end

    def words(key, limits, options)
      # RL.LIMIT can be permitted to users who may not choose limits themselves.
      return ["rl.limit", key_of(key, limits), *limits.first.spec(key).drop(1), *options] if limits.one? && limits.first.policy?

      # In a cluster redis-rb looks up commands by their names in lower case.
      ["rl.take", key_of(key, limits), *options, *specs(key, limits)]
    end

    def specs(key, limits)
      limits.flat_map { |limit| limit.spec(key).map { |word| word.is_a?(Numeric) ? number(word) : word } }
    end

    # Returns the key on the server. For a sketch this is its own key, as the key of the call is an item.
    def key_of(key, limits)
      full(limits.first.key || key)
    end

    def refuse_sketches(limits)
      raise ArgumentError, MERGED if limits.any?(&:key)
    end

    def full(key)
      "#{@prefix}#{key}"
    end

    def check(key, limits, cost)
      raise TypeError, "a key must be text, not #{key.inspect}" unless key.is_a?(String)
      raise ArgumentError, "a call needs a limit, such as RedisRatelimit.fixed(100, \"1m\")" if limits.empty?

      limits = limits.map { |limit| limit_of(limit) }
      raise ArgumentError, "a sketch is alone in its key" if limits.length > 1 && limits.any?(&:key)
      return limits if cost.is_a?(Numeric) && cost >= 0 && cost <= 10**12

      raise ArgumentError, "cost must be a number from 0 to 10^12, not #{cost.inspect}"
    end

    def limit_of(limit)
      return limit if limit.is_a?(Limit)
      return RedisRatelimit.rate(limit) if limit.is_a?(String)

      raise ArgumentError,
            "a limit is such as RedisRatelimit.fixed(100, \"1m\") or \"100/minute\", not #{limit.inspect}"
    end

    # Formats a number without an exponent.
    def number(units)
      units.is_a?(Float) ? format("%.6f", units) : units.to_s
    end

    # Returns the idempotency key of a call and its lifetime, if it needs one.
    def id_of(limits, cost, once, ttl)
      return [once, ttl || "10m"] if once.is_a?(String)
      return if once == false || (once.nil? && !@once) || limits.any?(&:key)
      return unless once || ttl || needed?(limits, cost)

      [SecureRandom.hex(16), ttl || (cost > 1 ? "1m" : ID_TTL)]
    end

    def needed?(limits, cost)
      cost.positive? && limits.any? do |limit|
        cost > 1 || @concurrency_policies[limit.words] || (limit.quota && cost > limit.quota * NEGLIGIBLE_SHARE)
      end
    end
  end
end
