/** The module's commands as methods of iovalkey: `const redis = addCommands(new Redis())`. */

import type { Result } from "iovalkey";

import type { ArgumentsOf, ReplyOf } from "./ioredis-commands.js";

export { addCommands } from "./ioredis-commands.js";

declare module "iovalkey" {
  interface RedisCommander<Context> {
    rlTake(...words: ArgumentsOf<"rlTake">): Result<ReplyOf<"rlTake">, Context>;
    rlPeek(...words: ArgumentsOf<"rlPeek">): Result<ReplyOf<"rlPeek">, Context>;
    rlSettle(...words: ArgumentsOf<"rlSettle">): Result<ReplyOf<"rlSettle">, Context>;
    rlTakeAll(...words: ArgumentsOf<"rlTakeAll">): Result<ReplyOf<"rlTakeAll">, Context>;
    rlPeekAll(...words: ArgumentsOf<"rlPeekAll">): Result<ReplyOf<"rlPeekAll">, Context>;
    rlAcquire(...words: ArgumentsOf<"rlAcquire">): Result<ReplyOf<"rlAcquire">, Context>;
    rlRelease(...words: ArgumentsOf<"rlRelease">): Result<ReplyOf<"rlRelease">, Context>;
    rlBan(...words: ArgumentsOf<"rlBan">): Result<ReplyOf<"rlBan">, Context>;
    rlDelay(...words: ArgumentsOf<"rlDelay">): Result<ReplyOf<"rlDelay">, Context>;
    rlPolicySet(...words: ArgumentsOf<"rlPolicySet">): Result<ReplyOf<"rlPolicySet">, Context>;
    rlPolicyGet(...words: ArgumentsOf<"rlPolicyGet">): Result<ReplyOf<"rlPolicyGet">, Context>;
    rlPolicyList(...words: ArgumentsOf<"rlPolicyList">): Result<ReplyOf<"rlPolicyList">, Context>;
    rlPolicyDelete(
      ...words: ArgumentsOf<"rlPolicyDelete">
    ): Result<ReplyOf<"rlPolicyDelete">, Context>;
    rlPolicyScale(
      ...words: ArgumentsOf<"rlPolicyScale">
    ): Result<ReplyOf<"rlPolicyScale">, Context>;
  }
}
