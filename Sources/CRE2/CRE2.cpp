#include "CRE2.h"

#include <re2/re2.h>

#include <cstring>
#include <new>

struct sluice_re2 {
    RE2 re;
    sluice_re2(const re2::StringPiece &pattern, const RE2::Options &options) : re(pattern, options) {}
};

static re2::StringPiece piece(const uint8_t *bytes, size_t length) {
    return re2::StringPiece(reinterpret_cast<const char *>(bytes), length);
}

sluice_re2 *sluice_re2_compile(
    const uint8_t *pattern, size_t length, int64_t max_memory, char *error, size_t capacity) {
    RE2::Options options;
    options.set_log_errors(false);
    options.set_max_mem(max_memory);
    sluice_re2 *result = new (std::nothrow) sluice_re2(piece(pattern, length), options);
    if (result != nullptr && result->re.ok()) return result;
    if (capacity > 0) {
        const char *reason = result != nullptr ? result->re.error().c_str() : "out of memory";
        std::strncpy(error, reason, capacity - 1);
        error[capacity - 1] = 0;
    }
    delete result;
    return nullptr;
}

void sluice_re2_free(sluice_re2 *re) { delete re; }

int sluice_re2_program_size(const sluice_re2 *re) { return re->re.ProgramSize(); }

int sluice_re2_groups(const sluice_re2 *re) { return re->re.NumberOfCapturingGroups(); }

int sluice_re2_full_match(const sluice_re2 *re, const uint8_t *text, size_t length) {
    return re->re.Match(piece(text, length), 0, length, RE2::ANCHOR_BOTH, nullptr, 0);
}

int sluice_re2_find(
    const sluice_re2 *re, const uint8_t *text, size_t length, size_t start, sluice_re2_range *groups, int count) {
    static const int most = 17;
    re2::StringPiece found[most];
    if (count > most) count = most;
    if (start > length) return 0;
    re2::StringPiece whole = piece(text, length);
    if (!re->re.Match(whole, start, length, RE2::UNANCHORED, found, count)) return 0;
    for (int i = 0; i < count; i++) {
        bool took_part = found[i].data() != nullptr;
        groups[i].begin = took_part ? found[i].data() - whole.data() : -1;
        groups[i].end = took_part ? groups[i].begin + static_cast<int64_t>(found[i].size()) : -1;
    }
    return 1;
}
