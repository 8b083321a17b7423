// OpenSSL's headers, and wrappers for its function-like macros.
#ifndef SLUICE_COPENSSL_SHIM_H
#define SLUICE_COPENSSL_SHIM_H
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

static inline int sluice_SSL_CTX_set_min_proto_version(SSL_CTX *c, int v) {
    return SSL_CTX_set_min_proto_version(c, v);
}
static inline long sluice_SSL_CTX_set_mode(SSL_CTX *c, long m) { return SSL_CTX_set_mode(c, m); }
static inline EVP_PKEY *sluice_EVP_EC_gen(const char *curve) { return EVP_EC_gen(curve); }
static inline long sluice_SSL_CTX_set_session_cache_off(SSL_CTX *c) {
    return SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
}
// No renegotiation, no compression, the server's order of ciphers, and an end without close_notify is an end.
static inline uint64_t sluice_SSL_OPTIONS(void) {
    return SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE |
           SSL_OP_IGNORE_UNEXPECTED_EOF;
}
#endif
