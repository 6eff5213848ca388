/* Loads another module (its first argument; the rest are that one's) on a server whose allocator seems to align to 8
 * bytes and no better: every block begins 8 bytes behind a multiple of 16. That is what a server gives that keeps the
 * size of each block before it.
 *
 * A module finds the functions of the API by a pointer at the head of its context. The other one is shown functions in
 * their place that hand out such blocks, and take them back. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef int (*GetApi)(const char *, void *);

enum { WORD = 8, ALIGNMENT = 16 };

static GetApi get_api;
static void *(*server_alloc)(size_t);
static void *(*server_realloc)(void *, size_t);
static void (*server_free)(void *);
static size_t (*server_size)(void *);
static void *(*server_defrag)(void *, void *);
static char *(*server_load)(void *, size_t *);

/* Where the server's block begins is kept in the word before the place that is handed out. */
static void *block_of(void *place) { return ((void **)place)[-1]; }

static void *alloc(size_t size) {
    char *block = server_alloc(size + WORD + ALIGNMENT);
    if (!block) return NULL;
    char *place = block + WORD;
    while ((uintptr_t)place % ALIGNMENT != WORD) place += WORD;
    ((void **)place)[-1] = block;
    return place;
}

static void release(void *place) {
    if (place) server_free(block_of(place));
}

static size_t size_of(void *place) {
    return place ? server_size(block_of(place)) - (size_t)((char *)place - (char *)block_of(place)) : 0;
}

static void *reallocate(void *place, size_t size) {
    void *new = alloc(size);
    if (!new || !place) return new;
    size_t old = size_of(place);
    memcpy(new, place, old < size ? old : size);
    release(place);
    return new;
}

static void *defrag(void *ctx, void *place) {
    /* There is no better place. */
    (void)ctx, (void)place;
    return NULL;
}

static char *load(void *io, size_t *length) {
    /* What the server has allocated is given back by our own function. */
    char *bytes = server_load(io, length), *copy = bytes ? alloc(*length + 1) : NULL;
    if (copy) memcpy(copy, bytes, *length);
    if (bytes) server_free(bytes);
    return copy;
}

static int get(const char *name, void *function) {
    static const struct {
        const char *name;
        void *server, *ours;
    } functions[] = {
        {"RedisModule_Alloc", &server_alloc, alloc},        {"RedisModule_Realloc", &server_realloc, reallocate},
        {"RedisModule_Free", &server_free, release},        {"RedisModule_MallocSize", &server_size, size_of},
        {"RedisModule_DefragAlloc", &server_defrag, defrag}, {"RedisModule_LoadStringBuffer", &server_load, load},
    };
    for (size_t index = 0; index < sizeof functions / sizeof *functions; index++) {
        if (strcmp(name, functions[index].name) != 0) continue;
        *(const void **)function = functions[index].ours;
        return get_api(name, functions[index].server);
    }
    return get_api(name, function);
}

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    const char *(*string)(const RedisModuleString *, size_t *);
    get_api = *(GetApi *)ctx;
    get_api("RedisModule_StringPtrLen", &string);
    void *library = argc > 0 ? dlopen(string(argv[0], NULL), RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*load_module)(RedisModuleCtx *, RedisModuleString **, int) =
        library ? (int (*)(RedisModuleCtx *, RedisModuleString **, int))dlsym(library, "RedisModule_OnLoad") : NULL;
    if (!load_module) return 1;
    *(GetApi *)ctx = get;
    int status = load_module(ctx, argv + 1, argc - 1);
    *(GetApi *)ctx = get_api;
    return status;
}
