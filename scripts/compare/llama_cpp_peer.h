// Common parts of the programs that measure llama.cpp.

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "llama.h"

static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void quiet(enum ggml_log_level level, const char *text, void *unused) {
    (void)unused;
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static void fail(const char *problem) {
    fprintf(stderr, "%s: %s\n", PROGRAM, problem);
    exit(1);
}
