#include "kernels/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/linear_chain.h"
#include "kernels/cuda/targets.h"

namespace tandem::cuda {
namespace {

int num_devices() {
  int count = 0;
  // No driver and no device are both "none"; the error must not stay behind for the next launch.
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  TANDEM_CHECK_CUDA(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

std::string_view memory_name(DeviceMemory memory) {
  switch (memory) {
    case DeviceMemory::kManaged:
      return "managed memory";
    case DeviceMemory::kPinned:
      return "page-locked host memory";
    default:
      return "device memory";
  }
}

void check_target(const BackendOptions& options, const std::string& name, int major, int minor) {
  const std::string targets = describe_targets(compiled_targets());
  const std::string what =
      fmt::format("{} (compute capability {}.{}) is none of this binary's targets {}", name, major,
                  minor, targets);
  const TargetMatch match = match_target(compiled_targets(), major, minor);
  if (match == TargetMatch::kNative) return;
  if (match == TargetMatch::kPtxOnly && options.foreign_gpu == ForeignGpu::kCompileAtStart) {
    log_warning("{}: the driver compiles portable code, without this chip's own instructions",
                what);
    return;
  }
  throw Error(ExitCode::kConfiguration,
              {.what = what,
               .where = "cuda backend",
               .expected = "machine code for this GPU",
               .remedy = "build with CMAKE_CUDA_ARCHITECTURES for it, or choose backend: cpu"});
}

constexpr std::size_t kArrivalBytes = kNumArrivals * sizeof(unsigned);
constexpr std::size_t kGateBytes = kGateWords * sizeof(std::uint32_t);

}  // namespace

bool device_present() { return num_devices() > 0; }

std::vector<VisibleGpu> visible_gpus() {
  std::vector<VisibleGpu> gpus;
  for (int device = 0; device < num_devices(); ++device) {
    cudaDeviceProp properties{};
    TANDEM_CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
    std::string id = "GPU";  // as nvidia-smi -L writes it
    for (int i = 0; i < 16; ++i) {
      if (i == 0 || (i >= 4 && i <= 10 && i % 2 == 0)) id += '-';
      id += fmt::format("{:02x}", static_cast<unsigned char>(properties.uuid.bytes[i]));
    }
    gpus.push_back({.id = std::move(id), .name = properties.name});
  }
  return gpus;
}

CudaBackend::CudaBackend(const BackendOptions& options)
    : num_threads_(options.num_threads > 0
                       ? options.num_threads
                       : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))),
      // cudaMalloc is the fastest kind on discrete and on integrated GPUs, cannot be swapped, and
      // fails at once instead of later.
      device_memory_(options.device_memory == DeviceMemory::kAuto ? DeviceMemory::kDevice
                                                                  : options.device_memory) {
  const int count = num_devices();
  if (options.device < 0 || options.device >= count) {
    throw Error(ExitCode::kConfiguration,
                {.what = fmt::format("CUDA device {} of {}", options.device, count),
                 .where = "cuda backend",
                 .expected = "a visible GPU and a driver",
                 .remedy = "check nvidia-smi and CUDA_VISIBLE_DEVICES, or choose backend: cpu"});
  }
  TANDEM_CHECK_CUDA(cudaSetDevice(options.device));
  cudaDeviceProp properties{};
  TANDEM_CHECK_CUDA(cudaGetDeviceProperties(&properties, options.device));
  check_target(options, properties.name, properties.major, properties.minor);
  limits_ = {.num_processors = properties.multiProcessorCount,
             .shared_bytes_per_block = properties.sharedMemPerBlockOptin,
             .compute_major = properties.major,
             .compute_minor = properties.minor,
             .warpgroup_products = properties.major == 9 && properties.minor == 0 &&
                                   has_own_instructions(compiled_targets(), 9, 0)};
  int driver = 0, runtime = 0;
  TANDEM_CHECK_CUDA(cudaDriverGetVersion(&driver));
  TANDEM_CHECK_CUDA(cudaRuntimeGetVersion(&runtime));
  description_ = fmt::format(
      "cuda {}, sm_{}{} (compiled for {}), driver {}, runtime {}, {}{}", properties.name,
      properties.major, properties.minor, describe_targets(compiled_targets()),
      version_text(driver), version_text(runtime), memory_name(device_memory_),
      attribute(cudaDevAttrIntegrated, options.device) != 0 ? ", integrated" : "");
  stream_ = std::make_unique<Stream>();
  marks_ = std::vector<Event>(kNumMarks);
  chain_ = std::make_unique<LinearChain>(*this, options.join_operators);
  arrivals_ = static_cast<unsigned*>(allocate(kArrivalBytes, MemoryKind::kDevice));
  gates_ = static_cast<std::uint32_t*>(allocate(kGateBytes, MemoryKind::kDevice));
  zero(arrivals_, kArrivalBytes);
  zero(gates_, kGateBytes);
}

CudaBackend::~CudaBackend() {
  chain_->discard();
  deallocate(gates_, kGateBytes, MemoryKind::kDevice);
  deallocate(arrivals_, kArrivalBytes, MemoryKind::kDevice);
}

void* CudaBackend::allocate(std::size_t bytes, MemoryKind kind) {
  const std::size_t length = std::max<std::size_t>(bytes, 1);
  const bool pinned = kind == MemoryKind::kHostVisible || device_memory_ == DeviceMemory::kPinned;
  void* data = nullptr;
  cudaError_t error = cudaSuccess;
  if (pinned) {
    error = cudaHostAlloc(&data, length, cudaHostAllocMapped | cudaHostAllocPortable);
  } else if (device_memory_ == DeviceMemory::kManaged) {
    error = cudaMallocManaged(&data, length);
  } else {
    error = cudaMalloc(&data, length);
  }
  // Managed pages exist once they have been written; the GPU is to write them first.
  if (error == cudaSuccess && !pinned && device_memory_ == DeviceMemory::kManaged) {
    zero(data, length);
    synchronize();
  }
  if (error == cudaSuccess) return data;
  cudaGetLastError();
  throw Error(ExitCode::kDoesNotFit,
              {.what = fmt::format(
                   "the driver gave no {} of {}: {}",
                   format_bytes(static_cast<std::int64_t>(std::min(length, std::size_t{1} << 62))),
                   pinned ? "page-locked host memory" : memory_name(device_memory_),
                   cudaGetErrorString(error)),
               .where = "cuda backend",
               .remedy = "lower memory.kv_bytes or scheduler.max_sequences, or free memory"});
}

void CudaBackend::deallocate(void* data, std::size_t, MemoryKind kind) noexcept {
  if (data == nullptr) return;
  // Work that still uses the block has been enqueued, perhaps, but not run.
  try {
    chain_->launch();
  } catch (const std::exception& e) {
    log_error("launching work before memory is freed: {}", e.what());
  }
  log_cuda_failure(cudaStreamSynchronize(stream_->get()), "waiting before memory is freed");
  const bool pinned = kind == MemoryKind::kHostVisible || device_memory_ == DeviceMemory::kPinned;
  log_cuda_failure(pinned ? cudaFreeHost(data) : cudaFree(data), "freeing memory");
}

void CudaBackend::copy(void* destination, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  TANDEM_CHECK_CUDA(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream()));
}

