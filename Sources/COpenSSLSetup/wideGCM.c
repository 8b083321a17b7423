// AES-GCM with vectors of 64 bytes (VAES) for TLS: an OpenSSL provider on Intel's library IPsec MB.
//
// OpenSSL uses these instructions since 3.1. The one of Debian 12 does not, and needs four times as long for a record.
// libIPSec_MB.so.1 is loaded if it is installed. It is used only if it gives the same results as OpenSGL's own AES-GCM,
// and only by contexts that ask for it by a property of its own: what OpenSSL's configuration says of providers still
// counts (`default_properties`). Whether a cipher is allowed is not decided here.
#include "COpenSSLSetup.h"

#include <openssl/crypto.h>
#include <stddef.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <dlfcn.h>
#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/provider.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    nonceBytes = 12,
    tagBytes = 16,
    // Of the additional data: TLS 1.3 has 5 bytes, TLS 1.2 has 13.
    recordHeaderBytes = 13,
    maximumAADBytes = 64,
    // The part of the nonce that a record of TLS 1.2 carries (RFC 5288, section 3).
    explicitBytes = 8,
    // What the library keeps of a message, 88 bytes in version 1.3.
    stateBytes = 128,
    // An upper bound of an expanded key, 1,008 bytes in version 1.3 and 1,264 in 1.4.
    maximumScheduleBytes = 4096,
    alignment = 64,
};

// The library's functions for one size of keys.
struct gcm {
    size_t keyBytes;
    // The size of an expanded key, which is another one in other versions. Found by expanding one.
    size_t scheduleBytes;
    void (*expand)(const void *key, void *schedule);
    void (*begin)(const void *schedule, void *state, const unsigned char *nonce, const unsigned char *aad,
                  uint64_t aadCount);
    void (*encrypt)(const void *schedule, void *state, unsigned char *out, const unsigned char *in, uint64_t count);
    void (*decrypt)(const void *schedule, void *state, unsigned char *out, const unsigned char *in, uint64_t count);
    void (*endEncryption)(const void *schedule, void *state, unsigned char *tag, uint64_t count);
    void (*endDecryption)(const void *schedule, void *state, unsigned char *tag, uint64_t count);
};
static struct gcm gcm128 = {.keyBytes = 16}, gcm256 = {.keyBytes = 32};

#define PROPERTY "sluice.wide=yes"

// MARK: The cipher

// One direction of a connection.
struct cipher {
    _Alignas(alignment) unsigned char state[stateBytes];
    const struct gcm *gcm;
    unsigned char nonce[nonceBytes];
    unsigned char tag[tagBytes];
    unsigned char aad[maximumAADBytes];
    size_t aadCount;
    // Records of TLS 1.2 that were encrypted with the key.
    uint64_t records;
    // hasFixed: the nonce is that of records of TLS 1.2. isRecord: such a record comes next.
    unsigned encrypts : 1, hasKey : 1, hasNonce : 1, hasTag : 1, hasBegun : 1, hasFixed : 1, isRecord : 1;
    _Alignas(alignment) unsigned char schedule[];
};

static size_t size_of(const struct gcm *gcm) {
    size_t size = offsetof(struct cipher, schedule) + gcm->scheduleBytes;
    return (size + alignment - 1) / alignment * alignment;
}

static void *new_cipher(const struct gcm *gcm) {
    struct cipher *cipher = aligned_alloc(alignment, size_of(gcm));
    if (!cipher) return NULL;
    memset(cipher, 0, size_of(gcm));
    cipher->gcm = gcm;
    return cipher;
}
static void *new_128(void *provider) { return new_cipher(&gcm128); }
static void *new_256(void *provider) { return new_cipher(&gcm256); }

static void free_cipher(void *context) {
    struct cipher *cipher = context;
    if (!cipher) return;
    OPENSSL_cleanse(cipher, size_of(cipher->gcm));
    free(cipher);
}

// How many keys were expanded.
static atomic_ulong keys;

static int set_parameters(void *context, const OSSL_PARAM parameters[]);

