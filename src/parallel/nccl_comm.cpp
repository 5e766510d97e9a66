#include "parallel/nccl_comm.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/elementwise.h"
#include "parallel/host_info.h"

namespace tandem {
namespace {

// Floats of one piece of a sum over more than two ranks; every rank's piece is gathered.
constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

void check_nccl(ncclResult_t result, const char* expression, ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* last = ncclGetLastError(comm);
  throw Error(ExitCode::kRankFailure,
              {.what = fmt::format("{} failed: {}{}{}", expression, ncclGetErrorString(result),
                                   last != nullptr && *last != 0 ? "; NCCL says: " : "",
                                   last != nullptr ? last : ""),
               .where = "NCCL",
               .expected = "",
               .remedy = "set NCCL_DEBUG=INFO for NCCL's own account; see `transport` in the log"});
}
#define TANDEM_CHECK_NCCL(expression, comm) check_nccl(expression, #expression, comm)

struct GpuIdentity {
  char host[64] = {};
  char uuid[16] = {};
  bool operator==(const GpuIdentity& o) const { return std::memcmp(this, &o, sizeof *this) == 0; }
};

GpuIdentity gpu_identity() {
  GpuIdentity id;
  const std::string host = host_id();
  std::copy_n(host.begin(), std::min(host.size(), sizeof id.host - 1), id.host);
  int device = 0;
  cudaDeviceProp properties{};
  TANDEM_CHECK(cudaGetDevice(&device) == cudaSuccess &&
               cudaGetDeviceProperties(&properties, device) == cudaSuccess);
  std::memcpy(id.uuid, properties.uuid.bytes, sizeof id.uuid);
  return id;
}

void refuse_shared_gpu(const HostComm& group) {
  const auto all = group.all_gather(gpu_identity());
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      if (!(all[a] == all[b])) continue;
      throw Error(
          ExitCode::kConfiguration,
          {.what = fmt::format("ranks {} and {} of a tensor-parallel group use the same GPU", a, b),
           .where = host_name(),
           .expected = "one rank a GPU",
           .remedy = "start as many ranks on each host as it has GPUs; on two boxes with one "
                     "GPU each the hostfile needs slots=1"},
          ErrorScope::kAllRanks);
    }
  }
}

ncclUniqueId share_unique_id(const HostComm& group) {
  ncclUniqueId id{};
  group.together([&] {
    if (group.rank() == 0) TANDEM_CHECK_NCCL(ncclGetUniqueId(&id), nullptr);
  });
  group.bcast(id);
  const auto sums = group.all_gather(xxh3_64(&id, sizeof id));
  TANDEM_CHECK(std::all_of(sums.begin(), sums.end(), [&](auto s) { return s == sums[0]; }),
               "the NCCL id arrived damaged");
  return id;
}

class NcclDeviceComm final : public DeviceComm {
 public:
  NcclDeviceComm(const HostComm& group, cuda::CudaBackend& backend, StepBeacon* beacon)
      : rank_(group.rank()), size_(group.size()), backend_(backend), beacon_(beacon) {
    refuse_shared_gpu(group);
    const ncclUniqueId id = share_unique_id(group);
    group.together([&] { TANDEM_CHECK_NCCL(ncclCommInitRank(&comm_, size_, id, rank_), nullptr); });
    if (size_ > 2)
      pieces_ = static_cast<float*>(backend_.allocate(pieces_bytes(), MemoryKind::kDevice));
  }
  ~NcclDeviceComm() override {
    if (pieces_ != nullptr) backend_.deallocate(pieces_, pieces_bytes(), MemoryKind::kDevice);
    if (comm_ != nullptr && ncclCommDestroy(comm_) != ncclSuccess) {
      log_warning("ncclCommDestroy failed: {}", ncclGetLastError(comm_));
    }
  }
  NcclDeviceComm(const NcclDeviceComm&) = delete;
  NcclDeviceComm& operator=(const NcclDeviceComm&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* transport() const override { return "nccl"; }
  bool capturable() const override { return true; }

  void all_reduce_tree_f32(float* data, std::int64_t n) override {
    const BeaconScope scope(beacon_, "all-reduce", WaitsForPeers::kYes);
    const double begin_s = monotonic_s();
    if (size_ == 2) {
      // a + b == b + a, whatever algorithm NCCL picks: with two ranks any sum is the tree's.
      TANDEM_CHECK_NCCL(ncclAllReduce(data, data, static_cast<std::size_t>(n), ncclFloat32, ncclSum,
                                      comm_, backend_.stream()),
                        comm_);
    } else {
      for (std::int64_t at = 0; at < n; at += kPieceElements) {
        sum_piece(data + at, std::min(kPieceElements, n - at));
      }
    }
    seconds_ += monotonic_s() - begin_s;
    check_async();
  }

  void all_gather(const void* send, void* recv, std::int64_t bytes_per_rank) override {
    const BeaconScope scope(beacon_, "all-gather", WaitsForPeers::kYes);
    const double begin_s = monotonic_s();
    gather(send, recv, bytes_per_rank);
    seconds_ += monotonic_s() - begin_s;
    check_async();
  }

  double seconds_in_collectives() const override { return seconds_; }

 private:
  std::size_t pieces_bytes() const {
    return static_cast<std::size_t>(size_ * kPieceElements) * sizeof(float);
  }
  void gather(const void* send, void* recv, std::int64_t bytes_per_rank) {
    TANDEM_CHECK_NCCL(ncclAllGather(send, recv, static_cast<std::size_t>(bytes_per_rank), ncclUint8,
                                    comm_, backend_.stream()),
                      comm_);
  }
  // A ring's order will not do for more than two ranks: every rank adds all parts along the tree.
  void sum_piece(float* data, std::int64_t n) {
    gather(data, pieces_, n * static_cast<std::int64_t>(sizeof(float)));
    for (int stride = 1; stride < size_; stride *= 2) {
      for (int i = 0; i + stride < size_; i += 2 * stride) {
        ops::add(backend_, {.x = pieces_ + (i + stride) * n, .count = n, .y = pieces_ + i * n});
      }
    }
    backend_.copy(data, pieces_, static_cast<std::size_t>(n) * sizeof(float));
  }
  void check_async() {
    ncclResult_t state = ncclSuccess;
    TANDEM_CHECK_NCCL(ncclCommGetAsyncError(comm_, &state), comm_);
    TANDEM_CHECK_NCCL(state, comm_);
  }

  int rank_;
  int size_;
  cuda::CudaBackend& backend_;
  StepBeacon* beacon_;
  ncclComm_t comm_ = nullptr;
  float* pieces_ = nullptr;  // [size, kPieceElements], more than two ranks only
  double seconds_ = 0;       // of the host: the device's share is in the step's device time
};

}  // namespace

std::unique_ptr<DeviceComm> make_nccl_device_comm(const HostComm& group, Backend& backend,
                                                  StepBeacon* beacon) {
  if (group.size() == 1) return make_single_device_comm(&backend);
  TANDEM_CHECK(backend.kind() == BackendKind::kCuda);
  return std::make_unique<NcclDeviceComm>(group, static_cast<cuda::CudaBackend&>(backend), beacon);
}

std::string nccl_version_text() {
  int version = 0;
  TANDEM_CHECK_NCCL(ncclGetVersion(&version), nullptr);
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace tandem
