// SQLite's public header, and the destructor constant that is a cast of an integer to a function.
#ifndef SLUICE_CSQLITE_SHIM_H
#define SLUICE_CSQLITE_SHIM_H
#include <sqlite3.h>

// SQLITE_TRANSIENT: SQLite copies the bytes before the call returns. Without an address it would bind NULL.
static inline int sluice_bind_text(sqlite3_stmt *s, int i, const char *p, int n) {
    return sqlite3_bind_text(s, i, p ? p : "", n, SQLITE_TRANSIENT);
}
static inline int sluice_bind_blob(sqlite3_stmt *s, int i, const void *p, int n) {
    return sqlite3_bind_blob(s, i, p ? p : "", n, SQLITE_TRANSIENT);
}

// sqlite3_config and sqlite3_db_config are variadic.
static inline int sluice_sqlite_without_statistics(void) {
    return sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
}
static inline int sluice_sqlite_keep_log_on_close(sqlite3 *db) {
    return sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, (int *)0);
}
#endif
