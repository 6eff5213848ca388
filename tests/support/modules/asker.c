/* Another module on the same server, which calls commands for its callers.
 *
 *   ASKER.CALL command [arg ...]    calls the command, which may not block, and forwards its reply
 *
 * The functions of the module API are looked up by name, so that no header of the server is needed. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleCallReply RedisModuleCallReply;
typedef int (*Command)(RedisModuleCtx *, RedisModuleString **, int);

#define API(result, name, ...) static result (*RedisModule_##name)(__VA_ARGS__)
API(int, SetModuleAttribs, RedisModuleCtx *, const char *, int, int);
API(int, CreateCommand, RedisModuleCtx *, const char *, Command, const char *, int, int, int);
API(const char *, StringPtrLen, const RedisModuleString *, size_t *);
API(RedisModuleCallReply *, Call, RedisModuleCtx *, const char *, const char *, ...);
API(void, FreeCallReply, RedisModuleCallReply *);
API(int, ReplyWithCallReply, RedisModuleCtx *, RedisModuleCallReply *);
API(int, ReplyWithError, RedisModuleCtx *, const char *);

enum { API_VERSION = 1 };

static int call(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_ReplyWithError(ctx, "ERR a command is missing");
    const char *command = RedisModule_StringPtrLen(argv[1], NULL);
    errno = 0;
    RedisModuleCallReply *reply = RedisModule_Call(ctx, command, "!v", argv + 2, (size_t)(argc - 2));
    if (!reply) return RedisModule_ReplyWithError(ctx, strerror(errno));
    RedisModule_ReplyWithCallReply(ctx, reply);
    RedisModule_FreeCallReply(reply);
    return 0;
}

#define GET(name) ((int (*)(const char *, void *))*(void **)ctx)("RedisModule_" #name, &RedisModule_##name)

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv, (void)argc;
    GET(SetModuleAttribs), GET(CreateCommand), GET(StringPtrLen), GET(Call), GET(FreeCallReply);
    GET(ReplyWithCallReply), GET(ReplyWithError);
    RedisModule_SetModuleAttribs(ctx, "asker", 1, API_VERSION);
    return RedisModule_CreateCommand(ctx, "asker.call", call, "write", 0, 0, 0);
}
