/** The module's commands as methods of iovalkey: `const redis = addCommands(new Redis())`. */

import type { ClientContext, Result } from "iovalkey";

import type { ArgumentsOf, Name, ReplyOf } from "./ioredis-commands.js";

export { addCommands } from "./ioredis-commands.js";

type Methods<Context extends ClientContext> = {
  [Method in Name]: (...args: ArgumentsOf<Method>) => Result<ReplyOf<Method>, Context>;
};

declare module "iovalkey" {
  interface RedisCommander<Context> extends Methods<Context> {}
}
