# frozen_string_literal: true

# Rates as text, the same in all packages. `clients/rates.json` has test cases.
module RedisRatelimit
  RATE = %r{\A\s*(\d+(?:\.\d+)?)\s*(?:/|\bper\b)\s*(\d*)\s*([a-z]+)\s*\z}i
  UNITS = {
    "s" => %w[s sec second], "m" => %w[m min minute], "h" => %w[h hr hour], "d" => %w[d day], "w" => %w[w week]
  }.flat_map { |unit, names| names.flat_map { |name| [[name, unit], ["#{name}s", unit]] } }.to_h.freeze
  LONGEST_DAYS = 3650
  private_constant :RATE, :UNITS, :LONGEST_DAYS

  module_function

  # Parses a rate such as "100/minute" or "5 per 15 minutes" to a fixed window.
  def rate(text)
    match = RATE.match(text)
    unit = match && UNITS[match[3].downcase]
    raise ArgumentError, "not a rate, such as \"100/minute\": #{text.inspect}" unless unit

    count = match[2].empty? ? 1 : Integer(match[2], 10)
    count, unit = [count * 7, "d"] if unit == "w"
    seconds = count * { "s" => 1, "m" => 60, "h" => 3600, "d" => 86_400 }.fetch(unit)
    unless seconds.between?(1, LONGEST_DAYS * 86_400)
      raise ArgumentError, "a window is from 1 second to 3650 days: \"100/minute\", not #{text.inspect}"
    end

    amount = match[1].include?(".") ? Float(match[1]) : Integer(match[1], 10)
    fixed(amount, "#{count}#{unit}")
  end
end