static int begin(struct cipher *cipher, int encrypts, const unsigned char *key, size_t keyCount,
                 const unsigned char *nonce, size_t nonceCount, const OSSL_PARAM parameters[]) {
    cipher->encrypts = encrypts;
    cipher->isRecord = 0;
    if (key) {
        if (keyCount != cipher->gcm->keyBytes) return 0;
        cipher->gcm->expand(key, cipher->schedule);
        atomic_fetch_add_explicit(&keys, 1, memory_order_relaxed);
        cipher->hasKey = 1;
        cipher->hasBegun = 0;
        cipher->records = 0;
    }
    if (nonce) {
        if (nonceCount != nonceBytes) return 0;
        memcpy(cipher->nonce, nonce, nonceBytes);
        cipher->hasNonce = 1;
        cipher->hasBegun = cipher->hasFixed = 0;
        cipher->aadCount = 0;
        if (encrypts) cipher->hasTag = 0;
    }
    return set_parameters(cipher, parameters);
}
static int begin_encryption(void *context, const unsigned char *key, size_t keyCount, const unsigned char *nonce,
                            size_t nonceCount, const OSSL_PARAM parameters[]) {
    return begin(context, 1, key, keyCount, nonce, nonceCount, parameters);
}
static int begin_decryption(void *context, const unsigned char *key, size_t keyCount, const unsigned char *nonce,
                            size_t nonceCount, const OSSL_PARAM parameters[]) {
    return begin(context, 0, key, keyCount, nonce, nonceCount, parameters);
}

// Begins the message when its additional data is known.
static int start(struct cipher *cipher) {
    if (cipher->hasBegun) return 1;
    if (!cipher->hasKey || !cipher->hasNonce) return 0;
    cipher->gcm->begin(cipher->schedule, cipher->state, cipher->nonce, cipher->aad, cipher->aadCount);
    cipher->hasBegun = 1;
    return 1;
}

static void crypt_bytes(struct cipher *cipher, unsigned char *out, const unsigned char *in, size_t count) {
    (cipher->encrypts ? cipher->gcm->encrypt : cipher->gcm->decrypt)(cipher->schedule, cipher->state, out, in, count);
}

// Ends the message. Its nonce is never used again.
static int end(struct cipher *cipher) {
    cipher->hasNonce = cipher->hasBegun = 0;
    cipher->aadCount = 0;
    if (cipher->encrypts) {
        cipher->gcm->endEncryption(cipher->schedule, cipher->state, cipher->tag, tagBytes);
        cipher->hasTag = 1;
        return 1;
    }
    unsigned char actual[tagBytes];
    cipher->gcm->endDecryption(cipher->schedule, cipher->state, actual, tagBytes);
    int isRight = cipher->hasTag && CRYPTO_memcmp(actual, cipher->tag, tagBytes) == 0;
    cipher->hasTag = 0;
    OPENSSL_cleanse(actual, tagBytes);
    return isRight;
}

// A whole record of TLS 1.2 in place: explicit nonce, content, tag.
static int crypt_record(struct cipher *cipher, unsigned char *out, size_t *outCount, const unsigned char *in,
                        size_t count) {
    cipher->isRecord = 0;
    if (out != in || count < explicitBytes + tagBytes || !cipher->hasKey || !cipher->hasFixed) return 0;
    unsigned char *counter = cipher->nonce + nonceBytes - explicitBytes;
    unsigned char *content = out + explicitBytes, *tag = out + count - tagBytes;
    size_t contentCount = count - explicitBytes - tagBytes;
    if (cipher->encrypts) {
        // After 2^64 records the nonces would repeat.
        if (++cipher->records == 0) return 0;
        memcpy(out, counter, explicitBytes);
    } else {
        memcpy(counter, in, explicitBytes);
        memcpy(cipher->tag, tag, tagBytes);
        cipher->hasTag = 1;
    }
    cipher->hasNonce = 1;
    cipher->hasBegun = 0;
    if (!start(cipher)) return 0;
    crypt_bytes(cipher, content, content, contentCount);
    int isRight = end(cipher);
    if (cipher->encrypts) {
        memcpy(tag, cipher->tag, tagBytes);
        for (int place = explicitBytes - 1; place >= 0 && ++counter[place] == 0; place--) {}
        *outCount = count;
    } else {
        if (!isRight) OPENSSL_cleanse(content, contentCount);
        *outCount = contentCount;
    }
    return isRight;
}

