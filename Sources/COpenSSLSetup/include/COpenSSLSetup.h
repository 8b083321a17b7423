#ifndef SLUICE_COPENSSLSETUP_H
#define SLUICE_COPENSSLSETUP_H

// Nothing to call: setup.c runs when the program starts.

#endif
