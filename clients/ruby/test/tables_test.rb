# frozen_string_literal: true

require_relative "helper"

# Tables of test cases for all packages.
class TablesTest < Test
  def table(name)
    JSON.parse(File.read("#{CLIENTS}/#{name}.json"))
  end

  test "addresses have one canonical form" do
    table("addresses").fetch("addresses").each do |row|
      found = RedisRatelimit.address(row.fetch("text"), ipv6_prefix: row.fetch("ipv6_prefix", 64))
      row["key"].nil? ? assert_nil(found, row.inspect) : assert_equal(row["key"], found, row.inspect)
    end
    assert_equal "::102:304", RedisRatelimit.address("::102:304", ipv6_prefix: 128)
    assert_nil RedisRatelimit.address(nil)
    [0, 129].each { |prefix| assert_raises(ArgumentError) { RedisRatelimit.address("::1", ipv6_prefix: prefix) } }
  end

  test "rates are parsed to fixed windows" do
    rates = table("rates")
    rates.fetch("rates").each do |row|
      limit = RedisRatelimit.rate(row.fetch("text"))
      assert_equal row.fetch("limit"), limit.words, row.inspect
    end
    rates.fetch("refused").each do |text|
      error = assert_raises(ArgumentError, text) { RedisRatelimit.rate(text) }
      assert_includes error.message, "100/minute"
    end
  end
end
