#include "CBuild.h"

#ifndef SLUICE_BUILD_COMMIT
#define SLUICE_BUILD_COMMIT ""
#endif
#ifndef SLUICE_BUILD_DATE
#define SLUICE_BUILD_DATE ""
#endif

const char *sluice_build_commit(void) { return SLUICE_BUILD_COMMIT; }
const char *sluice_build_date(void) { return SLUICE_BUILD_DATE; }
