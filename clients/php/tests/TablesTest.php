<?php

declare(strict_types=1);

use PHPUnit\Framework\TestCase;
use RedisRatelimit\Address;
use RedisRatelimit\Limit;

/** Tables of test cases for all packages. */
final class TablesTest extends TestCase
{
    /** @return array<string, mixed> */
    private static function table(string $name): array
    {
        return json_decode(file_get_contents(\dirname(__DIR__, 2)."/{$name}.json"), true, 512, \JSON_THROW_ON_ERROR);
    }

    public function testAddressesHaveOneCanonicalForm(): void
    {
        foreach (self::table('addresses')['addresses'] as $row) {
            self::assertSame($row['key'], Address::normalize($row['text'], $row['ipv6_prefix'] ?? 64), json_encode($row));
        }
        self::assertSame('::102:304', Address::normalize('::102:304', 128));
        self::assertNull(Address::normalize(null));
        $this->expectException(InvalidArgumentException::class);
        Address::normalize('::1', 0);
    }

    public function testRatesAreParsedToFixedWindows(): void
    {
        ['rates' => $rates, 'refused' => $refused] = self::table('rates');
        foreach ($rates as $row) {
            self::assertSame($row['limit'], Limit::rate($row['text'])->words, json_encode($row));
        }
        foreach ($refused as $text) {
            try {
                Limit::rate($text);
                self::fail($text);
            } catch (InvalidArgumentException $error) {
                self::assertStringContainsString('100/minute', $error->getMessage());
            }
        }
    }
}
