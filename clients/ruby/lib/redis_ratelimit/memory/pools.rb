# frozen_string_literal: true

module RedisRatelimit
  class Memory
    # Usage as one number at one instant.
    class Pool < Usage
      attr_accessor :used, :at

      def initialize
        super
        @used = 0
        @at = 0
      end

      def unused?
        used.zero?
      end

      def ahead(now)
        [at - now, 0].max
      end

      def move_back(now)
        @at = [at, now].min
      end

      def take_back(_place, units)
        taken = used == MOST ? 0 : [units, used].min
        @used -= taken
        taken
      end
    end

    # Token bucket, or with `queues` a leaky bucket, which delays allowed calls.
    class Bucket < Rule
      def initialize(capacity, refill, period, queues:)
        super(capacity, period)
        @refill = refill
        @period = period
        @queues = queues
      end

      def kind
        "rl-bucket"
      end

      def unused
        Pool.new
      end

      def waits?
        !@queues
      end

      def drains_in(units)
        [Memory.ceil_div(units * @period, @refill), LATEST].min
      end

      def present(usage, now)
        [usage.used - ([now - usage.at, 0].max * @refill / @period), 0].max
      end

      def verdict(usage, now, cost)
        return [ALLOWED, @queues ? reset(usage, now) : 0] if present(usage, now) + cost <= limit
        return NEVER_EVER if cost > limit

        after(drains_in(usage.used + cost - limit) - [now - usage.at, 0].max)
      end

      def reset(usage, now)
        [drains_in(usage.used) - [now - usage.at, 0].max, 0].max
      end

      def charge(usage, now, cost)
        advance(usage, now)
        usage.used = plus(usage.used, cost)
      end

      def give_back(usage, now, units)
        if present(usage, now) <= units
          usage.used = usage.at = 0
        else
          advance(usage, now)
          usage.used -= units
        end
      end

      # Returns the usage from which earlier charges can still be settled.
      def low(usage, now)
        return 0 if usage.used == MOST

        [usage.used - Memory.ceil_div([now - usage.at, 0].max * @refill, @period), 0].max
      end

      private

      # Subtracts the drained usage, in steps of a whole number of millionths.
      def advance(usage, now)
        if present(usage, now).zero?
          usage.used = 0
          usage.at = now
        else
          divisor = @period.gcd(@refill)
          steps = (now - usage.at) / (@period / divisor)
          usage.used -= steps * (@refill / divisor)
          usage.at += steps * (@period / divisor)
        end
      end
    end

    # Usage of a fixed window. `at` is the time when it opened or, if aligned, was last charged.
    class WindowPool < Pool
      attr_accessor :aligned

      def moved_recovery(recovers_at, ahead, now)
        aligned ? recovers_at : super
      end
    end

    # Fixed window. Clocks are the boundaries of aligned windows; without them, a window opens with its first call.
    class Fixed < Rule
      def initialize(limit, window, clocks = nil)
        super(limit, [window, clocks&.key])
        @window = window
        @clocks = clocks
      end

      def kind
        "rl-window"
      end

      def unused
        WindowPool.new
      end

      def present(usage, now)
        now < ends(usage, now) ? usage.used : 0
      end

      def verdict(usage, now, cost)
        return AT_ONCE if present(usage, now) + cost <= limit

        cost > limit ? NEVER_EVER : after(ends(usage, now) - now)
      end

      def reset(usage, now)
        usage.unused? ? 0 : [ends(usage, now) - now, 0].max
      end

      def charge(usage, now, cost)
        advance(usage, now)
        usage.used = plus(usage.used, cost)
      end

      def give_back(usage, now, units)
        advance(usage, now)
        usage.used = [usage.used - units, 0].max
      end

      def low(usage, now)
        usage.used == MOST ? 0 : present(usage, now)
      end

      private

      def ends(usage, now)
        instant = [usage.at, now].min
        return @clocks.ends(instant) if @clocks && (usage.aligned || @clocks.calendar)

        instant + @window
      end

      def advance(usage, now)
        usage.used = present(usage, now)
        usage.at = now if @clocks || usage.unused?
        usage.aligned = !@clocks.nil?
      end
    end

    # Boundaries of aligned windows: multiples of their length, or weeks, months, quarters and years. `offset` is the
    # difference from UTC in microseconds, `anchor` the day on which months begin. Days and months are counted from the
    # 1st of March of year 0, so that a leap day is the last of its year (Howard Hinnant, "chrono-Compatible Low-Level
    # Date Algorithms").
    Clocks = Struct.new(:window, :calendar, :offset, :anchor) do
      def key
        [calendar, offset, anchor]
      end

      def ends(instant)
        return instant + window - ((instant + offset) % window) if calendar.nil?

        local = instant + (Clocks::DAYS_BEFORE_EPOCH * DAY) + offset
        instant + (next_day(local / DAY, Clocks::MONTHS.fetch(calendar)) * DAY) - local
      end

      private

      # Returns the day on which the next window begins.
      def next_day(day, months)
        # Day 0 was a Wednesday, and month 0 a March.
        return day + 7 - ((day + 2) % 7) if months.zero?

        month = month_of(day)
        first = month - ((month + 2) % months)
        begins = begins_in(first)
        day < begins ? begins : begins_in(first + months)
      end

      def begins_in(month)
        [first_day(month) + anchor, first_day(month + 1)].min - 1
      end

      def month_of(day)
        era, of_era = day.divmod(146_097)
        year_of_era = (of_era - (of_era / 1460) + (of_era / 36_524) - (of_era / 146_096)) / 365
        year = (era * 400) + year_of_era
        (year * 12) + ((((day - first_day(year * 12)) * 5) + 2) / 153)
      end

      def first_day(month)
        year, of_year = month.divmod(12)
        (year * 365) + (year / 4) + (year / 400) - (year / 100) + (((of_year * 153) + 2) / 5)
      end
    end
    Clocks::DAYS_BEFORE_EPOCH = 719_468
    # Number of months of each calendar window; 0 for a week.
    Clocks::MONTHS = { "1w" => 0, "1mo" => 1, "3mo" => 3, "1y" => 12 }.freeze
  end
end
