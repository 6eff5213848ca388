/* Another module on the same server, which works on threads of its own.
 *
 *   THREADS.CALL command [arg ...]    calls the command on a new thread, under the server's lock, and forwards its reply
 *
 * The functions of the module API are looked up by name, so that no header of the server is needed. */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleCallReply RedisModuleCallReply;
typedef struct RedisModuleBlockedClient RedisModuleBlockedClient;
typedef int (*Command)(RedisModuleCtx *, RedisModuleString **, int);
typedef void (*Free)(RedisModuleCtx *, void *);

#define API(result, name, ...) static result (*RedisModule_##name)(__VA_ARGS__)
API(int, SetModuleAttribs, RedisModuleCtx *, const char *, int, int);
API(int, CreateCommand, RedisModuleCtx *, const char *, Command, const char *, int, int, int);
API(const char *, StringPtrLen, const RedisModuleString *, size_t *);
API(RedisModuleString *, CreateStringFromString, RedisModuleCtx *, const RedisModuleString *);
API(void, FreeString, RedisModuleCtx *, RedisModuleString *);
API(RedisModuleCallReply *, Call, RedisModuleCtx *, const char *, const char *, ...);
API(void, FreeCallReply, RedisModuleCallReply *);
API(int, ReplyWithCallReply, RedisModuleCtx *, RedisModuleCallReply *);
API(int, ReplyWithError, RedisModuleCtx *, const char *);
API(RedisModuleBlockedClient *, BlockClient, RedisModuleCtx *, Command, Command, Free, long long);
API(int, UnblockClient, RedisModuleBlockedClient *, void *);
API(RedisModuleCtx *, GetThreadSafeContext, RedisModuleBlockedClient *);
API(void, FreeThreadSafeContext, RedisModuleCtx *);
API(void, ThreadSafeContextLock, RedisModuleCtx *);
API(void, ThreadSafeContextUnlock, RedisModuleCtx *);

enum { API_VERSION = 1, MAX_ARGUMENTS = 32 };

typedef struct Work {
    RedisModuleBlockedClient *client;
    RedisModuleString *words[MAX_ARGUMENTS];
    size_t count;
} Work;

static void *run(void *data) {
    Work *work = data;
    RedisModuleCtx *ctx = RedisModule_GetThreadSafeContext(work->client);
    RedisModule_ThreadSafeContextLock(ctx);
    const char *command = RedisModule_StringPtrLen(work->words[0], NULL);
    errno = 0;
    RedisModuleCallReply *reply = RedisModule_Call(ctx, command, "!v", work->words + 1, work->count - 1);
    if (reply) {
        RedisModule_ReplyWithCallReply(ctx, reply);
        RedisModule_FreeCallReply(reply);
    } else {
        RedisModule_ReplyWithError(ctx, strerror(errno));
    }
    for (size_t index = 0; index < work->count; index++) RedisModule_FreeString(NULL, work->words[index]);
    RedisModule_ThreadSafeContextUnlock(ctx);
    RedisModule_FreeThreadSafeContext(ctx);
    RedisModule_UnblockClient(work->client, NULL);
    free(work);
    return NULL;
}

static int call(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2 || argc > MAX_ARGUMENTS) return RedisModule_ReplyWithError(ctx, "ERR not a command of up to 31 words");
    Work *work = calloc(1, sizeof *work);
    if (!work) return RedisModule_ReplyWithError(ctx, "ERR no memory");
    work->count = (size_t)(argc - 1);
    for (int index = 1; index < argc; index++) {
        work->words[index - 1] = RedisModule_CreateStringFromString(NULL, argv[index]);
    }
    work->client = RedisModule_BlockClient(ctx, NULL, NULL, NULL, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, work)) abort();
    return pthread_detach(thread);
}

#define GET(name) ((int (*)(const char *, void *))*(void **)ctx)("RedisModule_" #name, &RedisModule_##name)

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv, (void)argc;
    GET(SetModuleAttribs), GET(CreateCommand), GET(StringPtrLen), GET(CreateStringFromString), GET(FreeString);
    GET(Call), GET(FreeCallReply), GET(ReplyWithCallReply), GET(ReplyWithError), GET(BlockClient), GET(UnblockClient);
    GET(GetThreadSafeContext), GET(FreeThreadSafeContext), GET(ThreadSafeContextLock), GET(ThreadSafeContextUnlock);
    RedisModule_SetModuleAttribs(ctx, "threads", 1, API_VERSION);
    return RedisModule_CreateCommand(ctx, "threads.call", call, "write", 0, 0, 0);
}
