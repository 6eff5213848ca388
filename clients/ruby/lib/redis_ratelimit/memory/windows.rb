# frozen_string_literal: true

module RedisRatelimit
  class Memory
    # Usage of a sliding window counter: the counts of two windows, and their length.
    class Slider < Usage
      attr_accessor :start, :window, :previous, :current

      def initialize(start = 0, window = 0, previous = 0, current = 0)
        super()
        replace(start, window, previous, current)
      end

      def replace(start, window, previous, current)
        @start = start
        @window = window
        @previous = previous
        @current = current
      end

      # Returns the usage with the window that contains `now` as the current one.
      def rolled(now)
        passed = window.zero? ? 2 : [now - start, 0].max / window
        return self if passed.zero?

        passed == 1 ? Slider.new(start + window, window, current, 0) : Slider.new
      end

      def present(now)
        return 0 if window.zero?

        overlap = [window - [now - start, 0].max, 0].max
        [Memory.ceil_div(previous * overlap, window) + current, MOST].min
      end

      def saturated?
        previous == MOST || current == MOST
      end

      def unused?
        previous.zero? && current.zero?
      end

      def ahead(now)
        [start - now, 0].max
      end

      def move_back(now)
        @start = [start, now].min
      end

      alias place start

      def take_back(place, units)
        return 0 if place.nil? || saturated?

        if place == start
          taken = [units, current].min
          @current -= taken
        elsif place + window == start
          taken = [units, previous].min
          @previous -= taken
        end
        taken || 0
      end
    end

    # Sliding window counter.
    class Sliding < Rule
      def initialize(limit, window)
        super
        @window = window
      end

      def kind
        "rl-slider"
      end

      def unused
        Slider.new
      end

      def present(usage, now)
        usage.rolled(now).present(now)
      end

      def verdict(usage, now, cost)
        rolled = usage.rolled(now)
        return AT_ONCE if rolled.present(now) + cost <= limit
        return NEVER_EVER if rolled.window.zero? || cost > limit

        room = limit - cost
        wait = if room >= rolled.current
                 fades(rolled.previous, room - rolled.current, rolled.window)
               else
                 rolled.window + fades(rolled.current, room, rolled.window)
               end
        after(wait - [now - rolled.start, 0].max)
      end

      def reset(usage, now)
        rolled = usage.rolled(now)
        windows = if rolled.current.positive? then 2
                  else rolled.previous.positive? ? 1 : 0
                  end
        [(windows * rolled.window) - [now - rolled.start, 0].max, 0].max
      end

      def charge(usage, now, cost)
        advance(usage, now)
        usage.current = plus(usage.current, cost)
      end

      def give_back(usage, now, units)
        advance(usage, now)
        rest = [units - usage.current, 0].max
        usage.current = [usage.current - units, 0].max
        overlap = usage.window - [now - usage.start, 0].max
        usage.previous = [usage.previous - (rest * usage.window / overlap), 0].max if overlap.positive?
      end

      def low(usage, now)
        opens = usage.window != @window || usage.rolled(now).unused?
        opens || usage.saturated? ? 0 : nil
      end

      private

      # Returns the time within a window at which the weighted previous count falls to `room`.
      def fades(count, room, window)
        count.zero? ? 0 : [window - (room * window / count), 0].max
      end

      def advance(usage, now)
        rolled = usage.rolled(now)
        rolled = Slider.new(now, @window, 0, rolled.present(now)) if rolled.window != @window || rolled.unused?
        usage.replace(rolled.start, rolled.window, rolled.previous, rolled.current)
      end
    end

    # Usage of a strict sliding window: counts by the number of the slot.
    class Slots < Usage
      attr_accessor :window, :written, :counts

      def initialize
        super
        @window = @written = 0
        @counts = {}
      end

      def width
        [Memory.ceil_div(window, 60), 1].max
      end

      # Returns the time at which a slot leaves the window.
      def leaves(slot)
        ((slot + 1) * width) - 1 + window
      end

      # Returns the slots within the window, newest first.
      def counting(now)
        counts.select { |slot, _| now < leaves(slot) }.sort.reverse
      end

      def unused?
        counts.empty?
      end

      def saturated?
        counts.value?(MOST)
      end

      def ahead(now)
        [written - now, 0].max
      end

      def move_back(now)
        moved = {}
        counts.each do |old, count|
          slot = moved_slot(old, now)
          moved[slot] = [(moved[slot] || 0) + count, MOST].min if now < leaves(slot)
        end
        @counts = moved
        @written = [written, now].min
      end

      def place
        written / width * width
      end

      def moved_place(place, now)
        slot = place / width
        moved_slot(slot, now) * width if ((slot + 1) * width) - 1 >= ahead(now)
      end

      def take_back(place, units)
        place.nil? || saturated? ? 0 : lower(place / width, units)
      end

      # Subtracts up to `units` from a slot. Returns how many.
      def lower(slot, units)
        count = counts.fetch(slot, 0)
        taken = [units, count].min
        counts[slot] = count - taken
        counts.delete(slot) if counts[slot].zero?
        taken
      end

      def recovers_in(now)
        newest, = counting(now).first
        newest ? leaves(newest) - now : 0
      end

      def moved_recovery(recovers_at, ahead, now)
        [recovers_at - ahead, now + recovers_in(now)].max
      end

      private

      def moved_slot(slot, now)
        last = [((slot + 1) * width) - 1 - ahead(now), 0].max
        [last / width, now / width].min
      end
    end

    # Strict sliding window of 60 slots.
    class Strict < Rule
      def initialize(limit, window)
        super
        @window = window
      end

      def kind
        "rl-strict"
      end

      def unused
        Slots.new
      end

      def present(usage, now)
        [usage.counting(now).sum { |_, count| count }, MOST].min
      end

      def verdict(usage, now, cost)
        return NEVER_EVER if cost > limit

        total = 0
        usage.counting(now).each do |slot, count|
          total += count
          return after(usage.leaves(slot) - now) if total + cost > limit
        end
        AT_ONCE
      end

      def reset(usage, now)
        usage.recovers_in(now)
      end

      def charge(usage, now, cost)
        advance(usage, now)
        slot = now / usage.width
        usage.counts[slot] = plus(usage.counts.fetch(slot, 0), cost)
      end

      def give_back(usage, now, units)
        advance(usage, now)
        usage.counts.keys.sort.each { |slot| units -= usage.lower(slot, units) }
      end

      def low(usage, _now)
        usage.window != @window || usage.saturated? ? 0 : nil
      end

      private

      def advance(usage, now)
        counting = usage.counting(now).to_h
        present = present(usage, now)
        stays = usage.window == @window
        usage.window = @window
        usage.written = now
        usage.counts = if stays then counting
                       else present.positive? ? { now / usage.width => present } : {}
                       end
      end
    end

    # Usage of a sliding log: the times and costs of charges, oldest first.
    class Entries < Usage
      attr_accessor :entries

      def initialize
        super
        @entries = []
      end

      def total
        entries.sum(&:last)
      end

      def unused?
        entries.empty?
      end

      def ahead(now)
        [(place || 0) - now, 0].max
      end

      def move_back(now)
        back = ahead(now)
        before = entries
        @entries = []
        before.each { |at, cost| add([at - back, 0].max, cost) }
      end

      def place
        entries.last&.first
      end

      def add(at, cost)
        if place == at
          entries.last[1] += cost
        elsif cost.positive?
          entries.push([at, cost])
        end
      end

      # Subtracts up to `units` from the entries of an instant, or from all entries, oldest first. Returns how many.
      def lower(units, place = nil)
        rest = units
        entries.each do |entry|
          taken = place.nil? || entry[0] == place ? [rest, entry[1]].min : 0
          entry[1] -= taken
          rest -= taken
        end
        entries.reject! { |_, cost| cost.zero? }
        units - rest
      end

      def take_back(place, units)
        place.nil? || total == MOST ? 0 : lower(units, place)
      end
    end

    # Sliding window log.
    class SlidingLog < Rule
      def initialize(limit, window)
        super
        @window = window
      end

      def kind
        "rl-reqlog"
      end

      def unused
        Entries.new
      end

      def present(usage, now)
        usage.entries.sum { |at, cost| at + @window > now ? cost : 0 }
      end

      def verdict(usage, now, cost)
        return AT_ONCE if present(usage, now) + cost <= limit
        return NEVER_EVER if cost > limit

        newer = 0
        usage.entries.reverse_each do |at, units|
          newer += units
          return after(at + @window - now) if newer + cost > limit
        end
        AT_ONCE
      end

      def reset(usage, now)
        usage.unused? ? 0 : [usage.place + @window - now, 0].max
      end

      def charge(usage, now, cost)
        forget(usage, now)
        usage.add(now, [cost, MOST - usage.total].min)
      end

      def give_back(usage, now, units)
        forget(usage, now)
        usage.lower(units)
      end

      def low(usage, _now)
        usage.total == MOST ? 0 : nil
      end

      private

      def forget(usage, now)
        usage.entries.select! { |at, _| at + @window > now }
      end
    end
  end
end
