#define _GNU_SOURCE
#include "CSolver.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

// The part of Z3's C interface that is used.
typedef void *z3_handle;
typedef void (*z3_error_handler)(z3_handle context, int code);

static struct {
    void (*set_parameter)(const char *, const char *);
    z3_handle (*make_config)(void);
    z3_handle (*make_context)(z3_handle);
    void (*free_config)(z3_handle);
    void (*free_context)(z3_handle);
    void (*set_error_handler)(z3_handle, z3_error_handler);
    const char *(*evaluate)(z3_handle, const char *);
} z3;

// Errors are part of the text that `evaluate` returns.
static void ignore_error(z3_handle context, int code) {
    (void)context;
    (void)code;
}

static int load(void) {
    static const char *const names[] = {"libz3.so.4", "libz3.so.4.8", "libz3.so"};
    void *library = NULL;
    for (size_t i = 0; library == NULL && i < sizeof names / sizeof *names; i++) library = dlopen(names[i], RTLD_NOW);
    if (library == NULL) return 0;
    *(void **)&z3.set_parameter = dlsym(library, "Z3_global_param_set");
    *(void **)&z3.make_config = dlsym(library, "Z3_mk_config");
    *(void **)&z3.make_context = dlsym(library, "Z3_mk_context");
    *(void **)&z3.free_config = dlsym(library, "Z3_del_config");
    *(void **)&z3.free_context = dlsym(library, "Z3_del_context");
    *(void **)&z3.set_error_handler = dlsym(library, "Z3_set_error_handler");
    *(void **)&z3.evaluate = dlsym(library, "Z3_eval_smtlib2_string");
    return z3.set_parameter && z3.make_config && z3.make_context && z3.free_config && z3.free_context
        && z3.set_error_handler && z3.evaluate;
}

static int transfer(int socket, char *bytes, size_t count, int sends) {
    while (count > 0) {
        ssize_t done = sends ? send(socket, bytes, count, MSG_NOSIGNAL) : recv(socket, bytes, count, 0);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return 0;
        bytes += done;
        count -= (size_t)done;
    }
    return 1;
}

static int reply(int socket, const char *text) {
    uint32_t length = (uint32_t)strlen(text);
    return transfer(socket, (char *)&length, sizeof length, 1) && transfer(socket, (char *)text, length, 1);
}

static void serve(int socket, uint64_t memory) {
    if (!load()) {
        const char *reason = dlerror();
        reply(socket, reason != NULL ? reason : "libz3 lacks a function");
        return;
    }
    char megabytes[32];
    snprintf(megabytes, sizeof megabytes, "%llu", (unsigned long long)(memory >> 20));
    z3.set_parameter("memory_max_size", megabytes);
    if (!reply(socket, "")) return;
    for (;;) {
        uint32_t length;
        if (!transfer(socket, (char *)&length, sizeof length, 0)) return;
        char *script = malloc((size_t)length + 1);
        if (script == NULL || !transfer(socket, script, length, 0)) return;
        script[length] = 0;
        // Each script gets a context of its own: nothing of the last one remains.
        z3_handle config = z3.make_config();
        z3_handle context = z3.make_context(config);
        z3.set_error_handler(context, ignore_error);
        const char *result = z3.evaluate(context, script);
        free(script);
        if (!reply(socket, result != NULL ? result : "unknown")) return;
        z3.free_context(context);
        z3.free_config(config);
    }
}

// The data of this process in bytes, with what it has inherited from its parent: the limit of data counts all of it.
static uint64_t data_size(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL) return 0;
    if (fscanf(file, "%*u %*u %*u %*u %*u %lu", &pages) != 1) pages = 0;
    fclose(file);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void limit(int resource, uint64_t value) {
    struct rlimit limit = {value, value};
    setrlimit(resource, &limit);
}

pid_t sluice_solver_start(int *socket, uint64_t memory, unsigned seconds) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) return -1;
    pid_t parent = getpid();
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(0);
        // Keeps only the connection: no listener, lock or output of the parent stays open in the child.
        if (dup2(ends[1], 0) < 0) _exit(1);
        close_range(1, ~0U, 0);
        signal(SIGPIPE, SIG_IGN);
        limit(RLIMIT_CORE, 0);
        limit(RLIMIT_DATA, data_size() + memory + (memory >> 1));
        limit(RLIMIT_CPU, seconds);
        serve(0, memory);
        _exit(0);
    }
    close(ends[1]);
    if (child < 0) close(ends[0]);
    *socket = ends[0];
    return child;
}