static int update(void *context, unsigned char *out, size_t *outCount, size_t outSize, const unsigned char *in,
                  size_t count) {
    struct cipher *cipher = context;
    *outCount = 0;
    if (cipher->isRecord) return outSize >= count && crypt_record(cipher, out, outCount, in, count);
    if (count == 0) return 1;
    if (!out) {
        if (cipher->hasBegun || count > maximumAADBytes - cipher->aadCount) return 0;
        memcpy(cipher->aad + cipher->aadCount, in, count);
        cipher->aadCount += count;
    } else {
        if (outSize < count || !start(cipher)) return 0;
        crypt_bytes(cipher, out, in, count);
    }
    *outCount = count;
    return 1;
}

static int final(void *context, unsigned char *out, size_t *outCount, size_t outSize) {
    *outCount = 0;
    return start(context) && end(context);
}

// MARK: Parameters

static int set_parameters(void *context, const OSSL_PARAM parameters[]) {
    struct cipher *cipher = context;
    for (const OSSL_PARAM *p = parameters; p && p->key; p++) {
        const unsigned char *bytes = p->data;
        if (strcmp(p->key, OSSL_CIPHER_PARAM_IVLEN) == 0) {
            size_t count;
            if (!OSSL_PARAM_get_size_t(p, &count) || count != nonceBytes) return 0;
        } else if (strcmp(p->key, OSSL_CIPHER_PARAM_AEAD_TAG) == 0) {
            if (!bytes || p->data_size != tagBytes || cipher->encrypts) return 0;
            memcpy(cipher->tag, bytes, tagBytes);
            cipher->hasTag = 1;
        } else if (strcmp(p->key, OSSL_CIPHER_PARAM_AEAD_TLS1_IV_FIXED) == 0) {
            // The implicit part of the nonce. The explicit one begins at random, then it counts.
            if (!bytes || p->data_size != nonceBytes - explicitBytes) return 0;
            cipher->hasFixed = 0;
            memcpy(cipher->nonce, bytes, p->data_size);
            if (cipher->encrypts && RAND_bytes(cipher->nonce + p->data_size, explicitBytes) != 1) return 0;
            cipher->hasFixed = 1;
        } else if (strcmp(p->key, OSSL_CIPHER_PARAM_AEAD_TLS1_AAD) == 0) {
            // The header of a record, whose length counts everything; the additional data has that of the content.
            if (!bytes || p->data_size != recordHeaderBytes) return 0;
            size_t length = (size_t)bytes[11] << 8 | bytes[12];
            size_t others = explicitBytes + (cipher->encrypts ? 0 : tagBytes);
            if (length < others) return 0;
            memcpy(cipher->aad, bytes, recordHeaderBytes);
            cipher->aad[11] = (unsigned char)((length - others) >> 8);
            cipher->aad[12] = (unsigned char)(length - others);
            cipher->aadCount = recordHeaderBytes;
            cipher->isRecord = 1;
        }
    }
    return 1;
}

static int get_parameters(void *context, OSSL_PARAM parameters[]) {
    struct cipher *cipher = context;
    for (OSSL_PARAM *p = parameters; p && p->key; p++) {
        int isSet = 1;
        if (strcmp(p->key, OSSL_CIPHER_PARAM_IVLEN) == 0) {
            isSet = OSSL_PARAM_set_size_t(p, nonceBytes);
        } else if (strcmp(p->key, OSSL_CIPHER_PARAM_KEYLEN) == 0) {
            isSet = OSSL_PARAM_set_size_t(p, cipher->gcm->keyBytes);
        } else if (strcmp(p->key, OSSL_CIPHER_PARAM_AEAD_TAGLEN) == 0 ||
                   strcmp(p->key, OSSL_CIPHER_PARAM_AEAD_TLS1_AAD_PAD) == 0) {
            isSet = OSSL_PARAM_set_size_t(p, tagBytes);
        } else if (strcmp(p->key, OSSL_CIPHER_PARAM_AEAD_TAG) == 0) {
            if (!cipher->encrypts || !cipher->hasTag || p->data_size != tagBytes) return 0;
            isSet = OSSL_PARAM_set_octet_string(p, cipher->tag, tagBytes);
        } else if (strcmp(p->key, OSSL_CIPHER_PARAM_IV) == 0 || strcmp(p->key, OSSL_CIPHER_PARAM_UPDATED_IV) == 0) {
            // libssl passes it to TLS in the kernel.
            isSet = OSSL_PARAM_set_octet_string(p, cipher->nonce, nonceBytes);
        }
        if (!isSet) return 0;
    }
    return 1;
}

