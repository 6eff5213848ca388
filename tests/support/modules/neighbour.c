/* Another module on the same server, which does what modules may do to each other.
 *
 *   NEIGHBOUR.ON event key command [arg ...]    when it hears of the event on the key, it runs the command, for replicas
 *                                               too, and forgets the order
 *   CL.THROTTLE                                 is its own, if it is loaded with the argument "owner"
 *
 * The module API is a table of functions that are asked by name, so that no header of the server is needed. */
#include <stddef.h>
#include <string.h>

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleCallReply RedisModuleCallReply;
typedef int (*Command)(RedisModuleCtx *, RedisModuleString **, int);
typedef int (*Subscriber)(RedisModuleCtx *, int, const char *, RedisModuleString *);

#define API(result, name, ...) static result (*RedisModule_##name)(__VA_ARGS__)
API(int, SetModuleAttribs, RedisModuleCtx *, const char *, int, int);
API(int, CreateCommand, RedisModuleCtx *, const char *, Command, const char *, int, int, int);
API(int, SubscribeToKeyspaceEvents, RedisModuleCtx *, int, Subscriber);
API(const char *, StringPtrLen, const RedisModuleString *, size_t *);
API(int, StringCompare, RedisModuleString *, RedisModuleString *);
API(void, RetainString, RedisModuleCtx *, RedisModuleString *);
API(void, FreeString, RedisModuleCtx *, RedisModuleString *);
API(RedisModuleCallReply *, Call, RedisModuleCtx *, const char *, const char *, ...);
API(void, FreeCallReply, RedisModuleCallReply *);
API(int, ReplyWithSimpleString, RedisModuleCtx *, const char *);
API(int, ReplyWithError, RedisModuleCtx *, const char *);

/* Generic, string, expired, evicted, key miss, of a module, and new keys: bits of the module API. */
enum { EVENTS = 1 << 2 | 1 << 3 | 1 << 8 | 1 << 9 | 1 << 11 | 1 << 13 | 1 << 14, API_VERSION = 1, MOST_WORDS = 32 };

static RedisModuleString *order[MOST_WORDS];
static int words;

static int hear(RedisModuleCtx *ctx, int class, const char *event, RedisModuleString *key) {
    (void)class;
    if (words == 0 || strcmp(event, RedisModule_StringPtrLen(order[0], NULL)) != 0) return 0;
    if (RedisModule_StringCompare(key, order[1]) != 0) return 0;
    int count = words;
    words = 0;
    const char *command = RedisModule_StringPtrLen(order[2], NULL);
    RedisModuleCallReply *reply = RedisModule_Call(ctx, command, "!v", order + 3, (size_t)(count - 3));
    if (reply) RedisModule_FreeCallReply(reply);
    for (int word = 0; word < count; word++) RedisModule_FreeString(NULL, order[word]);
    return 0;
}

static int on(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 4 || argc - 1 > MOST_WORDS) return RedisModule_ReplyWithError(ctx, "ERR an event, a key and a command");
    for (int word = 0; word < words; word++) RedisModule_FreeString(NULL, order[word]);
    for (words = 0; words < argc - 1; words++) {
        order[words] = argv[words + 1];
        RedisModule_RetainString(NULL, order[words]);
    }
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int own(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv, (void)argc;
    return RedisModule_ReplyWithSimpleString(ctx, "mine");
}

#define GET(name) ((int (*)(const char *, void *))*(void **)ctx)("RedisModule_" #name, &RedisModule_##name)

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    GET(SetModuleAttribs), GET(CreateCommand), GET(SubscribeToKeyspaceEvents), GET(StringPtrLen), GET(StringCompare);
    GET(RetainString), GET(FreeString), GET(Call), GET(FreeCallReply), GET(ReplyWithSimpleString), GET(ReplyWithError);
    RedisModule_SetModuleAttribs(ctx, "neighbour", 1, API_VERSION);
    if (argc == 1 && strcmp(RedisModule_StringPtrLen(argv[0], NULL), "owner") == 0)
        RedisModule_CreateCommand(ctx, "cl.throttle", own, "readonly", 0, 0, 0);
    RedisModule_SubscribeToKeyspaceEvents(ctx, EVENTS, hear);
    return RedisModule_CreateCommand(ctx, "neighbour.on", on, "readonly", 0, 0, 0);
}
