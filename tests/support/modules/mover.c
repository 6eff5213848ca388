/* Loads another module, whose path and arguments are the arguments of this one. Moves values of its types on any server,
 * as active defragmentation does on servers whose allocator supports it.
 *
 *   MOVE.VALUE key [steps]    calls the defrag function of the key's type until the value is done, and replies the
 *                             number of these calls and of moved blocks
 *
 * RedisModule_DefragShouldStop returns 1 at every `steps`-th call. With 0 steps, the default, it never does, and there is
 * no cursor, as for a value of few blocks. A moved block is overwritten before it is freed. */
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

/* Beginning of RedisModuleTypeMethods in redismodule.h, up to the defrag function. */
struct methods {
    uint64_t version;
    void *rdb_load, *rdb_save, *aof_rewrite, *mem_usage, *digest, *free, *aux_load, *aux_save;
    int aux_save_triggers;
    void *free_effort, *unlink, *copy;
    Defrag defrag;
};

enum { MAX_TYPES = 32, READ_AND_WRITE = 3, OK = 0, ERR = 1 };

static GetApi get_api;
static RedisModuleType *(*create_type)(RedisModuleCtx *, const char *, int, struct methods *);
static void *(*server_alloc)(size_t);
static void (*server_free)(void *);
static size_t (*server_size)(void *);

static struct {
    RedisModuleType *type;
    Defrag defrag;
} types[MAX_TYPES];
static size_t type_count;

static unsigned long stored_cursor;
static long long steps, steps_left, moved_blocks;

static RedisModuleType *register_type(RedisModuleCtx *ctx, const char *name, int version, struct methods *methods) {
    RedisModuleType *type = create_type(ctx, name, version, methods);
    if (type && type_count < MAX_TYPES) {
        types[type_count].type = type;
        types[type_count++].defrag = methods->defrag;
    }
    return type;
}

static void *move(void *ctx, void *block) {
    (void)ctx;
    size_t size = server_size(block);
    void *new_block = server_alloc(size);
    if (!new_block) return NULL;
    memcpy(new_block, block, size);
    memset(block, 0xa5, size);
    server_free(block);
    moved_blocks++;
    return new_block;
}

static int should_stop(void *ctx) {
    (void)ctx;
    return steps > 0 && --steps_left <= 0;
}

static int set_cursor(void *ctx, unsigned long cursor) {
    (void)ctx;
    if (steps == 0) return ERR;
    stored_cursor = cursor;
    return OK;
}

static int get_cursor(void *ctx, unsigned long *cursor) {
    (void)ctx;
    if (steps == 0) return ERR;
    *cursor = stored_cursor;
    return OK;
}

static int get(const char *name, void *function) {
    static const struct {
        const char *name;
        void *replacement;
    } functions[] = {
        {"RedisModule_DefragAlloc", move},
        {"RedisModule_DefragShouldStop", should_stop},
        {"RedisModule_DefragCursorSet", set_cursor},
        {"RedisModule_DefragCursorGet", get_cursor},
        {"RedisModule_CreateDataType", register_type},
    };
    for (size_t index = 0; index < sizeof functions / sizeof *functions; index++) {
        if (strcmp(name, functions[index].name) != 0) continue;
        *(const void **)function = functions[index].replacement;
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
    for (size_t index = 0; type && index < type_count; index++) {
        if (types[index].type != type) continue;
        void *value = value_of(key), *old_value;
        long long calls = 0;
        int is_unfinished = 1;
        for (stored_cursor = 0, moved_blocks = 0; is_unfinished; calls++) {
            steps_left = steps;
            is_unfinished = types[index].defrag(&stored_cursor, argv[1], &value);
        }
        replace_value(key, type, value, &old_value);
        close_key(key);
        reply_array(ctx, 2);
        reply_number(ctx, calls);
        return reply_number(ctx, moved_blocks);
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