static int describe(OSSL_PARAM parameters[], const struct gcm *gcm) {
    for (OSSL_PARAM *p = parameters; p && p->key; p++) {
        int isSet = 1;
        if (strcmp(p->key, OSSL_CIPHER_PARAM_MODE) == 0) {
            isSet = OSSL_PARAM_set_uint(p, EVP_CIPH_GCM_MODE);
        } else if (strcmp(p->key, OSSL_CIPHER_PARAM_AEAD) == 0 || strcmp(p->key, OSSL_CIPHER_PARAM_CUSTOM_IV) == 0) {
            isSet = OSSL_PARAM_set_int(p, 1);
        } else if (strcmp(p->key, OSSL_CIPHER_PARAM_KEYLEN) == 0) {
            isSet = OSSL_PARAM_set_size_t(p, gcm->keyBytes);
        } else if (strcmp(p->key, OSSL_CIPHER_PARAM_BLOCK_SIZE) == 0) {
            isSet = OSSL_PARAM_set_size_t(p, 1);
        } else if (strcmp(p->key, OSSL_CIPHER_PARAM_IVLEN) == 0) {
            isSet = OSSL_PARAM_set_size_t(p, nonceBytes);
        }
        if (!isSet) return 0;
    }
    return 1;
}
static int describe_128(OSSL_PARAM parameters[]) { return describe(parameters, &gcm128); }
static int describe_256(OSSL_PARAM parameters[]) { return describe(parameters, &gcm256); }

// MARK: The provider

#define FUNCTIONS(size)                                                                                               \
    static const OSSL_DISPATCH functions##size[] = {                                                                  \
        {OSSL_FUNC_CIPHER_NEWCTX, (void (*)(void))new_##size},                                                        \
        {OSSL_FUNC_CIPHER_FREECTX, (void (*)(void))free_cipher},                                                      \
        {OSSL_FUNC_CIPHER_ENCRYPT_INIT, (void (*)(void))begin_encryption},                                            \
        {OSSL_FUNC_CIPHER_DECRYPT_INIT, (void (*)(void))begin_decryption},                                            \
        {OSSL_FUNC_CIPHER_UPDATE, (void (*)(void))update},                                                            \
        {OSSL_FUNC_CIPHER_FINAL, (void (*)(void))final},                                                              \
        {OSSL_FUNC_CIPHER_GET_PARAMS, (void (*)(void))describe_##size},                                               \
        {OSSL_FUNC_CIPHER_GET_CTX_PARAMS, (void (*)(void))get_parameters},                                            \
        {OSSL_FUNC_CIPHER_SET_CTX_PARAMS, (void (*)(void))set_parameters},                                            \
        {0, NULL},                                                                                                    \
    };
FUNCTIONS(128)
FUNCTIONS(256)

// The names under which OpenSSL's own provider has them, too.
static const OSSL_ALGORITHM ciphers[] = {
    {"AES-128-GCM:id-aes128-GCM:2.16.840.1.101.3.4.1.6", "provider=sluice," PROPERTY, functions128, NULL},
    {"AES-256-GCM:id-aes256-GCM:2.16.840.1.101.3.4.1.46", "provider=sluice," PROPERTY, functions256, NULL},
    {NULL, NULL, NULL, NULL},
};

static const OSSL_ALGORITHM *query(void *provider, int operation, int *mayNotCache) {
    *mayNotCache = 0;
    return operation == OSSL_OP_CIPHER ? ciphers : NULL;
}

static const OSSL_DISPATCH provider[] = {
    {OSSL_FUNC_PROVIDER_QUERY_OPERATION, (void (*)(void))query},
    {0, NULL},
};

static int provide(const OSSL_CORE_HANDLE *handle, const OSSL_DISPATCH *core, const OSSL_DISPATCH **functions,
                   void **context) {
    *functions = provider;
    *context = (void *)handle;
    return 1;
}

// MARK: Start

// The library needs AES, PCLMULQDQ, AVX-512 (F, DQ, CD, BW, VL), VAES, VPCLMULQDQ, GFNI and BMI2, and that the system saves
// the vectors.
static int has_instructions(void) {
    const unsigned needed1c = bit_OSXSAVE | bit_AES | bit_PCLMUL;
    const unsigned needed7b = bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL | bit_BMI2;
    const unsigned needed7c = bit_VAES | bit_VPCLMULQDQ | bit_GFNI;
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & needed1c) != needed1c) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if ((b & needed7b) != needed7b || (c & needed7c) != needed7c) return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 0xe6) == 0xe6;
}

