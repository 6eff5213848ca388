<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** The server has none of the policies that a call names. It is no open door: set the policy, by RL.POLICYSET. */
final class NoPolicyException extends SetupException
{
}
