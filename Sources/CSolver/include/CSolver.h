// Z3, loaded at run time in a process of its own.
#ifndef SLUICE_CSOLVER_H
#define SLUICE_CSOLVER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Starts a child that loads Z3 and evaluates scripts. Returns its process ID, or -1 with errno; `*socket` is the parent's
// end of the connection. The child has no other file open, may use `memory` bytes and `seconds` of processor time, and is
// killed when the thread that started it ends.
//
// The first message from the child is empty if it has loaded Z3, or else the reason why it could not. Then each message
// is answered by one. A message is its length in 4 bytes, in the order of the processor, and its text.
pid_t sluice_solver_start(int *socket, uint64_t memory, unsigned seconds);

#endif
