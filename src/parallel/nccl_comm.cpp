#include "parallel/nccl_comm.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/elementwise.h"
#include "parallel/host_info.h"
#include "parallel/nccl_log.h"
#include "parallel/nccl_log_capture.h"
#include "parallel/nccl_paths.h"

namespace tandem {
namespace {

// Floats of one piece of a sum over more than two ranks; every rank's piece is gathered.
constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

ErrorText nccl_error(ncclResult_t result, const char* what, ncclComm_t comm) {
  const char* last = ncclGetLastError(comm);
  return {.what = fmt::format("{} failed: {}{}{}", what, ncclGetErrorString(result),
                              last != nullptr && *last != 0 ? "; NCCL says: " : "",
                              last != nullptr ? last : ""),
          .where = "NCCL",
          .expected = "",
          .remedy = "set NCCL_DEBUG=INFO for NCCL's own account; see `transport` in the log"};
}

void check_nccl(ncclResult_t result, const char* expression, ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw Error(ExitCode::kRankFailure, nccl_error(result, expression, comm));
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

// NCCL reads its log settings once a process, so there is one capture a process. It outlives every
// communicator, and is never destroyed: NCCL's own threads write to it until the process ends.
NcclLogCapture& nccl_log() {
  static auto* capture = new NcclLogCapture;
  return *capture;
}

// Sums of all sizes over connections that exist before the first step: otherwise NCCL connects, and
// allocates, when an algorithm is first needed. What the user says counts.
void connect_at_start() { setenv("NCCL_RUNTIME_CONNECT", "0", 0); }

class NcclDeviceComm final : public DeviceComm {
 public:
  NcclDeviceComm(const HostComm& group, cuda::CudaBackend& backend, StepBeacon* beacon,
                 const FailureHandler& on_failure, double connect_limit_s)
      : rank_(group.rank()), size_(group.size()), backend_(backend), beacon_(beacon) {
    refuse_shared_gpu(group);
    for (const UnequalPath& path : agree_on_nccl_paths(group)) {
      if (rank_ == 0) log_warning("{}; NCCL needs it alike: it counts on all ranks", path.text());
    }
    connect_at_start();
    log_begin_ = nccl_log().size();
    connect(group, on_failure, connect_limit_s);
    nccl_log().restore_environment();
    nccl_log().forward();
    if (size_ > 2) {
      pieces_ = static_cast<float*>(backend_.allocate(pieces_bytes(), MemoryKind::kDevice));
    }
    watch_.emplace([comm = comm_] { return probe(comm); }, on_failure);
  }
  ~NcclDeviceComm() override {
    watch_.reset();
    if (pieces_ != nullptr) backend_.deallocate(pieces_, pieces_bytes(), MemoryKind::kDevice);
    // Destroying waits for the other ranks, who may be gone when an error is on its way.
    const bool unwinding = std::uncaught_exceptions() > 0;
    const auto result = unwinding ? ncclCommAbort(comm_) : ncclCommDestroy(comm_);
    if (result != ncclSuccess) {
      log_warning("ending the NCCL communicator: {}", ncclGetErrorString(result));
    }
    nccl_log().forward();
  }
  NcclDeviceComm(const NcclDeviceComm&) = delete;
  NcclDeviceComm& operator=(const NcclDeviceComm&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* transport() const override { return "nccl"; }
  bool capturable() const override { return true; }
  double seconds_in_collectives() const override { return 0; }
  std::optional<std::string> connection_log() const override { return nccl_log().text(log_begin_); }

  void all_reduce_tree_f32(float* data, std::int64_t n) override {
    const BeaconScope scope(beacon_, "all-reduce", WaitsForPeers::kYes);
    if (size_ == 2) {
      // a + b == b + a, whatever algorithm NCCL picks: with two ranks any sum is the tree's.
      TANDEM_CHECK_NCCL(ncclAllReduce(data, data, static_cast<std::size_t>(n), ncclFloat32, ncclSum,
                                      comm_, backend_.stream()),
                        comm_);
      return;
    }
    for (std::int64_t at = 0; at < n; at += kPieceElements) {
      sum_piece(data + at, std::min(kPieceElements, n - at));
    }
  }

  void all_gather(const void* send, void* recv, std::int64_t bytes_per_rank) override {
    const BeaconScope scope(beacon_, "all-gather", WaitsForPeers::kYes);
    gather(send, recv, bytes_per_rank);
  }

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

  // A rank that fails alone must say so at once: the others wait for it inside NCCL, out of reach
  // of an agreement.
  void connect(const HostComm& group, const FailureHandler& on_failure, double limit_s) {
    const BeaconScope scope(beacon_, "NCCL start", WaitsForPeers::kYes);
    const ncclUniqueId id = share_unique_id(group);
    const TimeLimit limit(limit_s,
                          [&] { on_failure(no_connection(limit_s), ExitCode::kTransport); });
    try {
      check_nccl(ncclCommInitRank(&comm_, size_, id, rank_), "ncclCommInitRank", nullptr);
    } catch (const Error& error) {
      nccl_log().forward();
      on_failure(error.text(), ExitCode::kTransport);
      throw Error(ExitCode::kTransport, error.text());
    }
  }
  ErrorText no_connection(double limit_s) const {
    const auto facts = parse_nccl_log(nccl_log().text(log_begin_));
    return {.what = fmt::format(
                "NCCL has not connected the ranks within {:.0f} s; it uses {}; this "
                "host has {}",
                limit_s,
                facts.devices.empty() ? "no network yet"
                                      : fmt::format("{}", fmt::join(facts.devices, ", ")),
                fmt::join(describe_interfaces(), ", ")),
            .where = host_name(),
            .expected = "adapters and interfaces that reach the other hosts",
            .remedy = "name them: NCCL_IB_HCA, NCCL_SOCKET_IFNAME"};
  }
  // On the watch's thread.
  static std::optional<ErrorText> probe(ncclComm_t comm) {
    nccl_log().forward();
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclSuccess || state == ncclInProgress) return std::nullopt;
    return nccl_error(state, "a collective", comm);
  }

  int rank_;
  int size_;
  cuda::CudaBackend& backend_;
  StepBeacon* beacon_;
  std::int64_t log_begin_ = 0;
  ncclComm_t comm_ = nullptr;
  float* pieces_ = nullptr;  // [size, kPieceElements], more than two ranks only
  std::optional<CommWatch> watch_;
};

}  // namespace

std::unique_ptr<DeviceComm> make_nccl_device_comm(const HostComm& group, Backend& backend,
                                                  StepBeacon* beacon, FailureHandler on_failure,
                                                  double connect_limit_s) {
  if (group.size() == 1) return make_single_device_comm(&backend);
  TANDEM_CHECK(backend.kind() == BackendKind::kCuda);
  return std::make_unique<NcclDeviceComm>(group, static_cast<cuda::CudaBackend&>(backend), beacon,
                                          on_failure, connect_limit_s);
}

std::string nccl_version_text() {
  int version = 0;
  TANDEM_CHECK_NCCL(ncclGetVersion(&version), nullptr);
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace tandem
