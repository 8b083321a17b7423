// Counts the heap allocations of the program that links this. Its malloc replaces the C library's.
#ifndef SLUICE_CALLOCATIONS_H
#define SLUICE_CALLOCATIONS_H
#include <stdint.h>

// The number of allocations so far.
uint64_t sluice_allocations(void);
#endif
