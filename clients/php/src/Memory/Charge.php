<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Charge that may be settled. */
final class Charge
{
    /** Lowest usage since the charge. */
    public ?int $low = null;

    /** @param int|null $place place of the charge, where usage keeps charges apart */
    public function __construct(public readonly int $cost, public ?int $place, public readonly int $givenBack)
    {
    }
}
