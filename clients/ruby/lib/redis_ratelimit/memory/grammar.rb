# frozen_string_literal: true

module RedisRatelimit
  class Memory
    MOST_UNITS = 10**12
    NUMBER = '\d+(?:\.\d+)?(?:e[+-]?\d{1,4})?'
    DURATION = /\A(#{NUMBER})(us|ms|s|m|h|d|)\z/
    MICROSECONDS = { "us" => 1, "ms" => 1000, "" => UNIT, "s" => UNIT, "m" => 60 * UNIT, "h" => 3600 * UNIT,
                     "d" => DAY }.freeze
    MODES = %w[UPTO FORCE MAXWAIT].freeze
    OF_KEYS = %w[COST FORCE MAXWAIT KEEP ONCE SETTLE].freeze
    OF_A_CALL = [*OF_KEYS, "UPTO", "EACH"].freeze
    OF_A_RATE = %w[COST UPTO FORCE KEEP ONCE SETTLE AS].freeze
    OF_LEASES = %w[COST KEEP AS NX].freeze
    # Options that may follow the numbers of each algorithm.
    BEHIND = { "TOKENBUCKET" => [*OF_A_RATE, "MAXWAIT"], "LEAKYBUCKET" => OF_A_RATE,
               "FIXED" => [*OF_A_RATE, "ALIGNED", "OFFSET", "ANCHOR"], "SLIDING" => [*OF_A_RATE, "STRICT"],
               "SLIDINGLOG" => OF_A_RATE, "CONCURRENCY" => OF_LEASES }.freeze

    def self.refuse(text, code = "ERR")
      raise Redis::CommandError, "#{code} #{text}"
    end

    # Raises an error for commands and words of features that need a server.
    def self.refuse_server_features(word)
      feature = case word
                when "POLICY", "RL.LIMIT", "RL.DELAY", /\ARL\.POLICY/ then "policies"
                when "BAN", "RL.BAN" then "bans"
                when "SKETCH", "RL.SKETCH" then "sketches"
                end
      refuse("a limiter in memory has no #{feature}: they need a server with the module") if feature
    end

    # Reader of the words of a call, from left to right.
    class Words
      def initialize(words)
        @words = words.map { |word| word.to_s.b }
      end

      def over?
        @words.empty?
      end

      # Returns the next word in upper case, or "" at the end.
      def peek
        @words.first.to_s.upcase
      end

      def next(description)
        Memory.refuse("#{description} is missing") if over?
        @words.shift
      end

      def name(description)
        name = self.next(description)
        Memory.refuse("#{description} must be 1 to 256 bytes") unless name.bytesize.between?(1, 256)
        name
      end

      # Reads an amount in millionths, rounded down.
      def amount(description)
        self.class.amount(self.next(description), description).floor
      end

      # Reads an amount in millionths, rounded up.
      def cost(description)
        self.class.amount(self.next(description), description).ceil
      end

      def duration(description, zero: false)
        found = self.class.duration(self.next(description))
        return found if found&.positive? || (found && zero)

        Memory.refuse("#{description} must be a duration from 1us to 3650d, such as 60s")
      end

      # Returns an amount in millionths, not rounded.
      def self.amount(text, description)
        exact = Rational(text) * UNIT if text.match?(/\A#{NUMBER}\z/)
        return exact if exact && exact <= MOST_UNITS * UNIT

        Memory.refuse("#{description} must be a number from 0 to #{MOST_UNITS}, not '#{text}'")
      end

      # Returns a duration in microseconds, rounded up; nil unless it is 0 or from 1us to 3650d.
      def self.duration(text)
        match = DURATION.match(text) or return
        exact = Rational(match[1]) * MICROSECONDS.fetch(match[2])
        exact.ceil if (exact.zero? || exact >= 1) && exact <= 3650 * DAY
      end
    end

    # Request to one limit: TAKE, UPTO, FORCE, MAXWAIT, BACK, or PAST for a peek with a KEEP above the limit.
    Request = Struct.new(:mode, :cost, :max_wait) do
      def peek?
        mode == "PAST" || (cost.zero? && !%w[UPTO BACK].include?(mode))
      end

      def purpose
        return "BACK" if mode == "BACK"

        peek? ? "CHECK" : "CHARGE"
      end
    end
    NOTHING = Request.new("TAKE", 0, 0).freeze

    # Options before the specs, or of one spec. `keep` is an amount, or a rational share.
    Options = Struct.new(:cost, :back, :whole, :mode, :max_wait, :keep, :name, :flags, :offset, :anchor, :once, :settle) do
      # Parses options in any order, up to a word that is not in `among`.
      def self.read(words, among)
        options = new(nil, false, true, nil, 0, nil, nil, [])
        places = []
        while among.include?(word = words.peek)
          words.next(word)
          # Some options exclude each other.
          place = case word
                  when *MODES then "MODE"
                  when "ONCE", "SETTLE" then "ID"
                  else word
                  end
          Memory.refuse("syntax error, unexpected #{word}") if places.include?(place)
          places << place
          options.take(word, words)
        end
        options
      end

      def take(word, words)
        self.mode = word if MODES.include?(word)
        case word
        when "COST" then take_cost(words.next("cost"))
        when "MAXWAIT" then self.max_wait = words.duration("maxwait", zero: true)
        when "KEEP" then take_keep(words.next("keep"))
        when "AS"
          self.name = words.next("name")
          Memory.refuse("name must be 1 to 32 of A-Z, a-z, 0-9, _ and -") unless name.match?(/\A[A-Za-z0-9_-]{1,32}\z/)
        when "OFFSET" then take_offset(words.next("offset"))
        when "ANCHOR"
          day = words.next("anchor")
          Memory.refuse("anchor must be a day from 1 to 31") unless day.match?(/\A\d{1,2}\z/) && day.to_i.between?(1, 31)
          self.anchor = day.to_i
        when "ONCE" then self.once = [words.name("id"), words.duration("ttl")]
        when "SETTLE" then self.settle = [words.name("id"), words.cost("amount")]
        else flags << word
        end
      end

      # Returns the request for a mode and the cost, 1 by default.
      def request(mode, max_wait)
        cost = self.cost || UNIT
        if back
          Memory.refuse("cost must be 0 or more with #{mode}") if mode
          return Request.new("BACK", cost, 0)
        end
        if mode == "UPTO" && !(whole && cost.positive?)
          Memory.refuse("cost must be a whole number from 1 with UPTO")
        end
        Request.new(mode || "TAKE", cost, max_wait)
      end

      private

      def take_cost(text)
        exact = Words.amount(text.delete_prefix("-"), "cost")
        self.back = text.start_with?("-") && exact.positive?
        self.cost = back ? exact.floor : exact.ceil
        self.whole = (exact % UNIT).zero?
      end

      def take_keep(text)
        self.keep = text.end_with?("%") ? share(text.delete_suffix("%")) : Words.amount(text, "keep").ceil
      end

      def share(text)
        share = Words.amount(text, "keep") / UNIT
        Memory.refuse("keep must be a share from 0% to 100%") if share > 100
        Rational(share)
      end

      def take_offset(text)
        match = /\A([+-])(\d\d):([0-5]\d)\z/.match(text)
        minutes = match ? (match[2].to_i * 60) + match[3].to_i : 841
        Memory.refuse("offset must be from -14:00 to +14:00, such as +09:00") if minutes > 840
        self.offset = (match[1] == "-" ? -minutes : minutes) * 60 * UNIT
      end
    end

    # Limit and the request to it. KEEP lowers the limit.
    Spec = Struct.new(:rule, :request, :kept, :name, :own_cost) do
      # Returns the name of the limit among those of its algorithm.
      def identity
        name || [rule.key]
      end
    end

    # Parsed call for one key. `purpose` is CHARGE, CHECK, BACK or SETTLE; `plain` is true if a key that stores one
    # limit alone can serve it.
    KeyCall = Struct.new(:specs, :purpose, :once, :settle, :each, :plain)

    # Options before the first spec, which apply to all specs.
    class Common
      attr_reader :options, :purpose

      def initialize(options)
        @options = options
        refuse_beside_settle(options)
        @purpose = if options.settle then "SETTLE"
                   elsif options.back then "BACK"
                   else options.cost == 0 ? "CHECK" : "CHARGE"
                   end
        refuse_keep(options.keep, options.request(options.mode, options.max_wait))
        refuse_once(options)
      end

      def refuse_beside_settle(options)
        return unless options.settle && (options.cost || options.mode || options.keep)

        Memory.refuse("syntax error: SETTLE says the cost")
      end

      def spec(rule, own)
        apart = !own.cost.nil? || rule.is_a?(Concurrency)
        request = request_of(rule, own, apart)
        refuse_once(own)
        keep = own.keep
        keep = options.keep if keep.nil? && (options.keep.is_a?(Rational) || !apart)
        refuse_keep(keep, request)
        keep = (rule.limit * keep / 100).ceil if keep.is_a?(Rational)
        request = Request.new("PAST", 0, 0) if keep && keep > rule.limit && request.peek?
        kept = [keep || 0, rule.limit].min
        rule.limit -= kept
        rule.first = own.flags.include?("NX") if rule.is_a?(Concurrency)
        Spec.new(rule, request, kept, own.name, !own.cost.nil?)
      end

      private

      def refuse_keep(keep, request)
        return unless keep && (%w[SETTLE BACK].include?(purpose) || %w[FORCE BACK].include?(request.mode))

        Memory.refuse("syntax error, unexpected KEEP: it keeps nothing of such a call")
      end

      def refuse_once(own)
        Memory.refuse("cost must be 0 or more with ONCE") if options.once && own.back
      end

      def request_of(rule, own, apart)
        if purpose == "SETTLE"
          Memory.refuse("syntax error, unexpected #{own.mode}: SETTLE says the cost") if own.mode && !apart
          return NOTHING
        end
        return purpose == "CHARGE" ? own.request(own.mode, own.max_wait) : NOTHING if apart
        return options.request(own.mode, own.max_wait) if own.mode
        return options.request(nil, 0) if options.mode == "MAXWAIT" && !rule.waits?

        options.request(options.mode, options.max_wait)
      end
    end

    # Parser of calls, with the server's error messages.
    module Grammar
      module_function

      # Parses the arguments of a call for one key: `[options] spec [spec ...]`.
      def call(words, peek:)
        common = Common.new(Options.read(words, OF_A_CALL))
        read = [spec(words)]
        read << spec(words) until words.over?
        return only(common, *read.first, peek: peek) if read.one?

        specs = read.map { |rule, own| among_several(common, rule, own) }
        if read.any? { |_, own| own.back }
          Memory.refuse("cost must be 0 or more behind one of several limits")
        end
        refuse_twins(specs)
        made(common, specs, common.purpose, peek: peek)
      end

      # Parses the arguments of a call for several keys: `numkeys key [key ...] [options] spec [spec ...]`. Returns
      # pairs of a key and its call.
      def keys(words, peek:)
        numkeys = words.next("numkeys")
        Memory.refuse("numkeys must be how many keys follow") unless numkeys.match?(/\A[1-9]\d{0,5}\z/)
        keys = Array.new(numkeys.to_i) { words.next("key") }
        common = Common.new(Options.read(words, OF_KEYS))
        calls = keys.map { made(common, [among_several(common, *spec(words))], nil, peek: peek) }
        Memory.refuse("syntax error: more words than specs for the keys") unless words.over?
        Memory.refuse("keys must be different from each other") if keys.uniq.length < keys.length
        keys.zip(calls)
      end

      # Parses the arguments of RL.ACQUIRE: `limit ttl holder [options]`. Returns the call, and true if it requests a
      # fencing token.
      def acquire(words)
        rule, own = rule(words, "CONCURRENCY", [*OF_LEASES, "FENCE"])
        Memory.refuse("syntax error, unexpected '#{words.peek}'") unless words.over?
        [only(Common.new(Options.read(Words.new([]), [])), rule, own, peek: false), own.flags.include?("FENCE")]
      end

      def spec(words)
        algorithm = words.peek
        Memory.refuse_server_features(algorithm)
        behind = BEHIND[algorithm] || Memory.refuse("syntax error, unexpected '#{algorithm}': a spec is needed")
        words.next("spec")
        rule(words, algorithm, behind)
      end

      # Parses the numbers of an algorithm and the options after them.
      def rule(words, algorithm, behind)
        limit = words.amount("limit")
        case algorithm
        when "FIXED" then return fixed(words, limit, behind)
        when "TOKENBUCKET", "LEAKYBUCKET" then return bucket(words, limit, algorithm, behind)
        end
        window = words.duration("window")
        holder = words.name("holder") if algorithm == "CONCURRENCY"
        own = Options.read(words, behind)
        if holder
          Memory.refuse("cost must be a number above 0") if own.back || own.cost == 0
          return [Concurrency.new(limit, window, holder), own]
        end
        kind = if algorithm == "SLIDINGLOG" then SlidingLog
               else own.flags.include?("STRICT") ? Strict : Sliding
               end
        [kind.new(limit, window), own]
      end

      def bucket(words, capacity, algorithm, behind)
        refill = words.amount("refill")
        period = words.duration("period")
        own = Options.read(words, behind)
        Memory.refuse("refill must be a number from 0.000001 to #{MOST_UNITS}") if refill.zero?
        bucket = Bucket.new(capacity, refill, period, queues: algorithm == "LEAKYBUCKET")
        return [bucket, own] if bucket.drains_in(capacity) <= LATEST / 10

        Memory.refuse("refill must be enough to refill the capacity within 36500d")
      end

      def fixed(words, limit, behind)
        text = words.next("window")
        calendar = text if Clocks::MONTHS.key?(text)
        window = calendar ? 0 : Words.duration(text)
        Memory.refuse("window must be a duration, or with ALIGNED 1w, 1mo, 3mo or 1y") if window.nil? || (window.zero? && !calendar)
        own = Options.read(words, behind)
        unless own.flags.include?("ALIGNED")
          Memory.refuse("syntax error: windows of #{text} need ALIGNED") if calendar || own.offset || own.anchor
          return [Fixed.new(limit, window), own]
        end
        if own.anchor && !calendar.to_s.end_with?("mo")
          Memory.refuse("syntax error, unexpected ANCHOR: it is for months and quarters")
        end
        [Fixed.new(limit, window, Clocks.new(window, calendar, own.offset || 0, own.anchor || 1)), own]
      end

      # Builds a call with one spec.
      def only(common, rule, own, peek:)
        if own.once || own.settle
          if common.options.once || common.options.settle
            Memory.refuse("syntax error: the call has an id already")
          end
          common.refuse_beside_settle(own)
          common.options.once = own.once
          common.options.settle = own.settle
          common = Common.new(common.options)
        end
        call = made(common, [common.spec(rule, own)], nil, peek: peek)
        looks_beside = call.purpose == "BACK" && call.specs.first.request.mode != "BACK"
        call.plain &&= !call.each && !looks_beside
        call
      end

      def made(common, specs, purpose, peek:)
        options = common.options
        Memory.refuse("syntax error: a peek settles nothing") if peek && options.settle
        once = peek ? nil : options.once
        first = specs.first
        purpose ||= common.purpose == "CHARGE" ? first.request.purpose : common.purpose
        plain = specs.one? && !once && !options.settle && first.name.nil?
        KeyCall.new(specs, purpose, once, options.settle, options.flags.include?("EACH"), plain)
      end

      def among_several(common, rule, own)
        if own.once || own.settle || own.mode == "UPTO"
          Memory.refuse("syntax error: ONCE, SETTLE and UPTO stand before the first of several specs")
        end
        common.spec(rule, own)
      end

      def refuse_twins(specs)
        Memory.refuse("syntax error: a call has at most 8 specs") if specs.length > 8
        identities = specs.map { |spec| [spec.rule.kind, spec.rule.key.nil? ? nil : spec.identity] }
        return if identities.uniq.length == identities.length

        Memory.refuse("specs of one kind must have different windows or different names")
      end
    end
  end
end