static void *function(void *library, const char *format, size_t keyBytes) {
    char name[64];
    snprintf(name, sizeof name, format, (int)keyBytes * 8);
    return dlsym(library, name);
}

static int find_functions(void *library, struct gcm *gcm) {
    gcm->expand = function(library, "aes_gcm_pre_%d_vaes_avx512", gcm->keyBytes);
    gcm->begin = function(library, "aes_gcm_init_%d_vaes_avx512", gcm->keyBytes);
    gcm->encrypt = function(library, "aes_gcm_enc_%d_update_vaes_avx512", gcm->keyBytes);
    gcm->decrypt = function(library, "aes_gcm_dec_%d_update_vaes_avx512", gcm->keyBytes);
    gcm->endEncryption = function(library, "aes_gcm_enc_%d_finalize_vaes_avx512", gcm->keyBytes);
    gcm->endDecryption = function(library, "aes_gcm_dec_%d_finalize_vaes_avx512", gcm->keyBytes);
    return gcm->expand && gcm->begin && gcm->encrypt && gcm->decrypt && gcm->endEncryption && gcm->endDecryption;
}

// How many bytes at the start differ from a filling.
static size_t written(const unsigned char *memory, size_t count, unsigned char filling) {
    while (count > 0 && memory[count - 1] == filling) count--;
    return count;
}

// Finds the size of an expanded key, and checks that of a message's state.
static int measure(struct gcm *gcm) {
    static _Alignas(alignment) unsigned char schedule[2 * maximumScheduleBytes], state[2 * stateBytes];
    unsigned char text[1000] = {0}, tag[tagBytes];
    const unsigned char fillings[] = {0x5a, 0xa5};
    for (int round = 0; round < 2; round++) {
        memset(schedule, fillings[round], sizeof schedule);
        memset(state, fillings[round], sizeof state);
        gcm->expand(text, schedule);
        gcm->begin(schedule, state, text, text, recordHeaderBytes);
        gcm->encrypt(schedule, state, text, text, sizeof text);
        gcm->endEncryption(schedule, state, tag, tagBytes);
        size_t count = written(schedule, sizeof schedule, fillings[round]);
        if (count > gcm->scheduleBytes) gcm->scheduleBytes = count;
        if (count > maximumScheduleBytes || written(state, sizeof state, fillings[round]) > stateBytes) return 0;
    }
    OPENSSL_cleanse(schedule, sizeof schedule);
    return 1;
}

// Encrypts or decrypts a record of TLS 1.3, in the same steps as libssl.
static int record(EVP_CIPHER *cipher, int encrypts, const unsigned char *key, const unsigned char *in, int count,
                  unsigned char *out, unsigned char *tag) {
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int n = 0, rest = 0;
    int isDone = context && EVP_CipherInit_ex(context, cipher, NULL, NULL, NULL, encrypts) == 1 &&
                 EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_IVLEN, nonceBytes, NULL) == 1 &&
                 EVP_CipherInit_ex(context, NULL, NULL, key, NULL, -1) == 1 &&
                 EVP_CipherInit_ex(context, NULL, NULL, NULL, key + 32, encrypts) == 1 &&
                 (encrypts || EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, tagBytes, tag) == 1) &&
                 EVP_CipherUpdate(context, NULL, &n, key + 44, 5) == 1 &&
                 EVP_CipherUpdate(context, out, &n, in, count) == 1 && n == count &&
                 EVP_CipherFinal_ex(context, out + n, &rest) == 1 && rest == 0 &&
                 (!encrypts || EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, tagBytes, tag) == 1);
    EVP_CIPHER_CTX_free(context);
    return isDone;
}

