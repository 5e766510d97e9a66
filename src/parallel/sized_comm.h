// DeviceComm made of two: one for small sums, one for everything else. The seat of an exchange that
// is made for small messages, such as one shot through page-locked memory.
#pragma once

#include <cstdint>
#include <memory>

#include "parallel/device_comm.h"

namespace tandem {

// Sums of at most `small_bytes` go to `small`; the rest, and all gathers, to `large`. Both must be
// of the same group and add along the tree of DeviceComm, so that which of them takes a sum shows
// in no bit: the size of a sum depends on the batch. The limit is fixed for the life of the result.
std::unique_ptr<DeviceComm> make_sized_comm(std::unique_ptr<DeviceComm> small,
                                            std::unique_ptr<DeviceComm> large,
                                            std::int64_t small_bytes);

}  // namespace tandem
