// Test programs that run under mpirun: all ranks run the same tests in the same order, and all
// fail when one does.
#pragma once

#include "parallel/host_comm.h"

namespace tandem::testing {

// The world communicator of the test program.
const HostComm& world();

}  // namespace tandem::testing
