# frozen_string_literal: true

require "redis_ratelimit/memory/rule"
require "redis_ratelimit/memory/pools"
require "redis_ratelimit/memory/windows"
require "redis_ratelimit/memory/leases"
require "redis_ratelimit/memory/grammar"
require "redis_ratelimit/memory/key"
require "redis_ratelimit/memory/visit"

module RedisRatelimit
  # Keys in this process, in place of a `Redis`, for tests. It replies to the module's commands as the server does,
  # except that sketches, policies and bans are errors. `clock` returns the seconds since 1970.
  class Memory
    # Minimum number of keys at which expired keys are removed.
    MIN_SWEEP_SIZE = 1000

    def initialize(clock: -> { Time.now.to_f })
      @clock = clock
      @keys = {}
      @sweep_size = MIN_SWEEP_SIZE
      @last_token = 0
      @lock = Mutex.new
    end

    # Returns the reply to a call. Raises Redis::CommandError.
    def call(*words)
      @lock.synchronize { reply(Words.new(words.flatten), ((@clock.call * UNIT).round).clamp(0, LATEST)) }
    end

    private

    def reply(words, now)
      command = words.peek
      words.next("command")
      Memory.refuse_server_features(command)
      peek = %w[RL.PEEK RL.MPEEK].include?(command)
      return keys_reply(Grammar.keys(words, peek: peek), now, peek: peek) if %w[RL.MTAKE RL.MPEEK].include?(command)

      name = words.next("key")
      case command
      when "RL.TAKE", "RL.PEEK" then key_reply(name, Grammar.call(words, peek: peek), now, peek: peek)
      when "RL.ACQUIRE" then acquire(name, words, now)
      when "RL.RELEASE" then release(name, words, now)
      when "DEL"
        found = find(name, now)
        @keys.delete(name)
        found ? 1 : 0
      else Memory.refuse("a limiter in memory does not know '#{command}'")
      end
    end

    def find(name, now)
      @keys.delete(name) if @keys.key?(name) && now / 1000 > @keys[name].expires_at
      @keys[name]
    end

    # Returns the key, or a new one, shifted if the clock was set back. A peek changes nothing.
    def open(name, now, peek:)
      key = find(name, now) || Key.new
      return key unless key.ahead(now).positive?

      key = Marshal.load(Marshal.dump(key)) if peek
      key.tap { |one| one.move_back(now) }
    end

    def store(name, key, now)
      key.unused? ? @keys.delete(name) : @keys[name] = key
      return if @keys.length < @sweep_size

      @keys.select! { |_, one| now / 1000 <= one.expires_at }
      @sweep_size = MIN_SWEEP_SIZE + (2 * @keys.length)
    end

    # Evaluates a call on every key, and charges all or none. Returns the visits, and true if the call was committed.
    def visit(keys, now, peek:)
      visits = keys.map { |name, call| Visit.new(call, open(name, now, peek: peek), now) }
      allowed = visits.first.call.settle ? visits.any?(&:knows?) : visits.none?(&:denies?)
      visits.each(&:check_room) if allowed
      keys.zip(visits) do |(name, call), one|
        next if peek || !one.changes? || !(allowed || call.settle)

        one.commit
        store(name, one.key, now)
      end
      [visits, allowed]
    end

    def key_reply(name, call, now, peek:)
      (visit,), = visit([[name, call]], now, peek: peek)
      each = visit.decisions
      combined = visit.combined(each)
      return combined.row unless call.each

      rows = each.zip(call.specs).map { |decision, spec| [*decision.row, *spec.name] }
      [combined.allowed? ? 1 : 0, LimitDecision.wait(combined.verdict), rows]
    end

    def keys_reply(keys, now, peek:)
      visits, allowed = visit(keys, now, peek: peek)
      decisions = visits.map { |one| one.combined(one.decisions) }
      counted = decisions.zip(visits).select do |decision, one|
        allowed ? decision.allowed? : one.call.settle || one.denies?
      end
      wait = counted.map { |decision, _| decision.verdict }.max || AT_ONCE
      [allowed ? 1 : 0, LimitDecision.wait(wait), decisions.map(&:row)]
    end

    def acquire(name, words, now)
      call, fences = Grammar.acquire(words)
      rule = call.specs.first.rule
      rule.token = @last_token = [now, @last_token + 1].max if fences
      row = key_reply(name, call, now, peek: false)
      return row unless fences

      _, _, token = @keys[name]&.leases&.live(now)&.fetch(rule.holder, nil)
      [*row, row.first == 1 ? token : 0]
    end

    def release(name, words, now)
      holders = [words.name("holder")]
      holders << words.name("holder") until words.over?
      key = open(name, now, peek: false)
      released = key.release(holders, now)
      store(name, key, now) if released.positive?
      released
    end
  end
end
