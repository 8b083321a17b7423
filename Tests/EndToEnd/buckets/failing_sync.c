/* A preloaded library that makes syncs fail with EIO while the file named by FAILING_SYNC exists. It affects files and
   directories whose path ends with that file's content. If FAILING_SYNC_HANGS is set, a sync creates the file with that
   name and never returns. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int descriptor) {
    char link[64], path[4096], end[256];
    const char *flag = getenv("FAILING_SYNC");
    FILE *file = flag ? fopen(flag, "re") : NULL;
    if (!file) return 0;
    size_t wanted = fread(end, 1, sizeof end, file);
    fclose(file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path);
    return length >= (ssize_t)wanted && memcmp(path + length - wanted, end, wanted) == 0;
}

static int synced(const char *call, int descriptor) {
    if (fails(descriptor)) {
        const char *mark = getenv("FAILING_SYNC_HANGS");
        if (mark) fclose(fopen(mark, "we"));
        while (mark) pause();
        errno = EIO;
        return -1;
    }
    return ((int (*)(int))dlsym(RTLD_NEXT, call))(descriptor);
}

int fsync(int descriptor) { return synced("fsync", descriptor); }
int fdatasync(int descriptor) { return synced("fdatasync", descriptor); }
