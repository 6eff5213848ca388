/* Loads another module (its first argument; the rest are that one's), and moves values of its types on any server, as
 * active defragmentation does where the allocator gives hints: MOVE.VALUE key [steps] calls the type's function for that
 * until it is done, with a time that is up after so many questions for it (0, the default: never, and no cursor is kept,
 * as servers do for a value of few blocks). The answer is how often the function was called, and how many blocks were
 * moved; a block that has been moved is overwritten before it is freed. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleKey RedisModuleKey;
typedef struct RedisModuleType RedisModuleType;
typedef int (*GetApi)(const char *, void *);
typedef int (*Defrag)(void *, RedisModuleString *, void **);

/* As far as the function that is wanted: the version, and pointers in the order of the SDK's RedisModuleTypeMethods. */
struct methods {
    uint64_t version;
    void *rdb_load, *rdb_save, *aof_rewrite, *mem_usage, *digest, *free, *aux_load, *aux_save;
    int aux_save_triggers;
    void *free_effort, *unlink, *copy;
    Defrag defrag;
};

enum { MOST_TYPES = 32, READ_AND_WRITE = 3, OK = 0, ERR = 1 };

static GetApi get_api;
static RedisModuleType *(*create_type)(RedisModuleCtx *, const char *, int, struct methods *);
static void *(*server_alloc)(size_t);
static void (*server_free)(void *);
static size_t (*server_size)(void *);

static struct {
    RedisModuleType *type;
    Defrag defrag;
} types[MOST_TYPES];
static size_t known;

static unsigned long cursor;
static long long steps, left, moved;

static RedisModuleType *register_type(RedisModuleCtx *ctx, const char *name, int version, struct methods *methods) {
    RedisModuleType *type = create_type(ctx, name, version, methods);
    if (type && known < MOST_TYPES) {
        types[known].type = type;
        types[known++].defrag = methods->defrag;
    }
    return type;
}

static void *move(void *ctx, void *block) {
    (void)ctx;
    size_t size = server_size(block);
    void *better = server_alloc(size);
    if (!better) return NULL;
    memcpy(better, block, size);
    memset(block, 0xa5, size);
    server_free(block);
    moved++;
    return better;
}

static int should_stop(void *ctx) {
    (void)ctx;
    return steps > 0 && --left <= 0;
}

static int keep_cursor(void *ctx, unsigned long at) {
    (void)ctx;
    if (steps == 0) return ERR;
    cursor = at;
    return OK;
}

static int read_cursor(void *ctx, unsigned long *at) {
    (void)ctx;
    if (steps == 0) return ERR;
    *at = cursor;
    return OK;
}

static int get(const char *name, void *function) {
    static const struct {
        const char *name;
        void *ours;
    } functions[] = {
        {"RedisModule_DefragAlloc", move},
        {"RedisModule_DefragShouldStop", should_stop},
        {"RedisModule_DefragCursorSet", keep_cursor},
        {"RedisModule_DefragCursorGet", read_cursor},
        {"RedisModule_CreateDataType", register_type},
    };
    for (size_t index = 0; index < sizeof functions / sizeof *functions; index++) {
        if (strcmp(name, functions[index].name) != 0) continue;
        *(const void **)function = functions[index].ours;
        return OK;
    }
    return get_api(name, function);
}

static RedisModuleKey *(*open_key)(RedisModuleCtx *, RedisModuleString *, int);
static void (*close_key)(RedisModuleKey *);
static RedisModuleType *(*type_of)(RedisModuleKey *);
static void *(*value_of)(RedisModuleKey *);
static int (*replace_value)(RedisModuleKey *, RedisModuleType *, void *, void **);
static int (*read_number)(const RedisModuleString *, long long *);
static int (*reply_array)(RedisModuleCtx *, long);
static int (*reply_number)(RedisModuleCtx *, long long);
static int (*reply_error)(RedisModuleCtx *, const char *);

static int move_value(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    steps = 0;
    if (argc < 2 || (argc > 2 && read_number(argv[2], &steps) != OK)) return reply_error(ctx, "ERR no key, or no number");
    RedisModuleKey *key = open_key(ctx, argv[1], READ_AND_WRITE);
    RedisModuleType *type = type_of(key);
    for (size_t place = 0; type && place < known; place++) {
        if (types[place].type != type) continue;
        void *value = value_of(key), *before;
        long long calls = 0;
        int goes_on = 1;
        for (cursor = 0, moved = 0; goes_on; calls++) {
            left = steps;
            goes_on = types[place].defrag(&cursor, argv[1], &value);
        }
        replace_value(key, type, value, &before);
        close_key(key);
        reply_array(ctx, 2);
        reply_number(ctx, calls);
        return reply_number(ctx, moved);
    }
    close_key(key);
    return reply_error(ctx, "ERR the key has none of the module's types");
}

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    const char *(*string)(const RedisModuleString *, size_t *);
    int (*create_command)(RedisModuleCtx *, const char *, void *, const char *, int, int, int);
    get_api = *(GetApi *)ctx;
    get_api("RedisModule_StringPtrLen", &string);
    get_api("RedisModule_CreateCommand", &create_command);
    get_api("RedisModule_CreateDataType", &create_type);
    get_api("RedisModule_Alloc", &server_alloc);
    get_api("RedisModule_Free", &server_free);
    get_api("RedisModule_MallocSize", &server_size);
    get_api("RedisModule_OpenKey", &open_key);
    get_api("RedisModule_CloseKey", &close_key);
    get_api("RedisModule_ModuleTypeGetType", &type_of);
    get_api("RedisModule_ModuleTypeGetValue", &value_of);
    get_api("RedisModule_ModuleTypeReplaceValue", &replace_value);
    get_api("RedisModule_StringToLongLong", &read_number);
    get_api("RedisModule_ReplyWithArray", &reply_array);
    get_api("RedisModule_ReplyWithLongLong", &reply_number);
    get_api("RedisModule_ReplyWithError", &reply_error);
    void *library = argc > 0 ? dlopen(string(argv[0], NULL), RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*load_module)(RedisModuleCtx *, RedisModuleString **, int) =
        library ? (int (*)(RedisModuleCtx *, RedisModuleString **, int))dlsym(library, "RedisModule_OnLoad") : NULL;
    if (!load_module) return 1;
    *(GetApi *)ctx = get;
    int status = load_module(ctx, argv + 1, argc - 1);
    *(GetApi *)ctx = get_api;
    return status == OK ? create_command(ctx, "move.value", move_value, "write", 1, 1, 1) : status;
}
