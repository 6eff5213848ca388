<?php

declare(strict_types=1);

spl_autoload_register(static function (string $class): void {
    $path = \dirname(__DIR__).'/src/'.str_replace('\\', '/', substr($class, \strlen('RedisRatelimit\\'))).'.php';
    if (str_starts_with($class, 'RedisRatelimit\\') && is_file($path)) {
        require $path;
    }
});
// Debian's packages.
require_once 'Symfony/Component/RateLimiter/autoload.php';
require_once 'Symfony/Component/Messenger/autoload.php';
require_once 'Illuminate/Cache/autoload.php';
require_once 'Illuminate/Pipeline/autoload.php';
require_once __DIR__.'/Server.php';
