<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** Canonical form of client addresses, the same in all packages. `clients/addresses.json` has test cases. */
final class Address
{
    private const PATTERN = '/^(?:(?<four>\d+(?:\.\d+){3})(?::(?<port>\d{1,5}))?|\[(?<six>[^\[\]]+)\](?::(?<port>\d{1,5}))?|(?<six>[^\[\]]+))$/DJ';

    /** First 96 bits of IPv4-mapped IPv6 addresses and of NAT64. */
    private const IPV4_NETWORKS = [
        "\0\0\0\0\0\0\0\0\0\0\xff\xff",
        "\0\x64\xff\x9b\0\0\0\0\0\0\0\0",
    ];

    /**
     * Returns the name of a client for a limit by address: the IPv4 address, or the IPv6 network of `$ipv6Prefix` bits,
     * since a client usually has an entire network. Ports, brackets, quotes and scopes are removed. Returns null if the
     * text is not an address, as for a Unix socket.
     */
    public static function normalize(?string $text, int $ipv6Prefix = 64): ?string
    {
        if ($ipv6Prefix < 1 || $ipv6Prefix > 128) {
            throw new \InvalidArgumentException("ipv6Prefix must be from 1 to 128, not {$ipv6Prefix}");
        }
        $text = trim($text ?? '', " \t");
        if (\strlen($text) > 1 && '"' === $text[0] && str_ends_with($text, '"')) {
            $text = substr($text, 1, -1);
        }
        if (1 !== preg_match(self::PATTERN, $text, $match) || (int) ($match['port'] ?? 0) > 65535) {
            return null;
        }
        if ('' !== $match['four']) {
            return filter_var($match['four'], \FILTER_VALIDATE_IP, \FILTER_FLAG_IPV4) ?: null;
        }
        [$bare, $scope] = [...explode('%', $match['six'], 2), null];
        if ('' === $scope || false === filter_var($bare, \FILTER_VALIDATE_IP, \FILTER_FLAG_IPV6)) {
            return null;
        }
        $bytes = inet_pton($bare);
        if (\in_array(substr($bytes, 0, 12), self::IPV4_NETWORKS, true)) {
            return inet_ntop(substr($bytes, 12));
        }

        return self::network($bytes, $ipv6Prefix);
    }

    private static function network(string $bytes, int $prefix): string
    {
        $groups = [];
        foreach (array_values(unpack('n8', $bytes)) as $place => $group) {
            $kept = max(0, min(16, $prefix - 16 * $place));
            $groups[] = dechex($group & (0xFFFF << (16 - $kept)) & 0xFFFF);
        }
        $text = self::shortened($groups);

        return 128 === $prefix ? $text : "{$text}/{$prefix}";
    }

    /**
     * Abbreviates the first of the longest runs of zeros as ::, by RFC 5952.
     *
     * @param list<string> $groups
     */
    private static function shortened(array $groups): string
    {
        [$start, $longest] = [0, 1];
        for ($place = 0; $place < 8; ++$place) {
            for ($end = $place; $end < 8 && '0' === $groups[$end]; ++$end);
            if ($end - $place > $longest) {
                [$start, $longest] = [$place, $end - $place];
            }
        }
        if (1 === $longest) {
            return implode(':', $groups);
        }

        return implode(':', \array_slice($groups, 0, $start)).'::'.implode(':', \array_slice($groups, $start + $longest));
    }
}
