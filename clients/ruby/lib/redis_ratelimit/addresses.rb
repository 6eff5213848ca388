# frozen_string_literal: true

require "ipaddr"

# Canonical form of client addresses, the same in all packages. `clients/addresses.json` has test cases.
module RedisRatelimit
  # Prefixes of IPv4-mapped IPv6 addresses and of NAT64.
  IPV4_NETWORKS = ["::ffff:0:0", "64:ff9b::"].map { |text| IPAddr.new(text).to_i >> 32 }.freeze
  ADDRESS = /\A(?:(?<four>\d+(?:\.\d+){3})(?::(?<port>\d{1,5}))?|\[(?<six>[^\[\]]+)\](?::(?<port>\d{1,5}))?|(?<six>[^\[\]]+))\z/
  private_constant :IPV4_NETWORKS, :ADDRESS

  module_function

  # Returns the name of a client for a limit by address: the IPv4 address, or the IPv6 network of `ipv6_prefix` bits,
  # since a client usually has an entire network. Ports, brackets, quotes and scopes are removed. Returns nil if the
  # text is not an address, as for a Unix socket.
  def address(text, ipv6_prefix: 64)
    unless (1..128).cover?(ipv6_prefix)
      raise ArgumentError, "ipv6_prefix must be from 1 to 128, not #{ipv6_prefix.inspect}"
    end

    text = text.to_s.strip
    text = text[1..-2] if text.length > 1 && text.start_with?('"') && text.end_with?('"')
    match = ADDRESS.match(text)
    return if match.nil? || match[:port].to_i > 65_535
    return ipv4(match[:four]) if match[:four]

    bare, scope = match[:six].split("%", 2)
    return if scope&.empty? || !bare.include?(":") || bare.include?("/")

    ipv6(IPAddr.new(bare).to_i, ipv6_prefix)
  rescue IPAddr::Error
    nil
  end

  def ipv4(text)
    IPAddr.new(text).to_s
  end

  def ipv6(number, prefix)
    return IPAddr.new(number & 0xffff_ffff, Socket::AF_INET).to_s if IPV4_NETWORKS.include?(number >> 32)

    network = number >> (128 - prefix) << (128 - prefix)
    groups = 7.downto(0).map { |place| ((network >> (16 * place)) & 0xffff).to_s(16) }
    text = shortened(groups)
    prefix == 128 ? text : "#{text}/#{prefix}"
  end

  # Abbreviates the first of the longest runs of zeros as ::, by RFC 5952.
  def shortened(groups)
    run = groups.each_index.slice_when { |a, b| groups[a] != groups[b] }
                .select { |places| places.length > 1 && groups[places.first] == "0" }.max_by(&:length)
    return groups.join(":") unless run

    "#{groups.take(run.first).join(':')}::#{groups.drop(run.last + 1).join(':')}"
  end

  private_class_method :ipv4, :ipv6, :shortened
end
