#ifndef SLUICE_CBUILD_H
#define SLUICE_CBUILD_H

// What the program was built from: Package.swift defines it from the environment of the build. Empty if that did not
// say. Only this target is compiled again when it changes.
const char *sluice_build_commit(void);
const char *sluice_build_date(void);

#endif
