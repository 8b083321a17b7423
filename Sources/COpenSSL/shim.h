// OpenSSL's headers, and wrappers for its function-like macros.
#ifndef SLUICE_COPENSSL_SHIM_H
#define SLUICE_COPENSSL_SHIM_H
#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/md5.h>
#include <openssl/param_build.h>
#include <openssl/params.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/rsa.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

static inline int sluice_SSL_CTX_set_min_proto_version(SSL_CTX *c, int v) {
    return SSL_CTX_set_min_proto_version(c, v);
}
static inline long sluice_SSL_CTX_set_mode(SSL_CTX *c, long m) { return SSL_CTX_set_mode(c, m); }
static inline EVP_PKEY *sluice_EVP_EC_gen(const char *curve) { return EVP_EC_gen(curve); }
// Builds a public key and frees the builder. In C, because the builder keeps pointers to the names.
static inline EVP_PKEY *sluice_build_key(const char *type, OSSL_PARAM_BLD *builder) {
    OSSL_PARAM *parameters = OSSL_PARAM_BLD_to_param(builder);
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, type, NULL);
    EVP_PKEY *key = NULL;
    if (parameters && context && EVP_PKEY_fromdata_init(context) == 1 &&
        EVP_PKEY_fromdata(context, &key, EVP_PKEY_PUBLIC_KEY, parameters) != 1) {
        EVP_PKEY_free(key);
        key = NULL;
    }
    EVP_PKEY_CTX_free(context);
    OSSL_PARAM_free(parameters);
    OSSL_PARAM_BLD_free(builder);
    return key;
}
// Both numbers are big-endian.
static inline EVP_PKEY *sluice_rsa_public_key(
    const unsigned char *modulus, size_t modulusBytes, const unsigned char *exponent,
    size_t exponentBytes) {
    OSSL_PARAM_BLD *builder = OSSL_PARAM_BLD_new();
    BIGNUM *n = BN_bin2bn(modulus, (int)modulusBytes, NULL);
    BIGNUM *e = BN_bin2bn(exponent, (int)exponentBytes, NULL);
    EVP_PKEY *key = NULL;
    if (builder && n && e && OSSL_PARAM_BLD_push_BN(builder, OSSL_PKEY_PARAM_RSA_N, n) == 1 &&
        OSSL_PARAM_BLD_push_BN(builder, OSSL_PKEY_PARAM_RSA_E, e) == 1)
        key = sluice_build_key("RSA", builder);
    else
        OSSL_PARAM_BLD_free(builder);
    BN_free(n);
    BN_free(e);
    return key;
}
// A point in the format of SEC 1, section 2.3.3.
static inline EVP_PKEY *sluice_ec_public_key(
    const char *curve, const unsigned char *point, size_t pointBytes) {
    OSSL_PARAM_BLD *builder = OSSL_PARAM_BLD_new();
    if (builder &&
        OSSL_PARAM_BLD_push_utf8_string(builder, OSSL_PKEY_PARAM_GROUP_NAME, curve, 0) == 1 &&
        OSSL_PARAM_BLD_push_octet_string(builder, OSSL_PKEY_PARAM_PUB_KEY, point, pointBytes) == 1)
        return sluice_build_key("EC", builder);
    OSSL_PARAM_BLD_free(builder);
    return NULL;
}
static inline long sluice_SSL_CTX_set_session_cache_off(SSL_CTX *c) {
    return SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
}
// No renegotiation, no compression, the server's order of ciphers; an end without close_notify is accepted.
static inline uint64_t sluice_SSL_OPTIONS(void) {
    return SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE |
           SSL_OP_IGNORE_UNEXPECTED_EOF;
}
// For a client: no renegotiation, no compression. An end without close_notify is an error.
static inline uint64_t sluice_SSL_CLIENT_OPTIONS(void) {
    return SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION;
}
// Passes sessions only to the callback.
static inline long sluice_SSL_CTX_keep_client_sessions(SSL_CTX *c) {
    return SSL_CTX_set_session_cache_mode(
        c, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL_STORE);
}
static inline long sluice_SSL_set_tlsext_host_name(SSL *s, const char *name) {
    return SSL_set_tlsext_host_name(s, name);
}
// Whether this thread's last failure was a record that is not TLS.
static inline int sluice_is_not_tls(void) {
    return ERR_GET_REASON(ERR_peek_error()) == SSL_R_WRONG_VERSION_NUMBER;
}
static inline int sluice_X509_NAME_print(BIO *out, const X509_NAME *name) {
    return X509_NAME_print_ex(out, name, 0, XN_FLAG_RFC2253);
}
static inline uint64_t sluice_SSL_OP_NO_TICKET(void) { return SSL_OP_NO_TICKET; }
// A certificate of a chain; null after the last.
static inline X509 *sluice_certificate(const STACK_OF(X509) *chain, int index) {
    return index < sk_X509_num(chain) ? sk_X509_value(chain, index) : NULL;
}
// A cipher of a context in order of preference; null after the last.
static inline const SSL_CIPHER *sluice_cipher(const SSL_CTX *context, int index) {
    const STACK_OF(SSL_CIPHER) *ciphers = SSL_CTX_get_ciphers(context);
    return index < sk_SSL_CIPHER_num(ciphers) ? sk_SSL_CIPHER_value(ciphers, index) : NULL;
}
// Whether this thread's last handshake failed because the client sent no certificate.
static inline int sluice_is_certificate_missing(void) {
    return ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE;
}
// The system error in an error code, or 0.
static inline int sluice_system_error(unsigned long code) {
    return ERR_SYSTEM_ERROR(code) ? ERR_GET_REASON(code) : 0;
}
// Whether a code only repeats that a system error, whose own code precedes it, was the reason.
static inline int sluice_repeats_system_error(unsigned long code) {
    return !ERR_SYSTEM_ERROR(code) && ERR_GET_REASON(code) == ERR_R_SYS_LIB;
}
// A name of the subject alternative name, with its type and text; null after the last.
static inline const GENERAL_NAME *sluice_general_name(const GENERAL_NAMES *names, int index) {
    return index < sk_GENERAL_NAME_num(names) ? sk_GENERAL_NAME_value(names, index) : NULL;
}
static inline const ASN1_STRING *sluice_general_name_text(const GENERAL_NAME *name) {
    switch (name->type) {
    case GEN_URI: return name->d.uniformResourceIdentifier;
    case GEN_DNS: return name->d.dNSName;
    default: return NULL;
    }
}
static inline int sluice_general_name_is_uri(const GENERAL_NAME *name) {
    return name->type == GEN_URI;
}

