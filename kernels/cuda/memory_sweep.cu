// Sweeps over device memory, to find its bandwidth. A device reads at its full rate when enough
// bytes are under way, bandwidth times latency: for 4.8 TB/s and 0.7 us about 26 KB on each of 132
// processors. Each thread therefore has several 16-byte requests in flight before it uses the
// first; how many are best, and whether a block should stay or end after one tile, is measured.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kUnitWords = ops::kSweepUnitBytes / 4;
static_assert(sizeof(uint4) == ops::kSweepUnitBytes);

__device__ __forceinline__ uint4 operator+(const uint4& a, const uint4& b) {
  return make_uint4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Whole arrays, so that nothing read or written is worth keeping in a cache (ld.cs, st.cs).
struct Sum {
  const uint4* x;
  std::uint32_t* total;
  std::uint32_t part = 0;

  __device__ uint4 load(std::int64_t i) const { return __ldcs(x + i); }
  __device__ void use(std::int64_t, const uint4& v) { part += v.x + v.y + v.z + v.w; }
  // One atomic a block: thousands on one address would be what is measured.
  __device__ void finish() {
    __shared__ std::uint32_t of_block;
    if (threadIdx.x == 0) of_block = 0;
    __syncthreads();
    const std::uint32_t of_warp = __reduce_add_sync(kAllLanes, part);
    if (threadIdx.x % kWarp == 0) atomicAdd(&of_block, of_warp);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(total, of_block);
  }
};

struct Copy {
  const uint4* x;
  uint4* y;

  __device__ uint4 load(std::int64_t i) const { return __ldcs(x + i); }
  __device__ void use(std::int64_t i, const uint4& v) { __stcs(y + i, v); }
  __device__ void finish() {}
};

struct Add {
  const uint4* x;
  const uint4* z;
  uint4* y;

  __device__ uint4 load(std::int64_t i) const { return __ldcs(x + i) + __ldcs(z + i); }
  __device__ void use(std::int64_t i, const uint4& v) { __stcs(y + i, v); }
  __device__ void finish() {}
};

// Tiles of kThreads * kInFlight units, neighbouring threads on neighbouring units; a block takes
// every gridDim.x-th tile. The units behind the last whole tile are spread over all threads.
template <class Sweep, int kInFlight>
__global__ void __launch_bounds__(kThreads) sweep_kernel(Sweep sweep, std::int64_t units) {
  constexpr std::int64_t kTile = std::int64_t{kThreads} * kInFlight;
  const std::int64_t tiles = units / kTile;
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t first = tile * kTile + threadIdx.x;
    uint4 held[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) held[i] = sweep.load(first + std::int64_t{i} * kThreads);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) sweep.use(first + std::int64_t{i} * kThreads, held[i]);
  }
  const std::int64_t all_threads = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = tiles * kTile + std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
       i < units; i += all_threads) {
    sweep.use(i, sweep.load(i));
  }
  sweep.finish();
}

__global__ void __launch_bounds__(kThreads) fill_kernel(std::uint32_t* y, std::int64_t words) {
  const std::int64_t all_threads = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words;
       i += all_threads) {
    y[i] = ops::sweep_word(i);
  }
}

enum class Blocks { kStay, kOneTile };

template <int kInFlight, Blocks kBlocks, class Sweep>
void run(const CudaBackend& backend, const Sweep& sweep, std::int64_t units) {
  const auto kernel = sweep_kernel<Sweep, kInFlight>;
  const std::int64_t tiles = std::max<std::int64_t>(1, units / (kThreads * kInFlight));
  std::int64_t blocks = tiles;
  if constexpr (kBlocks == Blocks::kStay) {
    int per_processor = 0;
    TANDEM_CHECK_CUDA(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, kThreads, 0));
    blocks = std::min(tiles, std::int64_t{per_processor} * backend.limits().num_processors);
  }
  launch(backend, kernel, static_cast<unsigned>(blocks), kThreads, 0, sweep, units);
}

template <class Sweep>
void run_way(const CudaBackend& backend, int way, const Sweep& sweep, std::int64_t words) {
  const std::int64_t units = words / kUnitWords;
  if (units == 0) return;
  switch (way) {
    case 0:
      return run<4, Blocks::kStay>(backend, sweep, units);
    case 1:
      return run<8, Blocks::kStay>(backend, sweep, units);
    case 2:
      return run<4, Blocks::kOneTile>(backend, sweep, units);
    default:
      return run<8, Blocks::kOneTile>(backend, sweep, units);
  }
}
static_assert(kSweepWays == 4, "run_way() has a case for each");

const uint4* units_of(const std::uint32_t* words) { return reinterpret_cast<const uint4*>(words); }
uint4* units_of(std::uint32_t* words) { return reinterpret_cast<uint4*>(words); }

}  // namespace

void sweep_fill(CudaBackend& backend, std::uint32_t* y, std::int64_t words) {
  if (words == 0) return;
  const auto blocks = std::min<std::int64_t>(divide_up(words, kThreads),
                                             std::int64_t{16} * backend.limits().num_processors);
  launch(backend, fill_kernel, static_cast<unsigned>(blocks), kThreads, 0, y, words);
}

void sweep_sum(CudaBackend& backend, const ops::SweepArgs& args) {
  run_way(backend, args.way, Sum{.x = units_of(args.x), .total = args.y}, args.words);
}

void sweep_copy(CudaBackend& backend, const ops::SweepArgs& args) {
  run_way(backend, args.way, Copy{.x = units_of(args.x), .y = units_of(args.y)}, args.words);
}

void sweep_add(CudaBackend& backend, const ops::SweepArgs& args) {
  run_way(backend, args.way,
          Add{.x = units_of(args.x), .z = units_of(args.z), .y = units_of(args.y)}, args.words);
}

}  // namespace tandem::cuda
