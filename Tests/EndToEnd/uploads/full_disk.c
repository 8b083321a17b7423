/* A preloaded library: writes to files in a directory "photos" fail with ENOSPC, once the file named by FULL_DISK exists,
   after the number of writes that is in it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_int written;

static int is_full(int descriptor) {
    char link[64], path[4096] = "";
    const char *flag = getenv("FULL_DISK");
    FILE *file = flag ? fopen(flag, "re") : NULL;
    int allowed = 0;
    if (!file) {
        written = 0;
        return 0;
    }
    int found = fscanf(file, "%d", &allowed);
    fclose(file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    return found == 1 && length > 0 && strstr(path, "/photos/") && atomic_fetch_add(&written, 1) >= allowed;
}

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))
#define CHECKED(name, parameters, ...) \
    ssize_t name parameters { \
        if (is_full(descriptor)) { errno = ENOSPC; return -1; } \
        return REAL(name)(__VA_ARGS__); \
    }

CHECKED(write, (int descriptor, const void *bytes, size_t count), descriptor, bytes, count)
CHECKED(writev, (int descriptor, const struct iovec *list, int count), descriptor, list, count)
CHECKED(pwrite, (int descriptor, const void *bytes, size_t count, off_t at), descriptor, bytes, count, at)
CHECKED(pwrite64, (int descriptor, const void *bytes, size_t count, off64_t at), descriptor, bytes, count, at)
CHECKED(pwritev, (int descriptor, const struct iovec *list, int count, off_t at), descriptor, list, count, at)
CHECKED(pwritev64, (int descriptor, const struct iovec *list, int count, off64_t at), descriptor, list, count, at)
