# frozen_string_literal: true

module RedisRatelimit
  # A clock that stands still until it is moved, for `Limiter.local(clock: clock)`. It begins at `now`, a Time.
  class ManualClock
    def initialize(now = Time.now)
      set(now)
    end

    # Seconds since 1970.
    def call
      @now.to_f
    end

    # Moves the clock by so many seconds.
    def advance(seconds)
      @now += seconds.rationalize(Rational(1, 10_000_000))
    end

    # Sets the clock to an instant, earlier or later.
    def set(now)
      @now = now
    end
  end
end
