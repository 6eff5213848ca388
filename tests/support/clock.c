/* Library that is preloaded into a server under test, and replaces its wall clock.
 *
 * RATELIMIT_TEST_CLOCK names a file of one int64: microseconds since the Unix epoch, or 0 for the
 * real time. Only the wall clock is replaced: a server runs its event loop by the monotonic clock,
 * which has to go on. Valkey loads modules with RTLD_DEEPBIND, which hides this library from the
 * modules: they see the replaced time only through the module API. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t *clock_us;

__attribute__((constructor)) static void map_clock(void) {
    const char *path = getenv("RATELIMIT_TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = mmap(NULL, sizeof *clock_us, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        /* With the real time, tests would pass or fail by chance. */
        perror("RATELIMIT_TEST_CLOCK");
        abort();
    }
    close(fd);
    clock_us = page;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    /* Other libraries may ask for the time before the constructor has run. */
    int64_t us = clock_us ? __atomic_load_n(clock_us, __ATOMIC_RELAXED) : 0;
    if (us == 0 || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
        return (int)syscall(SYS_clock_gettime, id, now);
    now->tv_sec = us / 1000000;
    now->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}

/* Newer servers read the wall clock once a millisecond and extrapolate in between by the processor's
 * cycle counter, so they would miss a new time. They use the counter only if /proc/cpuinfo says that
 * its rate is constant, so this file is hidden. */
FILE *fopen(const char *path, const char *mode) {
    FILE *(*next)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");
    if (strcmp(path, "/proc/cpuinfo") == 0) {
        errno = ENOENT;
        return NULL;
    }
    return next(path, mode);
}

FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }
