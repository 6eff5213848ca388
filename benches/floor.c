/* Commands that make the server do the same work as RL.TOKENBUCKET does, and compute nothing: the least that a command
 * of a module can cost.
 *
 *   FLOOR.REPLY key a b c     answers five integers
 *   FLOOR.LOOK key a b c      opens the key, which holds a string, to read and change it, and changes nothing
 *   FLOOR.CHANGE key a b c    opens the key, and does what a change needs: looks up the TTL, signals the key, raises an
 *                             event, and increases the server's count of changes
 *   FLOOR.SEVERAL 4 key key key key ...    the same for four keys, with the reply of RL.MTAKE
 *
 * Functions of the module API are looked up by name, so that no header of the server is needed.
 */
#include <stddef.h>

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleKey RedisModuleKey;
typedef int (*Command)(RedisModuleCtx *, RedisModuleString **, int);

#define API(result, name, ...) static result (*RedisModule_##name)(__VA_ARGS__)
API(int, SetModuleAttribs, RedisModuleCtx *, const char *, int, int);
API(int, CreateCommand, RedisModuleCtx *, const char *, Command, const char *, int, int, int);
API(const char *, StringPtrLen, const RedisModuleString *, size_t *);
API(RedisModuleKey *, OpenKey, RedisModuleCtx *, RedisModuleString *, int);
API(void, CloseKey, RedisModuleKey *);
API(int, KeyType, RedisModuleKey *);
API(char *, StringDMA, RedisModuleKey *, size_t *, int);
API(long long, GetAbsExpire, RedisModuleKey *);
API(int, SignalModifiedKey, RedisModuleCtx *, RedisModuleString *);
API(int, NotifyKeyspaceEvent, RedisModuleCtx *, int, const char *, RedisModuleString *);
API(int, ReplicateVerbatim, RedisModuleCtx *);
API(int, ReplyWithArray, RedisModuleCtx *, long);
API(int, ReplyWithLongLong, RedisModuleCtx *, long long);

enum { READ_AND_WRITE = 3, EVENT_OF_A_MODULE = 1 << 13, API_VERSION = 1, SEVERAL = 4 };

static void read_words(RedisModuleString **argv, int argc) {
    size_t length;
    for (int word = 0; word < argc; word++) RedisModule_StringPtrLen(argv[word], &length);
}

static int reply_five(RedisModuleCtx *ctx) {
    RedisModule_ReplyWithArray(ctx, 5);
    RedisModule_ReplyWithLongLong(ctx, 1);
    RedisModule_ReplyWithLongLong(ctx, 1000000);
    RedisModule_ReplyWithLongLong(ctx, 999999);
    RedisModule_ReplyWithLongLong(ctx, 0);
    return RedisModule_ReplyWithLongLong(ctx, 1);
}

static RedisModuleKey *open_key(RedisModuleCtx *ctx, RedisModuleString *name) {
    size_t length;
    RedisModuleKey *key = RedisModule_OpenKey(ctx, name, READ_AND_WRITE);
    RedisModule_KeyType(key);
    RedisModule_StringDMA(key, &length, 1);
    return key;
}

static void change_key(RedisModuleCtx *ctx, RedisModuleKey *key, RedisModuleString *name) {
    RedisModule_GetAbsExpire(key);
    RedisModule_SignalModifiedKey(ctx, name);
    RedisModule_NotifyKeyspaceEvent(ctx, EVENT_OF_A_MODULE, "floor.change", name);
}

static int reply(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    read_words(argv, argc);
    return reply_five(ctx);
}

static int look(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    read_words(argv, argc);
    RedisModule_CloseKey(open_key(ctx, argv[1]));
    return reply_five(ctx);
}

static int change(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    read_words(argv, argc);
    RedisModuleKey *key = open_key(ctx, argv[1]);
    change_key(ctx, key, argv[1]);
    RedisModule_ReplicateVerbatim(ctx);
    RedisModule_CloseKey(key);
    return reply_five(ctx);
}

static int several(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    RedisModuleKey *keys[SEVERAL];
    read_words(argv, argc);
    for (int key = 0; key < SEVERAL; key++) keys[key] = open_key(ctx, argv[2 + key]);
    for (int key = 0; key < SEVERAL; key++) change_key(ctx, keys[key], argv[2 + key]);
    RedisModule_ReplicateVerbatim(ctx);
    RedisModule_ReplyWithArray(ctx, 3);
    RedisModule_ReplyWithLongLong(ctx, 1);
    RedisModule_ReplyWithLongLong(ctx, 0);
    RedisModule_ReplyWithArray(ctx, SEVERAL);
    for (int key = 0; key < SEVERAL; key++) reply_five(ctx);
    for (int key = 0; key < SEVERAL; key++) RedisModule_CloseKey(keys[key]);
    return 0;
}

#define GET(name) ((int (*)(const char *, void *))*(void **)ctx)("RedisModule_" #name, &RedisModule_##name)

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv, (void)argc;
    GET(SetModuleAttribs), GET(CreateCommand), GET(StringPtrLen), GET(OpenKey), GET(CloseKey), GET(KeyType);
    GET(StringDMA), GET(GetAbsExpire), GET(SignalModifiedKey), GET(NotifyKeyspaceEvent), GET(ReplicateVerbatim);
    GET(ReplyWithArray), GET(ReplyWithLongLong);
    RedisModule_SetModuleAttribs(ctx, "floor", 1, API_VERSION);
    RedisModule_CreateCommand(ctx, "floor.reply", reply, "readonly fast", 1, 1, 1);
    RedisModule_CreateCommand(ctx, "floor.look", look, "write fast", 1, 1, 1);
    RedisModule_CreateCommand(ctx, "floor.change", change, "write fast", 1, 1, 1);
    return RedisModule_CreateCommand(ctx, "floor.several", several, "write fast", 2, 5, 1);
}
