import { Cluster, Redis } from "ioredis";

/**
 * Connects to one server, or to a cluster if there are several addresses.
 *
 * By default, ioredis queues calls without a connection and resends calls without a reply.
 * Resending is disabled, because the limiter resends calls itself until its timeout. For one
 * server, so is queueing.
 */
export function connect(urls: readonly string[]): Redis | Cluster {
  const options = {
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    connectTimeout: 1000,
    // Detects a host that vanished without closing its connections.
    socketTimeout: 5000,
  };
  const retryStrategy = (times: number) => Math.min(50 * times, 1000);
  const [url = "redis://127.0.0.1:6379"] = urls;
  const client =
    urls.length > 1
      ? // The first call to each node of a cluster opens its connection, so calls must wait for it,
        // at most for the limiter's timeout.
        new Cluster([...urls], {
          redisOptions: options,
          clusterRetryStrategy: retryStrategy,
          retryDelayOnFailover: 0,
        })
      : new Redis(url, { ...options, enableOfflineQueue: false, retryStrategy });
  // The limiter logs outages. Without a listener, ioredis would print each attempt.
  client.on("error", () => {});
  return client;
}
