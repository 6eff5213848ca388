# frozen_string_literal: true

module RedisRatelimit
  class Memory
    UNIT = 1_000_000
    DAY = 86_400 * UNIT
    # Usage, in millionths, and times, in microseconds, saturate here.
    MOST = (2**63) - 1
    LATEST = 365_000 * DAY

    # A verdict: of two, the greater says to wait longer. The time of an allowed call is its hold.
    ALLOWED = 0
    AFTER = 1
    NEVER = 2
    AT_ONCE = [ALLOWED, 0].freeze
    NEVER_EVER = [NEVER, 0].freeze

    def self.ceil_div(number, by)
      -(-number / by)
    end

    # State of one limit. A new one has never been used. All is in whole millionths and microseconds, as the server counts.
    class Usage
      # The instant of the newest charge, where each charge is counted apart.
      def place
        nil
      end

      # Where a place will be after `move_back`; nil if before the epoch.
      def moved_place(place, now)
        back = ahead(now)
        place - back if place >= back
      end

      # The instant of recovery after a clock was set back to `now`.
      def moved_recovery(recovers_at, ahead, _now)
        [recovers_at - ahead, 0].max
      end
    end

    # Numbers of a limit, which a call brings. `key` tells it from others of its kind on a key; leases have none.
    class Rule
      attr_accessor :limit
      attr_reader :key

      def initialize(limit, key)
        @limit = limit
        @key = key
      end

      # Whether a denied caller may be told to wait (MAXWAIT).
      def waits?
        false
      end

      def remaining(usage, now)
        [limit - present(usage, now), 0].max
      end

      # The time until usage is within the limit once `cost` more is charged.
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
