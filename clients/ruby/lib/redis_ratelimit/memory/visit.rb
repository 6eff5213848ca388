# frozen_string_literal: true

module RedisRatelimit
  class Memory
    # Verdict of one limit on a call, before anything is changed. A negative `change` is given back.
    Evaluation = Struct.new(:part, :verdict, :forced, :change, :granted) do
      def denies?
        !forced && verdict.first != ALLOWED
      end
    end

    # Decision of one limit, or of all limits.
    LimitDecision = Struct.new(:verdict, :limit, :remaining, :reset, :granted) do
      def allowed?
        verdict.first == ALLOWED
      end

      def row
        row = [allowed? ? 1 : 0, limit / UNIT, remaining / UNIT, LimitDecision.wait(verdict), Memory.ceil_div(reset, 1000)]
        granted ? [*row, granted / UNIT] : row
      end

      # Returns the wait of a verdict in milliseconds.
      def self.wait(verdict)
        verdict == NEVER_EVER ? -1 : Memory.ceil_div(verdict.last, 1000)
      end
    end

    # Call at one key: evaluation, charging and reply.
    class Visit
      attr_reader :call, :key, :outcome

      def initialize(call, key, now)
        kind = call.specs.first.rule.kind
        Key.wrong_type(key.parts.first.kind, kind) if key.plain && call.specs.one? && key.parts.first.kind != kind
        @call = call
        @key = key
        @now = now
        @repeated = key.recall(call, now)
        @evaluations = call.specs.zip(key.find(call.specs)).map { |spec, part| evaluate(spec, part) }
        # With UPTO, all limits grant the minimum of what each can grant.
        @granted = @evaluations.filter_map(&:granted).min
        @evaluations.each { |one| one.granted = one.change = @granted if one.granted }
        @outcome = decide
        @charged = false
      end

      def denies?
        outcome == :denied
      end

      def knows?
        !@repeated.nil?
      end

      def changes?
        outcome == :settles || (outcome == :passes && @evaluations.any? { |one| !one.change.zero? })
      end

      # Raises an error if the key has no room for the call.
      def check_room
        return if key.plain || outcome != :passes

        charged = @evaluations.select { |one| one.change.positive? }.map(&:part)
        added = charged.count(nil)
        staying = key.parts.count { |part| part.stays?(@now) || charged.any? { |one| one.equal?(part) } }
        return unless added.positive? && staying + added > 16

        Memory.refuse("the key has 16 limits, as many as one key may have")
      end

      # Applies the changes.
      def commit
        @charged = true
        changing = pairs.reject { |_, one| one.change.zero? }
        if key.unused? && call.plain
          spec, one = changing.first
          one.part = Part.new(spec.rule)
          key.parts = [one.part]
          key.plain = true
        end
        if key.plain && !remembers? && changing.all? { |spec, one| one.part && spec.name.nil? }
          changing.each do |spec, one|
            one.part.change(spec.rule, one.change, @now)
            key.expire(one.part.recovers_at - @now, @now)
          end
          return
        end
        key.begin(@now)
        outcome == :settles ? settle : charge_all(changing)
        key.end(@now)
        @evaluations.zip(key.find(call.specs)) { |one, part| one.part = part }
        key.expire(key.recovers_in(@now), @now)
      end

      # Returns the decision of each limit, with the current usage.
      def decisions
        pairs.map { |spec, one| decision_of(spec, one) }
      end

      # Returns the combined decision of all limits.
      def combined(each)
        denying = each.each_index.select { |index| denies? ? @evaluations[index].denies? : !each[index].allowed? }
        verdict = (denying.empty? ? each : each.values_at(*denying)).map(&:verdict).max
        index = denying.find { |place| each[place].verdict == verdict } || first_to_run_out(each)
        governing = each[index]
        LimitDecision.new(verdict, governing.limit, governing.remaining, governing.reset, granted_in(verdict))
      end

      private

      def pairs
        call.specs.zip(@evaluations)
      end

      def evaluate(spec, part)
        rule = spec.rule
        request = @repeated ? NOTHING : spec.request
        rule.first = false if @repeated && rule.is_a?(Concurrency)
        usage = part ? part.usage : rule.unused
        cost = request.cost
        return Evaluation.new(part, AT_ONCE, false, usage.unused? ? 0 : -cost) if request.mode == "BACK"

        kind, wait = verdict = rule.verdict(usage, @now, { "UPTO" => UNIT, "PAST" => 1 }.fetch(request.mode, cost))
        if request.mode == "MAXWAIT" && kind == AFTER
          verdict = wait <= request.max_wait ? [ALLOWED, wait] : [AFTER, wait - request.max_wait]
        end
        passes = verdict.first == ALLOWED
        if request.mode == "UPTO"
          granted = passes ? [rule.remaining(usage, @now) / UNIT * UNIT, cost].min : 0
          return Evaluation.new(part, verdict, false, granted, granted)
        end
        forced = request.mode == "FORCE"
        Evaluation.new(part, verdict, forced, passes || forced ? cost : 0)
      end

      def decide
        return @repeated ? (@repeated.settled ? :settled : :settles) : :unknown if call.settle
        return :repeated if @repeated

        call.purpose != "BACK" && @evaluations.any?(&:denies?) ? :denied : :passes
      end

      def remembers?
        !call.once.nil? && outcome == :passes && changes?
      end

      def charge_all(changing)
        charges = []
        changing.each do |spec, one|
          key.parts << (one.part = Part.new(spec.rule)) if one.part.nil?
          part = one.part
          part.identity ||= spec.identity
          part.change(spec.rule, one.change, @now)
          next unless remembers? && one.change.positive? && !part.usage.is_a?(Leases)

          part.charges << Charge.new(one.change, part.usage.place, part.given_back)
          charges << [part, part.charges.last]
        end
        return unless remembers?

        id, ttl = call.once
        hold = @evaluations.filter_map { |one| one.verdict.last if one.verdict.first == ALLOWED }.max || 0
        key.remembered[id] = Remembered.new([@now + ttl, LATEST].min, [@now + hold, LATEST].min,
                                            @evaluations.any?(&:forced), @granted, charges, false)
      end

      def settle
        cost = call.settle.last
        charges = @repeated.charges
        @repeated.charges = []
        @repeated.settled = true
        charges.each do |part, charge|
          spec, = pairs.find { |_, one| one.part.equal?(part) }
          if spec.nil? || spec.own_cost || cost == charge.cost
            part.forget(charge)
          else
            part.settle(spec.rule, charge, cost, @now)
          end
        end
      end

      def decision_of(spec, one)
        rule = spec.rule
        usage = one.part ? one.part.usage : rule.unused
        verdict = one.verdict
        verdict = [AFTER, rule.debt_after(usage, @now, @charged ? 0 : one.change)] if one.forced && verdict.first != ALLOWED
        verdict = overridden(verdict, spec)
        if spec.request.mode == "UPTO"
          granted = outcome == :repeated ? granted_before(spec.request.cost, verdict) : one.granted || 0
        end
        LimitDecision.new(verdict, rule.limit + spec.kept, rule.remaining(usage, @now), rule.reset(usage, @now), granted)
      end

      # Returns the verdict of a limit, which a settlement, a repeated call or a give-back overrides.
      def overridden(verdict, spec)
        case outcome
        when :unknown then NEVER_EVER
        when :settles, :settled then AT_ONCE
        when :repeated
          past = spec.request.mode == "FORCE" || call.specs.none? { |one| one.request.mode == "FORCE" }
          return verdict if @repeated.forced && verdict.first != ALLOWED && past

          [ALLOWED, [@repeated.hold_until - @now, 0].max]
        else call.purpose == "BACK" ? AT_ONCE : verdict
        end
      end

      # Returns the index of the limit with the smallest `remaining / cost`.
      def first_to_run_out(each)
        costs = call.specs.map do |spec|
          %w[BACK PAST].include?(spec.request.mode) || spec.request.cost.zero? ? UNIT : spec.request.cost
        end
        each.each_index.min_by { |index| [Rational(each[index].remaining, costs[index]), index] }
      end

      def granted_in(verdict)
        upto = call.specs.find { |spec| spec.request.mode == "UPTO" } or return
        return @granted || upto.request.cost if outcome == :passes

        outcome == :repeated ? granted_before(upto.request.cost, verdict) : 0
      end

      def granted_before(most, verdict)
        @repeated.granted || (verdict.first == ALLOWED ? most : 0)
      end
    end
  end
end
