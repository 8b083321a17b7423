// libcurl's header, and typed wrappers for its variadic functions, which Swift can't call. libcurl and the twenty libraries
// it brings cost 6 MiB of memory, so it is loaded when it is first needed: each wrapper is given the function to call.
#ifndef SLUICE_CCURL_SHIM_H
#define SLUICE_CCURL_SHIM_H
#include <curl/curl.h>

static inline CURLcode sluice_easy_long(const void *f, CURL *h, CURLoption o, long v) {
    return ((CURLcode (*)(CURL *, CURLoption, ...))f)(h, o, v);
}
static inline CURLcode sluice_easy_offset(const void *f, CURL *h, CURLoption o, curl_off_t v) {
    return ((CURLcode (*)(CURL *, CURLoption, ...))f)(h, o, v);
}
static inline CURLcode sluice_easy_string(const void *f, CURL *h, CURLoption o, const char *v) {
    return ((CURLcode (*)(CURL *, CURLoption, ...))f)(h, o, v);
}
static inline CURLcode sluice_easy_pointer(const void *f, CURL *h, CURLoption o, void *v) {
    return ((CURLcode (*)(CURL *, CURLoption, ...))f)(h, o, v);
}
typedef size_t (*sluice_data_callback)(char *, size_t, size_t, void *);
static inline CURLcode sluice_easy_data(const void *f, CURL *h, CURLoption o, sluice_data_callback c) {
    return ((CURLcode (*)(CURL *, CURLoption, ...))f)(h, o, c);
}
typedef int (*sluice_prereq_callback)(void *, char *, char *, int, int);
static inline CURLcode sluice_easy_prereq(const void *f, CURL *h, sluice_prereq_callback c) {
    return ((CURLcode (*)(CURL *, CURLoption, ...))f)(h, CURLOPT_PREREQFUNCTION, c);
}
static inline CURLcode sluice_easy_get_long(const void *f, CURL *h, CURLINFO i, long *v) {
    return ((CURLcode (*)(CURL *, CURLINFO, ...))f)(h, i, v);
}
static inline CURLcode sluice_easy_get_offset(const void *f, CURL *h, CURLINFO i, curl_off_t *v) {
    return ((CURLcode (*)(CURL *, CURLINFO, ...))f)(h, i, v);
}
static inline CURLMcode sluice_multi_long(const void *f, CURLM *m, CURLMoption o, long v) {
    return ((CURLMcode (*)(CURLM *, CURLMoption, ...))f)(m, o, v);
}
static inline CURLMcode sluice_multi_pointer(const void *f, CURLM *m, CURLMoption o, void *v) {
    return ((CURLMcode (*)(CURLM *, CURLMoption, ...))f)(m, o, v);
}
typedef int (*sluice_socket_callback)(CURL *, curl_socket_t, int, void *, void *);
static inline CURLMcode sluice_multi_socket(const void *f, CURLM *m, sluice_socket_callback c) {
    return ((CURLMcode (*)(CURLM *, CURLMoption, ...))f)(m, CURLMOPT_SOCKETFUNCTION, c);
}
typedef int (*sluice_timer_callback)(CURLM *, long, void *);
static inline CURLMcode sluice_multi_timer(const void *f, CURLM *m, sluice_timer_callback c) {
    return ((CURLMcode (*)(CURLM *, CURLMoption, ...))f)(m, CURLMOPT_TIMERFUNCTION, c);
}
#endif