// CRC32C with the processor's instruction. Swift has the table for processors without one.
#if defined(__x86_64__)
#include <cpuid.h>
static inline int sluice_crc32c_hardware(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2) && (c & bit_PCLMUL);
}
static inline uint64_t sluice_load(const unsigned char *p) {
    uint64_t word;
    __builtin_memcpy(&word, p, 8);
    return word;
}
// The checksum after n zero bytes, before its last reduction: times x^(8n - 33).
__attribute__((target("sse4.2,pclmul"))) static inline uint64_t sluice_crc32c_shift(
    uint64_t state, uint64_t factor) {
    typedef long long pair __attribute__((vector_size(16)));
    pair a = {(long long)state, 0}, b = {(long long)factor, 0};
    return (uint64_t)__builtin_ia32_pclmulqdq128(a, b, 0)[0];
}
// The instruction has a latency of three cycles and a throughput of one per cycle: use three lanes, combined by shifts.
#define SLUICE_CRC32C_LANES(lane, twice, once)                                                    \
    for (; n >= 3 * lane; n -= 3 * lane, p += 3 * lane) {                                          \
        uint64_t second = 0, third = 0;                                                            \
        for (size_t i = 0; i < lane; i += 8) {                                                     \
            state = __builtin_ia32_crc32di(state, sluice_load(p + i));                             \
            second = __builtin_ia32_crc32di(second, sluice_load(p + lane + i));                    \
            third = __builtin_ia32_crc32di(third, sluice_load(p + 2 * lane + i));                  \
        }                                                                                          \
        state = third ^ __builtin_ia32_crc32di(0, sluice_crc32c_shift(state, twice) ^              \
                                                      sluice_crc32c_shift(second, once));          \
    }
