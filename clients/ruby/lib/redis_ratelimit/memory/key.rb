# frozen_string_literal: true

module RedisRatelimit
  class Memory
    # Charge that may be settled. `place` identifies it where usage keeps charges apart, `low` is the lowest usage
    # since.
    Charge = Struct.new(:cost, :place, :given_back, :low)

    # Call recorded by its idempotency key. `charges` are pairs of a part and a charge.
    Remembered = Struct.new(:expires_at, :hold_until, :forced, :granted, :charges, :settled)

    # Usage of one limit of a key. Without an identity it is found by its type alone.
    class Part
      attr_reader :kind, :usage, :charges
      attr_accessor :identity, :recovers_at, :given_back

      def initialize(rule)
        @kind = rule.kind
        @usage = rule.unused
        @recovers_at = 0
        # Charges that may be settled, oldest first, and the units given back explicitly since.
        @charges = []
        @given_back = 0
      end

      # Charges `change` units, or gives them back if it is negative.
      def change(rule, change, now)
        lower(rule, [-change, 0].max, now) if charges.any?
        change.positive? ? rule.charge(usage, now, change) : rule.give_back(usage, now, -change)
        changed(rule, now)
      end

      # Corrects usage as if `cost` had been charged from the beginning.
      def settle(rule, charge, cost, now)
        most = charge.low || MOST
        unless charge.place.nil?
          since = given_back == MOST ? charge.cost : given_back - charge.given_back
          most = [most, [charge.cost - since, 0].max].min
        end
        taken = usage.take_back(charge.place, [[charge.cost - cost, 0].max, most].min)
        lower_others(charge, taken)
        forget(charge)
        change(rule, cost - charge.cost, now) if cost > charge.cost
        changed(rule, now)
      end

      def forget(charge)
        charges.delete_if { |one| one.equal?(charge) }
        @given_back = 0 if charges.empty?
      end

      def move_back(now)
        charges.each { |charge| charge.place &&= usage.moved_place(charge.place, now) }
        ahead = usage.ahead(now)
        usage.move_back(now) if ahead.positive?
        @recovers_at = usage.moved_recovery(recovers_at, ahead, now)
      end

      def stays?(now)
        charges.any? || (now < recovers_at && !usage.unused?)
      end

      private

      # Records the usage from which earlier charges can still be settled.
      def lower(rule, back, now)
        low = usage.unused? ? 0 : rule.low(usage, now)
        if low.nil?
          @given_back = [given_back + back, MOST].min
        else
          low = [low - back, 0].max
          charges.each { |charge| charge.low = [charge.low || low, low].min }
        end
      end

      # Lowers the recorded lows of the other charges after one was settled to a lower cost.
      def lower_others(settled, taken)
        return if settled.low.nil?

        low = [settled.low - taken, 0].max
        place = charges.index { |charge| charge.equal?(settled) }
        charges.each_with_index do |charge, index|
          if index < place
            charge.low = [charge.low || low, low].min
          elsif charge.low
            charge.low = [charge.low - taken, 0].max
          end
        end
      end

      def changed(rule, now)
        @recovers_at = [now + rule.reset(usage, now), LATEST].min
        @usage = rule.unused if usage.unused?
      end
    end

    # Value of a key.
    class Key
      # `plain` is true if it stores the usage of one limit alone. `expires_at` is in milliseconds.
      attr_accessor :plain, :parts, :remembered, :expires_at

      def initialize
        @plain = false
        @parts = []
        @remembered = {}
        @written = 0
        @expires_at = 0
      end

      def unused?
        remembered.empty? && parts.all? { |part| part.usage.unused? }
      end

      def leases
        parts.map(&:usage).find { |usage| usage.is_a?(Leases) }
      end

      # Returns the stored usage for each limit of a call.
      def find(specs)
        specs.each_with_object([]) do |spec, found|
          of_kind = parts.select { |part| part.kind == spec.rule.kind }
          same = of_kind.find { |part| part.identity == spec.identity || (spec.rule.key.nil? && part.identity) }
          found << (same || of_kind.find { |part| part.identity.nil? && found.none? { |one| one.equal?(part) } })
        end
      end

      # Returns the record of an earlier call with the same id.
      def recall(call, now)
        id, = call.once || call.settle
        repeated = remembered[id]
        repeated if repeated && now < repeated.expires_at
      end

      # Returns how far the clock was set back since the last change, or 0.
      def ahead(now)
        return 0 if unused?

        plain ? parts.first.usage.ahead(now) : [@written - now, 0].max
      end

      # Shifts all timestamps after the clock was set back to `now`.
      def move_back(now)
        back = ahead(now)
        parts.each { |part| part.move_back(now) }
        remembered.each_value do |call|
          call.expires_at -= back
          call.hold_until -= back
        end
        @written = [@written, now].min
        @expires_at -= back / 1000
      end

      # Begins a change: removes expired records.
      def begin(now)
        if plain
          # A plain key stores its time of recovery only as its expiry.
          @plain = false
          @written = now
          parts.first.recovers_at = [now + ([expires_at - (now / 1000), 0].max * 1000), LATEST].min
        end
        remembered.delete_if do |_, call|
          over = call.expires_at <= now
          call.charges.each { |part, charge| part.forget(charge) } if over
          over
        end
      end

      def end(now)
        @written = now
        parts.select! { |part| part.stays?(now) }
      end

      def recovers_in(now)
        ends = parts.map(&:recovers_at) + remembered.values.map(&:expires_at)
        [(ends.max || 0) - now, 0].max
      end

      # Sets the expiry of a key that recovers in `reset`, unless the current one is close enough.
      def expire(reset, now)
        recovered = now + reset
        latest = ((recovered + (reset / 8) + UNIT) / 1000) - 1
        @expires_at = latest unless expires_at.between?(Memory.ceil_div(recovered, 1000) + 1, latest)
      end

      # Releases leases. Returns how many were held.
      def release(holders, now)
        part = parts.find { |one| one.usage.is_a?(Leases) }
        if part.nil?
          Key.wrong_type(parts.first.kind, "rl-leases") if plain
          return 0
        end
        released = part.usage.release(holders, now)
        if released.positive?
          part.recovers_at = now + part.usage.recovers_in(now)
          unless plain
            self.begin(now)
            self.end(now)
          end
          expire(recovers_in(now), now)
        end
        released
      end

      def self.wrong_type(holds, needs)
        Memory.refuse("Operation against a key holding #{holds}, where #{needs} is needed", "WRONGTYPE")
      end
    end
  end
end