void CudaBackend::zero(void* destination, std::size_t bytes) {
  if (bytes == 0) return;
  TANDEM_CHECK_CUDA(cudaMemsetAsync(destination, 0, bytes, stream()));
}

void CudaBackend::synchronize() {
  chain_->launch();
  stream_->synchronize();
}

std::optional<std::int64_t> CudaBackend::free_bytes() const {
  std::size_t free = 0, total = 0;
  TANDEM_CHECK_CUDA(cudaMemGetInfo(&free, &total));
  return static_cast<std::int64_t>(free);
}

namespace {

class RecordedGraph final : public RecordedWork {
 public:
  RecordedGraph(const CudaBackend& backend, const std::function<void()>& work)
      : backend_(backend), graph_(backend.capture(work)) {}
  void replay() override { graph_.launch(backend_.stream()); }

 private:
  const CudaBackend& backend_;
  Graph graph_;
};

}  // namespace

std::unique_ptr<RecordedWork> CudaBackend::record(const std::function<void()>& work) {
  return std::make_unique<RecordedGraph>(*this, work);
}

void CudaBackend::mark(int i) { marks_.at(static_cast<std::size_t>(i)).record(stream()); }

double CudaBackend::seconds_between(int begin, int end) {
  return marks_.at(static_cast<std::size_t>(end))
      .seconds_since(marks_.at(static_cast<std::size_t>(begin)));
}

void CudaBackend::wait_for_mark(int i) { marks_.at(static_cast<std::size_t>(i)).wait(); }

CUstream_st* CudaBackend::stream() const {
  chain_->launch();
  return stream_->get();
}

Graph CudaBackend::capture(const std::function<void()>& work) const {
  try {
    return Graph::capture(stream(), [&] {
      work();
      chain_->launch();
    });
  } catch (...) {
    chain_->discard();
    throw;
  }
}

}  // namespace tandem::cuda
