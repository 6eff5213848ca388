# frozen_string_literal: true

module RedisRatelimit
  class Memory
    UNIT = 1_000_000
    DAY = 86_400 * UNIT
    # Upper bounds at which usage, in millionths, and times, in microseconds, saturate.
    MOST = (2**63) - 1
    LATEST = 365_000 * DAY

    # Outcomes of a verdict. The greater of two verdicts waits longer. An allowed call may have a wait, too.
    ALLOWED = 0
    AFTER = 1
    NEVER = 2
    AT_ONCE = [ALLOWED, 0].freeze
    NEVER_EVER = [NEVER, 0].freeze

    def self.ceil_div(number, by)
      -(-number / by)
    end

    # State of one limit. The default is "never used". Units are whole millionths and times whole microseconds, as on
    # the server.
    class Usage
      # Returns the instant of the newest charge, if usage keeps charges apart.
      def place
        nil
      end

      # Returns the place of a charge after `move_back`; nil if it is before the epoch.
      def moved_place(place, now)
        back = ahead(now)
        place - back if place >= back
      end

      # Returns the instant of recovery after the clock was set back to `now`.
      def moved_recovery(recovers_at, ahead, _now)
        [recovers_at - ahead, 0].max
      end
    end

    # Parameters of a limit. `key` distinguishes limits of one algorithm on a key; leases have none.
    class Rule
      attr_accessor :limit
      attr_reader :key

      def initialize(limit, key)
        @limit = limit
        @key = key
      end

      # Returns true if MAXWAIT can admit a call with a wait.
      def waits?
        false
      end

      def remaining(usage, now)
        [limit - present(usage, now), 0].max
      end

      # Returns the time until usage is within the limit after `cost` more is charged.
      def debt_after(usage, now, cost)
        if cost.positive?
          usage = Marshal.load(Marshal.dump(usage))
          charge(usage, now, cost)
        end
        kind, wait = verdict(usage, now, 0)
        kind == AFTER ? wait : 0
      end

      private

      def plus(used, units)
        [used + units, MOST].min
      end

      def after(wait)
        [AFTER, [wait, 0].max]
      end
    end
  end
end