// Compares the provider's cipher with OpenSSL's own, for several lengths, and checks that a wrong tag is rejected.
static int works(const char *name, EVP_CIPHER *theirs) {
    enum { largest = 16384 };
    static const int counts[] = {1, 15, 16, 17, 63, 255, 256, 1000, 4097, largest};
    EVP_CIPHER *ours = EVP_CIPHER_fetch(NULL, name, PROPERTY);
    unsigned char *text = OPENSSL_malloc(3 * largest), *expected = text + largest, *actual = expected + largest;
    unsigned char key[64], expectedTag[tagBytes], tag[tagBytes];
    int isRight = ours && text && RAND_bytes(key, sizeof key) == 1 && RAND_bytes(text, largest) == 1;
    for (size_t index = 0; isRight && index < sizeof counts / sizeof *counts; index++) {
        int count = counts[index];
        isRight = record(theirs, 1, key, text, count, expected, expectedTag) &&
                  record(ours, 1, key, text, count, actual, tag) && memcmp(expected, actual, (size_t)count) == 0 &&
                  memcmp(expectedTag, tag, tagBytes) == 0 && record(ours, 0, key, expected, count, actual, tag) &&
                  memcmp(text, actual, (size_t)count) == 0;
        tag[index] ^= 1;
        isRight = isRight && !record(ours, 0, key, expected, count, actual, tag);
    }
    OPENSSL_free(text);
    EVP_CIPHER_free(ours);
    return isRight;
}

static const char *fault;

// Whether a fetch gives the cipher of this provider.
static int is_provided(const char *name, const char *query, const char *provider) {
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, name, query);
    int isRight = cipher && strcmp(OSSL_PROVIDER_get0_name(EVP_CIPHER_get0_provider(cipher)), provider) == 0;
    EVP_CIPHER_free(cipher);
    return isRight;
}

// Loads the provider, and keeps it if its ciphers give the same results as these, and TLS would find them.
static const char *load(EVP_CIPHER *own128, EVP_CIPHER *own256) {
    if (OSSL_PROVIDER_add_builtin(NULL, "sluice", provide) != 1) return "OpenSSL does not accept a provider";
    // The last argument keeps OpenSSL's own providers, which otherwise would have to be loaded, too.
    OSSL_PROVIDER *loaded = OSSL_PROVIDER_try_load(NULL, "sluice", 1);
    if (!loaded) return "OpenSSL does not accept a provider";
    const char *found = "OpenSSL is configured for other providers";
    if (is_provided("AES-128-GCM", "?" PROPERTY, "sluice") && is_provided("AES-256-GCM", "?" PROPERTY, "sluice")) {
        if (works("AES-128-GCM", own128) && works("AES-256-GCM", own256)) return NULL;
        found = "libIPSec_MB.so.1 gives other results than OpenSSL";
    }
    OSSL_PROVIDER_unload(loaded);
    return found;
}

static const char *find_fault(void) {
    OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CONFIG, NULL);
    if (OpenSSL_version_num() >= 0x30100000) return "OpenSSL has them itself";
    if (!has_instructions()) return "the processor does not have the instructions";
    // Never closed: ciphers use it until the program ends.
    void *library = dlopen("libIPSec_MB.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return "libIPSec_MB.so.1 is not installed";
    if (!find_functions(library, &gcm128) || !find_functions(library, &gcm256))
        return "libIPSec_MB.so.1 lacks a function";
    if (!measure(&gcm128) || !measure(&gcm256)) return "libIPSec_MB.so.1 needs more memory than expected";
    if (!is_provided("AES-128-GCM", NULL, "default") || !is_provided("AES-256-GCM", NULL, "default"))
        return "OpenSSL is configured for other providers";
    // A fetch without our property gives the cipher that OpenSSL knew first: its own.
    EVP_CIPHER *own128 = EVP_CIPHER_fetch(NULL, "AES-128-GCM", NULL);
    EVP_CIPHER *own256 = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    const char *found = load(own128, own256);
    EVP_CIPHER_free(own128);
    EVP_CIPHER_free(own256);
    return found;
}

static void start_once(void) {
    fault = find_fault();
    ERR_clear_error();
}

const char *sluice_wide_gcm_fault(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_once);
    return fault;
}

const char *sluice_wide_gcm(void) { return sluice_wide_gcm_fault() ? NULL : "?" PROPERTY; }

unsigned long sluice_wide_gcm_keys(void) { return atomic_load_explicit(&keys, memory_order_relaxed); }

#else
const char *sluice_wide_gcm_fault(void) { return "the processor does not have the instructions"; }
const char *sluice_wide_gcm(void) { return NULL; }
unsigned long sluice_wide_gcm_keys(void) { return 0; }
#endif
