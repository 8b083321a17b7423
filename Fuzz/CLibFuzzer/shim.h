// libFuzzer's driver. The package manager requires a main function, which calls it.
#ifndef SLUICE_CLIBFUZZER_SHIM_H
#define SLUICE_CLIBFUZZER_SHIM_H
#include <stddef.h>
#include <stdint.h>
int LLVMFuzzerRunDriver(int *count, char ***arguments, int (*target)(const uint8_t *data, size_t size));
#endif
