// One compute device as the rest of the program sees it: memory, ordering, identity. Operators
// (kernels/ops/*.h) take a Backend as their first argument and run in its order: an operator sees
// the results of everything enqueued before it. The CPU backend runs at once; a device backend
// enqueues on its stream, so nothing may be read on the host before synchronize().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tandem {

enum class BackendKind { kCpu, kCuda };

// Who reads and writes an allocation.
enum class MemoryKind {
  kDevice,       // operators only; the host reaches it through Backend::copy()
  kHostVisible,  // both: tables that the host fills and small results that it reads, between steps
};

// What MemoryKind::kDevice is made of on a GPU.
enum class DeviceMemory {
  kAuto,     // kDevice
  kDevice,   // cudaMalloc
  kManaged,  // cudaMallocManaged
  kPinned,   // page-locked host memory, which the GPU reads in place
};

// A GPU for which this binary holds no machine code.
enum class ForeignGpu {
  kRefuse,
  kCompileAtStart,  // the driver compiles the embedded PTX; takes minutes, lacks native
                    // instructions
};

struct BackendOptions {
  int num_threads = 0;  // CPU worker threads of this rank; 0: OMP_NUM_THREADS or the cores allowed
  // CUDA only.
  int device = 0;  // ordinal among the visible GPUs
  DeviceMemory device_memory = DeviceMemory::kAuto;
  ForeignGpu foreign_gpu = ForeignGpu::kRefuse;
  // Operators of few rows wait for the next ones, to be launched as one kernel; to the bit the
  // same. Not where another process may run kernels on the GPU meanwhile (MPS): such a kernel's
  // blocks wait for one another, and all of them have to be there.
  bool join_operators = true;
};

// Work that was enqueued once and can be enqueued again as a whole.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void replay() = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual BackendKind kind() const = 0;
  // For the passport: "cpu AVX3_ZEN4 (runtime dispatch), 8 threads".
  virtual std::string description() const = 0;
  virtual int num_threads() const = 0;

  // `bytes` of device-visible memory, 256-byte aligned, not initialised, every page present (so
  // that running out of memory shows now and not in the middle of the night). Throws
  // Error{kDoesNotFit}. Only for start-up: nothing allocates inside a step. On a CPU the kinds are
  // the same memory.
  virtual void* allocate(std::size_t bytes, MemoryKind kind) = 0;
  virtual void deallocate(void* data, std::size_t bytes, MemoryKind kind) noexcept = 0;
  void* allocate(std::size_t bytes) { return allocate(bytes, MemoryKind::kDevice); }
  void deallocate(void* data, std::size_t bytes) noexcept {
    deallocate(data, bytes, MemoryKind::kDevice);
  }

  // Between memory of any kind, also the host's own.
  virtual void copy(void* destination, const void* source, std::size_t bytes) = 0;
  virtual void zero(void* destination, std::size_t bytes) = 0;
  virtual void synchronize() = 0;

  // Of the device's memory, what nobody holds; nothing where the host's own figures say it.
  virtual std::optional<std::int64_t> free_bytes() const { return std::nullopt; }

  // Records what `work` enqueues instead of running it: operators and copies of device memory, with
  // these pointers and sizes, so that what changes between replays lies in memory. The operators
  // must have run before. Only where can_record(); a CPU would gain nothing by it.
  virtual bool can_record() const { return false; }
  virtual std::unique_ptr<RecordedWork> record(const std::function<void()>&) { return nullptr; }

  // Time stamps within the order of the work, kNumMarks of them to be used again and again; the
  // second of two must have been reached (synchronize()) before their distance is asked for.
  static constexpr int kNumMarks = 32;
  virtual void mark(int i) = 0;
  virtual double seconds_between(int begin, int end) = 0;
  // Returns when the mark has been reached; what was enqueued behind it may still run.
  virtual void wait_for_mark(int i) = 0;
};

// Throws Error{kConfiguration} for a backend that is not compiled in or finds no device.
std::unique_ptr<Backend> make_backend(BackendKind kind, const BackendOptions& options);
// The default: CUDA where it is compiled in and a device is there, otherwise CPU.
BackendKind default_backend();

struct VisibleGpu {
  std::string id;    // "GPU-8a2b...": one a device, whatever process or container looks at it
  std::string name;  // "NVIDIA H200"
};
// The GPUs that this process may use, by ordinal; none without CUDA or a driver.
std::vector<VisibleGpu> visible_gpus();

}  // namespace tandem
