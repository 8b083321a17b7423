// expat's public header imports as it is.
#ifndef SLUICE_CEXPAT_SHIM_H
#define SLUICE_CEXPAT_SHIM_H
#include <expat.h>
#endif
