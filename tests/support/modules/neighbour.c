/* Another module on the same server, which does what modules may do to each other.
 *
 *   NEIGHBOUR.ON event key command [arg ...]    executes the command once, at the next event of this name on the key, and
 *                                               propagates it
 *   CL.THROTTLE                                 exists if the module is loaded with the argument "owner"
 *
 * The functions of the module API are looked up by name, so that no header of the server is needed. */
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

/* Bits of the module API: generic, string, expired, evicted, key miss, module, and new keys. */
enum { EVENTS = 1 << 2 | 1 << 3 | 1 << 8 | 1 << 9 | 1 << 11 | 1 << 13 | 1 << 14, API_VERSION = 1, MAX_WORDS = 32 };

/* Words after NEIGHBOUR.ON: the event, the key, the command and its arguments. */
static RedisModuleString *words[MAX_WORDS];
static int word_count;

static int on_event(RedisModuleCtx *ctx, int class, const char *event, RedisModuleString *key) {
    (void)class;
    if (word_count == 0 || strcmp(event, RedisModule_StringPtrLen(words[0], NULL)) != 0) return 0;
    if (RedisModule_StringCompare(key, words[1]) != 0) return 0;
    int count = word_count;
    /* The command may cause the same event. */
    word_count = 0;
    const char *command = RedisModule_StringPtrLen(words[2], NULL);
    RedisModuleCallReply *reply = RedisModule_Call(ctx, command, "!v", words + 3, (size_t)(count - 3));
    if (reply) RedisModule_FreeCallReply(reply);
    for (int index = 0; index < count; index++) RedisModule_FreeString(NULL, words[index]);
    return 0;
}

static int set_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 4 || argc - 1 > MAX_WORDS)
        return RedisModule_ReplyWithError(ctx, "ERR not an event, a key and a command of up to 30 words");
    for (int index = 0; index < word_count; index++) RedisModule_FreeString(NULL, words[index]);
    for (word_count = 0; word_count < argc - 1; word_count++) {
        words[word_count] = argv[word_count + 1];
        RedisModule_RetainString(NULL, words[word_count]);
    }
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int throttle(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv, (void)argc;
    return RedisModule_ReplyWithSimpleString(ctx, "mine");
}

#define GET(name) ((int (*)(const char *, void *))*(void **)ctx)("RedisModule_" #name, &RedisModule_##name)

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    GET(SetModuleAttribs), GET(CreateCommand), GET(SubscribeToKeyspaceEvents), GET(StringPtrLen), GET(StringCompare);
    GET(RetainString), GET(FreeString), GET(Call), GET(FreeCallReply), GET(ReplyWithSimpleString), GET(ReplyWithError);
    RedisModule_SetModuleAttribs(ctx, "neighbour", 1, API_VERSION);
    if (argc == 1 && strcmp(RedisModule_StringPtrLen(argv[0], NULL), "owner") == 0)
        RedisModule_CreateCommand(ctx, "cl.throttle", throttle, "readonly", 0, 0, 0);
    RedisModule_SubscribeToKeyspaceEvents(ctx, EVENTS, on_event);
    return RedisModule_CreateCommand(ctx, "neighbour.on", set_command, "readonly", 0, 0, 0);
}
