// The collectives of a forward pass, as the models see them: over the ranks of one tensor-parallel
// group, on memory of the backend, in the order of the backend's work. Buffers are sized at start;
// nothing is allocated in a step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/backend.h"

namespace tandem {

class DeviceComm {
 public:
  virtual ~DeviceComm() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // For the passport and the plan: "single", "mpi", "mpi through host memory", "nccl".
  virtual const char* transport() const = 0;
  // Whether the collectives may be recorded into a device graph: they only enqueue work on the
  // backend's stream and need no host when it is replayed.
  virtual bool capturable() const = 0;

  // data: f32[n], in place. Sums over the ranks along the binary tree of determinism.md rule 2:
  // ((r0+r1)+(r2+r3))+((r4+r5)+(r6+r7)), in fp32, the same bits on every rank. A size that is no
  // power of two leaves the missing branches out: (r0+r1)+r2.
  virtual void all_reduce_tree_f32(float* data, std::int64_t n) = 0;
  // recv: size() * bytes_per_rank bytes in rank order; send may be the own slot of recv.
  virtual void all_gather(const void* send, void* recv, std::int64_t bytes_per_rank) = 0;

  // Time that the host was blocked in collectives since construction, for /steps. Collectives that
  // only enqueue work add nothing: their time is the device's.
  virtual double seconds_in_collectives() const = 0;

  // What the library wrote about the connections of this group so far, for transport_audit; empty
  // if it is one that keeps no record.
  virtual std::optional<std::string> connection_log() const { return std::nullopt; }
};

// The group of one rank: sums of one number, copies of one part. Copies go through `backend` if
// there is one (its memory may be out of the host's reach), which must outlive the result.
std::unique_ptr<DeviceComm> make_single_device_comm(Backend* backend = nullptr);

}  // namespace tandem
