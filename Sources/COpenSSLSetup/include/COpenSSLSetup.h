#ifndef SLUICE_COPENSSLSETUP_H
#define SLUICE_COPENSSLSETUP_H

// Has no declarations: setup.c runs when the program starts.

#endif
