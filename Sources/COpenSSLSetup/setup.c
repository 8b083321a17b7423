#include "COpenSSLSetup.h"

#include <openssl/crypto.h>

// Runs before main(), because only the first call decides. OpenSSL would free its tables in exit(), while threads that
// still run use them: the program would crash after its work is done.
__attribute__((constructor)) static void keep_openssl_at_exit(void) {
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
}
