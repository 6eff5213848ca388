# frozen_string_literal: true

module RedisRatelimit
  # Circuit breaker: after `failures` consecutive failures no call is sent for `pause` seconds. Then one call is sent as
  # a probe.
  class Breaker
    def initialize(failures:, pause:, clock:, log:)
      @failures = failures
      @pause = pause
      @clock = clock
      @log = log
      @lock = Mutex.new
      @failed = 0
      @failed_at = @closed_until = -Float::INFINITY
    end

    def allows?
      @lock.synchronize do
        return true if @failed < @failures
        return false if @clock.call < @closed_until

        @closed_until = @clock.call + @pause
        true
      end
    end

    def succeeded
      return if @failed.zero?

      @lock.synchronize do
        @log&.warn("Redis is back")
        @failed = 0
      end
    end

    # Counts the failure of a call that was sent at `sent_at`. Calls in flight that fail together count once.
    def failed(sent_at, why)
      @lock.synchronize do
        @log&.warn("Redis is away: #{why}") if @failed.zero?
        now = @clock.call
        @failed += 1 if sent_at >= @failed_at
        @failed_at = now
        @closed_until = now + @pause
      end
    end
  end
end
