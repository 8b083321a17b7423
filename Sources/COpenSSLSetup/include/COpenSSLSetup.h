#ifndef SLUICE_COPENSSLSETUP_H
#define SLUICE_COPENSSLSETUP_H

// setup.c runs when the program starts.

// The property query with which contexts of TLS find the ciphers of wideGCM.c, or null if they are not used: the
// processor lacks the instructions, OpenSSL has them itself, or the library is not installed or fails its test. Any
// thread may call it. The first call takes about a millisecond.
const char *sluice_wide_gcm(void);

// Why they are not used; null if they are.
const char *sluice_wide_gcm_fault(void);

// How many keys were made with them: two for each connection.
unsigned long sluice_wide_gcm_keys(void);

#endif
