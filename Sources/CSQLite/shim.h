// SQLite's public header, and the destructor constant that is a cast of an integer to a function.
#ifndef SLUICE_CSQLITE_SHIM_H
#define SLUICE_CSQLITE_SHIM_H
#include <sqlite3.h>

// SQLITE_TRANSIENT: SQLite copies the bytes before the call returns.
static inline int sluice_bind_text(sqlite3_stmt *s, int i, const char *p, int n) {
    return sqlite3_bind_text(s, i, p, n, SQLITE_TRANSIENT);
}
static inline int sluice_bind_blob(sqlite3_stmt *s, int i, const void *p, int n) {
    return sqlite3_bind_blob(s, i, p, n, SQLITE_TRANSIENT);
}
#endif