__attribute__((target("sse4.2,pclmul"))) static inline uint32_t sluice_crc32c(
    uint32_t crc, const unsigned char *p, size_t n) {
    uint64_t state = crc;
    SLUICE_CRC32C_LANES(1024, 0xa51b6135, 0x170076fa)
    SLUICE_CRC32C_LANES(128, 0xb9e02b86, 0x0d3b6092)
    for (; n >= 8; n -= 8, p += 8) state = __builtin_ia32_crc32di(state, sluice_load(p));
    for (; n > 0; n--, p++) state = __builtin_ia32_crc32qi((uint32_t)state, *p);
    return (uint32_t)state;
}
#undef SLUICE_CRC32C_LANES
// Whether the processor has carry-less multiplication of 64-byte vectors, and the system saves their registers.
static inline int sluice_crc32c_wide(void) {
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX512F) || !(c & bit_VPCLMULQDQ))
        return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 0xe6) == 0xe6;
}
typedef long long sluice_wide __attribute__((vector_size(64)));
#define SLUICE_WIDE __attribute__((target("avx512f,vpclmulqdq")))
SLUICE_WIDE static inline sluice_wide sluice_load_wide(const unsigned char *p) {
    sluice_wide bytes;
    __builtin_memcpy(&bytes, p, 64);
    return bytes;
}
// The remainder of bytes 256 bytes later: each half of 16 bytes times x^(2048 ± 32).
SLUICE_WIDE static inline sluice_wide sluice_crc32c_later(sluice_wide bytes) {
    const long long low = 0xdcb17aa4, high = 0xb9e02b86;
    const sluice_wide factors = {low, high, low, high, low, high, low, high};
    return __builtin_ia32_pclmulqdq512(bytes, factors, 0x00) ^
           __builtin_ia32_pclmulqdq512(bytes, factors, 0x11);
}
// Reduces n bytes, a multiple of 256, to 256 bytes with the same checksum.
SLUICE_WIDE static inline void sluice_crc32c_reduce(
    uint32_t crc, const unsigned char *p, size_t n, unsigned char rest[256]) {
    sluice_wide a = sluice_load_wide(p) ^ (sluice_wide){crc}, b = sluice_load_wide(p + 64),
                c = sluice_load_wide(p + 128), d = sluice_load_wide(p + 192);
    for (p += 256; n > 256; n -= 256, p += 256) {
        a = sluice_crc32c_later(a) ^ sluice_load_wide(p);
        b = sluice_crc32c_later(b) ^ sluice_load_wide(p + 64);
        c = sluice_crc32c_later(c) ^ sluice_load_wide(p + 128);
        d = sluice_crc32c_later(d) ^ sluice_load_wide(p + 192);
    }
    __builtin_memcpy(rest, &a, 64);
    __builtin_memcpy(rest + 64, &b, 64);
    __builtin_memcpy(rest + 128, &c, 64);
    __builtin_memcpy(rest + 192, &d, 64);
}
#undef SLUICE_WIDE
// The same at twice the speed, for processors with sluice_crc32c_wide().
static inline uint32_t sluice_crc32c_by_vectors(uint32_t crc, const unsigned char *p, size_t n) {
    if (n >= 1024) {
        size_t whole = n & ~(size_t)255;
        unsigned char rest[256];
        sluice_crc32c_reduce(crc, p, whole, rest);
        crc = sluice_crc32c(0, rest, sizeof rest);
        p += whole;
        n -= whole;
    }
    return sluice_crc32c(crc, p, n);
}
#elif defined(__aarch64__)
#include <sys/auxv.h>
static inline int sluice_crc32c_hardware(void) { return (getauxval(AT_HWCAP) >> 7) & 1; }
__attribute__((target("crc"))) static inline uint32_t sluice_crc32c(
    uint32_t crc, const unsigned char *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        __builtin_memcpy(&word, p, 8);
        crc = __builtin_arm_crc32cd(crc, word);
    }
    for (; n > 0; n--, p++) crc = __builtin_arm_crc32cb(crc, *p);
    return crc;
}
#else
static inline int sluice_crc32c_hardware(void) { return 0; }
static inline uint32_t sluice_crc32c(uint32_t crc, const unsigned char *p, size_t n) {
    (void)p, (void)n;
    return crc;
}
#endif
#if !defined(__x86_64__)
static inline int sluice_crc32c_wide(void) { return 0; }
static inline uint32_t sluice_crc32c_by_vectors(uint32_t crc, const unsigned char *p, size_t n) {
    return sluice_crc32c(crc, p, n);
}
#endif
// The reduction of other reflected CRCs of up to 64 bits by carry-less multiplication. The multiplied bytes are 16-byte
// remainders; Swift computes the factors: x^(8 * step + 63) and x^(8 * step - 1) modulo the polynomial, reflected.
#if defined(__x86_64__)
static inline int sluice_crc_hardware(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_PCLMUL);
}
typedef long long sluice_pair __attribute__((vector_size(16)));
#define SLUICE_PAIR __attribute__((target("sse2,pclmul")))
SLUICE_PAIR static inline sluice_pair sluice_load_pair(const unsigned char *p) {
    sluice_pair bytes;
    __builtin_memcpy(&bytes, p, 16);
    return bytes;
}
// The remainder of bytes 64 bytes later.
SLUICE_PAIR static inline sluice_pair sluice_crc_later(sluice_pair bytes, sluice_pair factors) {
    return __builtin_ia32_pclmulqdq128(bytes, factors, 0x00) ^
           __builtin_ia32_pclmulqdq128(bytes, factors, 0x11);
}
// Reduces n bytes, a multiple of 64, to 64 bytes with the same checksum if that starts with 0.
SLUICE_PAIR static inline void sluice_crc_reduce(
    uint64_t crc, const uint64_t step64[2], const unsigned char *p, size_t n, unsigned char rest[64]) {
    const sluice_pair factors = {(long long)step64[0], (long long)step64[1]};
    sluice_pair a = sluice_load_pair(p) ^ (sluice_pair){(long long)crc, 0}, b = sluice_load_pair(p + 16),
                c = sluice_load_pair(p + 32), d = sluice_load_pair(p + 48);
    for (p += 64; n > 64; n -= 64, p += 64) {
        a = sluice_crc_later(a, factors) ^ sluice_load_pair(p);
        b = sluice_crc_later(b, factors) ^ sluice_load_pair(p + 16);
        c = sluice_crc_later(c, factors) ^ sluice_load_pair(p + 32);
        d = sluice_crc_later(d, factors) ^ sluice_load_pair(p + 48);
    }
    __builtin_memcpy(rest, &a, 16);
    __builtin_memcpy(rest + 16, &b, 16);
    __builtin_memcpy(rest + 32, &c, 16);
    __builtin_memcpy(rest + 48, &d, 16);
}
#undef SLUICE_PAIR
// Reduces n bytes, a multiple of 256, to 256 bytes. For processors with sluice_crc32c_wide().
__attribute__((target("avx512f,vpclmulqdq"))) static inline void sluice_crc_reduce_wide(
    uint64_t crc, const uint64_t step256[2], const unsigned char *p, size_t n, unsigned char rest[256]) {
    const long long low = (long long)step256[0], high = (long long)step256[1];
    const sluice_wide factors = {low, high, low, high, low, high, low, high};
    sluice_wide v[4];
    for (int i = 0; i < 4; i++) v[i] = sluice_load_wide(p + 64 * i);
    v[0] ^= (sluice_wide){(long long)crc};
    for (p += 256; n > 256; n -= 256, p += 256)
        for (int i = 0; i < 4; i++)
            v[i] = __builtin_ia32_pclmulqdq512(v[i], factors, 0x00) ^
                   __builtin_ia32_pclmulqdq512(v[i], factors, 0x11) ^ sluice_load_wide(p + 64 * i);
    for (int i = 0; i < 4; i++) __builtin_memcpy(rest + 64 * i, &v[i], 64);
}
#else
static inline int sluice_crc_hardware(void) { return 0; }
static inline void sluice_crc_reduce(
    uint64_t crc, const uint64_t step64[2], const unsigned char *p, size_t n, unsigned char rest[64]) {
    (void)crc, (void)step64, (void)p, (void)n, (void)rest;
}
static inline void sluice_crc_reduce_wide(
    uint64_t crc, const uint64_t step256[2], const unsigned char *p, size_t n, unsigned char rest[256]) {
    (void)crc, (void)step256, (void)p, (void)n, (void)rest;
}
#endif
// Digests whose state can be saved. Deprecated, but without a successor: the state of an EVP_MD_CTX can't be read.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define SLUICE_DIGEST(name, TYPE, prefix)                                                          \
    static inline void sluice_##name##_init(TYPE *c) { prefix##_Init(c); }                         \
    static inline void sluice_##name##_update(TYPE *c, const void *bytes, size_t count) {          \
        prefix##_Update(c, bytes, count);                                                          \
    }                                                                                              \
    static inline void sluice_##name##_final(unsigned char *out, TYPE *c) { prefix##_Final(out, c); }
SLUICE_DIGEST(md5, MD5_CTX, MD5)
SLUICE_DIGEST(sha256, SHA256_CTX, SHA256)
SLUICE_DIGEST(sha512, SHA512_CTX, SHA512)
SLUICE_DIGEST(sha1, SHA_CTX, SHA1)
#undef SLUICE_DIGEST
#pragma GCC diagnostic pop
#endif
