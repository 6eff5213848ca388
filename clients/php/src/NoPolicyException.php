<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** Missing policy: none of the names exists. The call is not allowed: set the policy, by RL.POLICYSET. */
final class NoPolicyException extends SetupException
{
}
