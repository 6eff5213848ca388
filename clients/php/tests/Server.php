<?php

declare(strict_types=1);

/** Server with the module, by $SERVER or `redis-server` and $RATELIMIT_MODULE. */
final class Server
{
    public int $port;

    /** @var resource */
    private $process;

    private Socket $reservation;

    private string $folder;

    public function __construct()
    {
        $this->folder = sys_get_temp_dir().'/ratelimit-php-'.bin2hex(random_bytes(6));
        mkdir($this->folder);
        $this->reservePort();
        if (!$this->isStarted()) {
            throw new RuntimeException('the server did not start');
        }
    }

    public function client(float $timeout = 30): Redis
    {
        $client = new Redis();
        $client->connect('127.0.0.1', $this->port, $timeout, null, 0, $timeout);

        return $client;
    }

    public function stop(): void
    {
        if (is_resource($this->process)) {
            proc_terminate($this->process, \SIGKILL);
            proc_close($this->process);
        }
    }

    public function __destruct()
    {
        $this->stop();
        array_map('unlink', glob("{$this->folder}/*"));
        rmdir($this->folder);
    }

    /**
     * Reserves a port that no other fixture gets while the socket is open, as in tests/support/ports.py: binding the
     * UDP port of the same number reserves it. The server listens on the TCP port.
     */
    private function reservePort(): void
    {
        do {
            $this->port = random_int(11_000, 20_999);
            // Not a stream, which would share the port with others.
            $this->reservation = socket_create(\AF_INET, \SOCK_DGRAM, \SOL_UDP);
            $isReserved = @socket_bind($this->reservation, '127.0.0.1', $this->port);
            $probe = $isReserved ? @stream_socket_server("tcp://127.0.0.1:{$this->port}") : false;
        } while (!$probe);
        fclose($probe);
    }

    private function isStarted(): bool
    {
        $command = [getenv('SERVER') ?: 'redis-server', '--port', (string) $this->port, '--bind', '127.0.0.1', '--save', '',
            '--loadmodule', getenv('RATELIMIT_MODULE'), 'policies', 'yes'];
        $this->process = proc_open($command, [1 => ['file', '/dev/null', 'w']], $pipes, $this->folder);
        for ($i = 0; $i < 1200; ++$i) {
            if (!proc_get_status($this->process)['running']) {
                return false;
            }
            try {
                return $this->client()->ping();
            } catch (RedisException) {
                usleep(25_000);
            }
        }

        return false;
    }
}
