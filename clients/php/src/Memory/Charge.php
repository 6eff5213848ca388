<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** A charge that may be settled. */
final class Charge
{
    /** The least usage since. */
    public ?int $low = null;

    /** @param int|null $place where it was counted, apart from others */
    public function __construct(public readonly int $cost, public ?int $place, public readonly int $givenBack)
    {
    }
}
