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
static inline long sluice_BIO_get_mem_data(BIO *b, char **p) { return BIO_get_mem_data(b, p); }
static inline int sluice_BIO_reset(BIO *b) { return (int)BIO_reset(b); }
static inline EVP_PKEY *sluice_EVP_EC_gen(const char *curve) { return EVP_EC_gen(curve); }
static inline int sluice_ERR_GET_REASON(unsigned long e) { return ERR_GET_REASON(e); }
#endif
