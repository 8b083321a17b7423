// A C interface to RE2, which is C++: compile, match whole, find the next.
#ifndef SLUICE_CRE2_H
#define SLUICE_CRE2_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sluice_re2 sluice_re2;

// A begin and an end in bytes; both -1 for a group that took no part in the match.
typedef struct {
    int64_t begin;
    int64_t end;
} sluice_re2_range;

// Compiles `length` bytes of pattern within `max_memory` bytes. On failure returns NULL and writes a reason, cut to
// `capacity` bytes and terminated by a zero, to `error`.
sluice_re2 *sluice_re2_compile(
    const uint8_t *pattern, size_t length, int64_t max_memory, char *error, size_t capacity);

void sluice_re2_free(sluice_re2 *re);

// The size of the compiled program, which bounds the work for each byte of text.
int sluice_re2_program_size(const sluice_re2 *re);

// The number of capturing groups, without the whole match.
int sluice_re2_groups(const sluice_re2 *re);

// 1 where the whole text matches.
int sluice_re2_full_match(const sluice_re2 *re, const uint8_t *text, size_t length);

// 1 where a match begins at or after `start`; writes the whole match and then up to `count` - 1 groups to `groups`.
int sluice_re2_find(
    const sluice_re2 *re, const uint8_t *text, size_t length, size_t start, sluice_re2_range *groups, int count);

#ifdef __cplusplus
}
#endif
#endif
