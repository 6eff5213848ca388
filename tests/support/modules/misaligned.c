/* Loads another module, whose path and arguments are the arguments of this one. To the other module, the server's
 * allocator seems to align to 8 bytes only: every block begins 8 bytes after a multiple of 16, as on a server that
 * stores the size of each block before it.
 *
 * A module looks up the functions of the API by a function pointer at the head of its context. This module replaces the
 * pointer while the other module is loaded, and so the functions that allocate and free. */
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

/* The word before an aligned address holds the address of the server's block. */
static void *block_of(void *address) { return ((void **)address)[-1]; }

static void *alloc(size_t size) {
    char *block = server_alloc(size + WORD + ALIGNMENT);
    if (!block) return NULL;
    char *address = block + WORD;
    while ((uintptr_t)address % ALIGNMENT != WORD) address += WORD;
    ((void **)address)[-1] = block;
    return address;
}

static void release(void *address) {
    if (address) server_free(block_of(address));
}

static size_t size_of(void *address) {
    return address ? server_size(block_of(address)) - (size_t)((char *)address - (char *)block_of(address)) : 0;
}

static void *reallocate(void *address, size_t size) {
    void *new_address = alloc(size);
    if (!new_address || !address) return new_address;
    size_t old_size = size_of(address);
    memcpy(new_address, address, old_size < size ? old_size : size);
    release(address);
    return new_address;
}

static void *defrag(void *ctx, void *address) {
    /* NULL tells the module to keep the block. */
    (void)ctx, (void)address;
    return NULL;
}

static char *load(void *io, size_t *length) {
    /* The module frees the bytes by `release`, so they are copied into a block of `alloc`. */
    char *bytes = server_load(io, length), *copy = bytes ? alloc(*length + 1) : NULL;
    if (copy) memcpy(copy, bytes, *length);
    if (bytes) server_free(bytes);
    return copy;
}

static int get(const char *name, void *function) {
    static const struct {
        const char *name;
        void *server, *replacement;
    } functions[] = {
        {"RedisModule_Alloc", &server_alloc, alloc},        {"RedisModule_Realloc", &server_realloc, reallocate},
        {"RedisModule_Free", &server_free, release},        {"RedisModule_MallocSize", &server_size, size_of},
        {"RedisModule_DefragAlloc", &server_defrag, defrag}, {"RedisModule_LoadStringBuffer", &server_load, load},
    };
    for (size_t index = 0; index < sizeof functions / sizeof *functions; index++) {
        if (strcmp(name, functions[index].name) != 0) continue;
        *(const void **)function = functions[index].replacement;
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
