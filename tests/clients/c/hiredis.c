/* hiredis, as docs/clients.md shows it; tests/support/libraries.py describes the questions. */

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 64, MAX_BYTES = 4096 };

static void write_integers(const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_INTEGER)
        printf("%lld ", reply->integer);
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++)
        write_integers(reply->element[i]);
}

/* Prints the integers of a reply, or the error. Without a reply, the error is in the context. */
static void answer(redisContext *redis, redisReply *reply)
{
    if (reply == NULL)
        printf("! %s", redis->errstr);
    else if (reply->type == REDIS_REPLY_ERROR)
        printf("! %s", reply->str);
    else {
        printf("= ");
        write_integers(reply);
    }
    printf("\n");
    fflush(stdout);
}

static redisContext *open_connection(int port)
{
    // [one server]
    redisContext *redis = redisConnect("127.0.0.1", port);
    // [end]
    return redis;
}

static redisReply *first(redisContext *redis)
{
    // [one server]
    redisReply *reply = redisCommand(redis, "RL.FIXED %s %d %s", "user:42", 100, "1m");
    if (reply != NULL && reply->type == REDIS_REPLY_ARRAY) {
        long long allowed = reply->element[0]->integer;
        long long wait_ms = reply->element[3]->integer;
        if (!allowed)
            fprintf(stderr, "denied for %lld ms\n", wait_ms);
    }
    // [end]
    return reply;
}

/* Sends all calls to one node, as the library knows no cluster. */
static redisReply *pipeline(redisContext *redis, const char **keys, int count)
{
    for (int i = 0; i < count; i++)
        redisAppendCommand(redis, "RL.FIXED %s %d %s", keys[i], 100, "1m");
    redisReply *reply = NULL;
    for (int i = 0; i < count; i++) {
        freeReplyObject(reply);
        if (redisGetReply(redis, (void **)&reply) != REDIS_OK)
            return NULL;
    }
    return reply;
}

int main(int count, char **args)
{
    int port = count > 2 ? atoi(args[2]) : 0;
    redisContext *redis = open_connection(port);
    redisReply *first_reply = strcmp(args[1], "server") == 0 ? first(redis) : NULL;
    char line[MAX_BYTES];
    while (fgets(line, sizeof line, stdin) != NULL) {
        const char *words[MAX_WORDS];
        int length = 0;
        for (char *word = strtok(line, " \n"); word && length < MAX_WORDS; word = strtok(NULL, " \n"))
            words[length++] = word;
        const char *verb = words[0];
        // [one server]
        // After an error:
        if (redis->err)
            redisReconnect(redis);
        // [end]
        redisReply *reply;
        if (strcmp(verb, "first") == 0)
            reply = first_reply;
        else if (strcmp(verb, "one") == 0)
            reply = redisCommand(redis, "RL.FIXED %s %d %s", words[1], 100, "1m");
        else if (strcmp(verb, "several") == 0)
            reply = redisCommand(redis, "RL.MTAKE 2 {%s}:minute {%s}:day FIXED 100 1m FIXED 5000 1d",
                                 words[1], words[1]);
        else if (strcmp(verb, "pipeline") == 0)
            reply = pipeline(redis, words + 1, length - 1);
        else
            reply = redisCommandArgv(redis, length - 1, words + 1, NULL);
        answer(redis, reply);
    }
    return 0;
}
