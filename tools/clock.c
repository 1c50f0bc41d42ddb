/* Shift the wall clock of a process and of its children by TESTS_CLOCK_OFFSET seconds.
 *
 * Preloaded by tools/clock.py. Clocks that measure spans stay true, and so do timeouts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*true_clock)(clockid_t, struct timespec *);
static long offset;

__attribute__((constructor)) static void begin(void)
{
    const char *given = getenv("TESTS_CLOCK_OFFSET");
    offset = given ? strtol(given, NULL, 10) : 0;
    true_clock = dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!true_clock) /* called by the constructor of another library */
        begin();
    int status = true_clock(clock, now);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset;
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    struct timespec precise;
    int status = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return status;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

time_t time(time_t *now)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
