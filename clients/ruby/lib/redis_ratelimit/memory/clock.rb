# frozen_string_literal: true

module RedisRatelimit
  # Clock that stands still until it is moved, for `Limiter.local(clock: clock)`. It starts at `now`, a Time.
  class ManualClock
    def initialize(now = Time.now)
      set(now)
    end

    # Returns the seconds since 1970.
    def call
      @now.to_f
    end

    # Moves the clock forward.
    def advance(seconds)
      @now += seconds.rationalize(Rational(1, 10_000_000))
    end

    # Sets the clock to an earlier or later time.
    def set(now)
      @now = now
    end
  end
end
