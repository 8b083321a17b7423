// Linux interfaces that Swift's Glibc module leaves out, and function-like macros it can't import.
#ifndef SLUICE_CLINUX_SHIM_H
#define SLUICE_CLINUX_SHIM_H

#include <fcntl.h>
#include <linux/stat.h>
#include <malloc.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

// The C library declares these only under _GNU_SOURCE. Swift's Glibc module is built without it; defining it here would
// give both modules different declarations of the same structures.
extern int accept4(int, struct sockaddr *, socklen_t *, int);
extern ssize_t preadv2(int, const struct iovec *, int, off_t, int);
extern ssize_t copy_file_range(int, int64_t *, int, int64_t *, size_t, unsigned int);
extern int fallocate(int, int, int64_t, int64_t);
extern int sched_getaffinity(pid_t, size_t, void *);
extern int sync_file_range(int, int64_t, int64_t, unsigned int);
extern int statx(int, const char *, int, unsigned int, struct statx *);

static inline int sluice_accept4(int fd, struct sockaddr *address, socklen_t *length) {
    return accept4(fd, address, length, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

// RWF_NOWAIT: fails with EAGAIN if the page cache does not hold the bytes (preadv2(2)).
static inline ssize_t sluice_pread_nowait(int fd, void *buffer, size_t count, off_t offset) {
    struct iovec vector = {buffer, count};
    return preadv2(fd, &vector, 1, offset, 0x00000008);
}

// SYNC_FILE_RANGE_WRITE: starts writing dirty pages without waiting for them (sync_file_range(2)).
static inline int sluice_start_writeback(int fd, int64_t offset, int64_t count) {
    return sync_file_range(fd, offset, count, 2);
}

// Copies within the kernel, without moving the descriptors' offsets (copy_file_range(2)).
static inline ssize_t sluice_copy_range(int from, int64_t start, int to, int64_t offset, size_t count) {
    return copy_file_range(from, &start, to, &offset, count, 0);
}

// FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE: frees the blocks of a range, which then reads as zeros (fallocate(2)).
static inline int sluice_punch_hole(int fd, int64_t offset, int64_t count) { return fallocate(fd, 3, offset, count); }

// STATX_BTIME: when a file was made, in milliseconds since 1970; 0 if its file system does not tell (statx(2)).
static inline int64_t sluice_birth(const char *path) {
    struct statx status;
    if (statx(AT_FDCWD, path, 0, STATX_BTIME, &status) != 0 || !(status.stx_mask & STATX_BTIME)) return 0;
    return status.stx_btime.tv_sec * 1000 + status.stx_btime.tv_nsec / 1000000;
}

#endif
