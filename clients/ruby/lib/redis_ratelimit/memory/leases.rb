# frozen_string_literal: true

module RedisRatelimit
  class Memory
    # Leases by holder: expiry, units and fencing token.
    class Leases < Usage
      attr_reader :leases, :written

      def initialize
        super
        @written = 0
        @leases = {}
      end

      # Returns the leases that have not expired, in the order of their expiry.
      def live(now)
        at = [[now, written].max, LATEST].min
        leases.select { |_, (ends)| at < ends }.sort_by { |holder, (ends)| [ends, holder] }.to_h
      end

      def tidy(now)
        @leases = live(now)
        @written = now
      end

      # Releases leases. Returns how many were held.
      def release(holders, now)
        present = holders.uniq & live(now).keys
        present.each { |holder| leases.delete(holder) }
        tidy(now) if present.any?
        present.length
      end

      def recovers_in(now)
        last = leases.values.map(&:first).max || 0
        [last - [now, written].max, 0].max
      end

      def unused?
        leases.empty?
      end

      def ahead(now)
        [written - now, 0].max
      end

      def move_back(now)
        back = ahead(now)
        @leases = live(written).transform_values { |(ends, units, token)| [ends - back, units, token] }
        @written = [written, now].min
      end

      def take_back(_place, _units)
        0
      end
    end

    # Concurrency limit.
    class Concurrency < Rule
      attr_reader :holder
      # `first` is true with NX, by which only a holder without a lease passes. `token` is the fencing token for a lease
      # that has none.
      attr_accessor :first, :token

      def initialize(limit, ttl, holder)
        super(limit, nil)
        @ttl = ttl
        @holder = holder
      end

      def kind
        "rl-leases"
      end

      def unused
        Leases.new
      end

      def present(usage, now)
        usage.live(now).sum { |_, (_, units)| units }
      end

      def verdict(usage, now, cost)
        _, own, = usage.live(now)[holder]
        others = present(usage, now) - (own || 0)
        in_own_way = first && !own.nil?
        renews = !own.nil? && cost <= own
        return AT_ONCE if (renews || others + cost <= limit) && !in_own_way
        return NEVER_EVER if cost > limit

        usage.live(now).each do |name, (ends, units)|
          name == holder ? in_own_way = false : others -= units
          return after(ends - [now, usage.written].max) if !in_own_way && others + cost <= limit
        end
        NEVER_EVER
      end

      def reset(usage, now)
        usage.recovers_in(now)
      end

      def charge(usage, now, cost)
        usage.tidy(now)
        _, _, kept = usage.leases[holder]
        usage.leases[holder] = [[now + @ttl, LATEST].min, cost, kept || token]
      end

      # Does nothing, as only a holder can release its lease, and only as a whole.
      def give_back(_usage, _now, _units); end

      def low(_usage, _now)
        0
      end
    end
  end
end
