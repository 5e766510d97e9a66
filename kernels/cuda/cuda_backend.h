// One GPU as a Backend: its stream, its memory, its identity and the limits that plans are made
// from. Operators are in cuda/<op>.cu. Holds no CUDA headers, so that ops/dispatch.h can include
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace tandem::cuda {

class Event;
class Graph;
class LinearChain;
class Stream;

// What a plan may depend on. Never the order of a sum, only how work is spread, but for the last.
struct DeviceLimits {
  int num_processors = 0;                  // streaming multiprocessors
  std::size_t shared_bytes_per_block = 0;  // after opting in
  int compute_major = 0, compute_minor = 0;
  // Matrix products of four warps (wgmma), which only Hopper has, and code that uses them. The one
  // member that decides an order of summation: that of prompt rows, which a GPU of another kind
  // need not share.
  bool warpgroup_products = false;
};

// Counters in device memory, for kernels whose blocks have to know which is the last to finish.
// They are 0 between kernels: whoever counts leaves them so.
inline constexpr int kNumArrivals = 1 << 15;

// Words of device memory for two gates (device/grid_gate.cuh), far apart.
inline constexpr int kGateWords = 64;

class CudaBackend final : public Backend {
 public:
  // Throws Error{kConfiguration} if the device does not exist or this binary holds no code for it.
  explicit CudaBackend(const BackendOptions& options);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  BackendKind kind() const override { return BackendKind::kCuda; }
  // "cuda NVIDIA H200, sm_90 (compiled for sm_90a compute_90), driver 13.0, runtime 13.0, ..."
  std::string description() const override { return description_; }
  int num_threads() const override { return num_threads_; }

  using Backend::allocate;
  using Backend::deallocate;
  void* allocate(std::size_t bytes, MemoryKind kind) override;
  void deallocate(void* data, std::size_t bytes, MemoryKind kind) noexcept override;

  void copy(void* destination, const void* source, std::size_t bytes) override;
  void zero(void* destination, std::size_t bytes) override;
  void synchronize() override;
  std::optional<std::int64_t> free_bytes() const override;
  bool can_record() const override { return true; }
  std::unique_ptr<RecordedWork> record(const std::function<void()>& work) override;
  void mark(int i) override;
  double seconds_between(int begin, int end) override;
  void wait_for_mark(int i) override;

  // Launches what has been put off first: what is enqueued on the stream comes behind it.
  CUstream_st* stream() const;
  // What `work` enqueues, as a graph.
  Graph capture(const std::function<void()>& work) const;
  LinearChain& chain() { return *chain_; }
  const DeviceLimits& limits() const { return limits_; }
  unsigned* arrivals() const { return arrivals_; }  // [kNumArrivals]
  std::uint32_t* gates() const { return gates_; }   // [kGateWords]

 private:
  int num_threads_ = 1;
  DeviceMemory device_memory_ = DeviceMemory::kDevice;
  DeviceLimits limits_;
  std::string description_;
  std::unique_ptr<Stream> stream_;
  std::vector<Event> marks_;  // [kNumMarks]
  unsigned* arrivals_ = nullptr;
  std::uint32_t* gates_ = nullptr;
  std::unique_ptr<LinearChain> chain_;
};

bool device_present();
std::vector<VisibleGpu> visible_gpus();

}  // namespace tandem::cuda
