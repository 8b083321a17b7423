// libcurl's header, and typed wrappers for its variadic functions, which Swift can't call.
#ifndef SLUICE_CCURL_SHIM_H
#define SLUICE_CCURL_SHIM_H
#include <curl/curl.h>

static inline CURLcode sluice_easy_long(CURL *h, CURLoption o, long v) {
    return curl_easy_setopt(h, o, v);
}
static inline CURLcode sluice_easy_offset(CURL *h, CURLoption o, curl_off_t v) {
    return curl_easy_setopt(h, o, v);
}
static inline CURLcode sluice_easy_string(CURL *h, CURLoption o, const char *v) {
    return curl_easy_setopt(h, o, v);
}
static inline CURLcode sluice_easy_pointer(CURL *h, CURLoption o, void *v) {
    return curl_easy_setopt(h, o, v);
}
typedef size_t (*sluice_data_callback)(char *, size_t, size_t, void *);
static inline CURLcode sluice_easy_data(CURL *h, CURLoption o, sluice_data_callback f) {
    return curl_easy_setopt(h, o, f);
}
typedef int (*sluice_seek_callback)(void *, curl_off_t, int);
static inline CURLcode sluice_easy_seek(CURL *h, sluice_seek_callback f) {
    return curl_easy_setopt(h, CURLOPT_SEEKFUNCTION, f);
}
static inline CURLcode sluice_easy_get_long(CURL *h, CURLINFO i, long *v) {
    return curl_easy_getinfo(h, i, v);
}
static inline CURLcode sluice_easy_get_offset(CURL *h, CURLINFO i, curl_off_t *v) {
    return curl_easy_getinfo(h, i, v);
}
static inline CURLcode sluice_easy_get_pointer(CURL *h, CURLINFO i, void **v) {
    return curl_easy_getinfo(h, i, v);
}
static inline CURLMcode sluice_multi_long(CURLM *m, CURLMoption o, long v) {
    return curl_multi_setopt(m, o, v);
}
static inline CURLMcode sluice_multi_pointer(CURLM *m, CURLMoption o, void *v) {
    return curl_multi_setopt(m, o, v);
}
typedef int (*sluice_socket_callback)(CURL *, curl_socket_t, int, void *, void *);
static inline CURLMcode sluice_multi_socket(CURLM *m, sluice_socket_callback f) {
    return curl_multi_setopt(m, CURLMOPT_SOCKETFUNCTION, f);
}
typedef int (*sluice_timer_callback)(CURLM *, long, void *);
static inline CURLMcode sluice_multi_timer(CURLM *m, sluice_timer_callback f) {
    return curl_multi_setopt(m, CURLMOPT_TIMERFUNCTION, f);
}
#endif
