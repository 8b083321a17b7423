// Counts the heap allocations of the program that links this: its malloc stands before the C library's.
#ifndef SLUICE_CALLOCATIONS_H
#define SLUICE_CALLOCATIONS_H
#include <stdint.h>

// How many there have been so far.
uint64_t sluice_allocations(void);
#endif
