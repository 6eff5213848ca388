import { Cluster, Redis } from "ioredis";

/**
 * A client of one server or, given several addresses, of the cluster that they belong to.
 *
 * ioredis by default keeps calls while it has no connection, and sends again what got no reply. The
 * limiter does that itself, for as long as an answer is of use.
 */
export function connect(urls: readonly string[]): Redis | Cluster {
  const options = {
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    connectTimeout: 1000,
    // A host that vanished without closing its connections is noticed after this long.
    socketTimeout: 5000,
  };
  const retryStrategy = (times: number) => Math.min(50 * times, 1000);
  const [url = "redis://127.0.0.1:6379"] = urls;
  const client =
    urls.length > 1
      ? // Connections to the nodes of a cluster are opened by the first call to each, so that calls
        // have to wait for them: the limiter's timeout says for how long.
        new Cluster([...urls], {
          redisOptions: options,
          clusterRetryStrategy: retryStrategy,
          retryDelayOnFailover: 0,
        })
      : new Redis(url, { ...options, enableOfflineQueue: false, retryStrategy });
  // The limiter tells of an outage; without a listener ioredis prints each attempt as well.
  client.on("error", () => {});
  return client;
}
