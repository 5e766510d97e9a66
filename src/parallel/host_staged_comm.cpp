#include "parallel/host_staged_comm.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "parallel/mpi_device_comm.h"

namespace tandem {
namespace {

class HostStagedComm final : public DeviceComm {
 public:
  HostStagedComm(const HostComm& group, Backend& backend, StepBeacon* beacon,
                 std::int64_t piece_bytes)
      : backend_(backend),
        // Large enough that a staged piece is one piece of MPI's as well.
        mpi_(make_mpi_device_comm(group, beacon, piece_bytes / kFloatBytes)),
        piece_bytes_(piece_bytes),
        staging_(static_cast<char*>(backend.allocate(staging_bytes(), MemoryKind::kHostVisible))) {}
  ~HostStagedComm() override {
    backend_.deallocate(staging_, staging_bytes(), MemoryKind::kHostVisible);
  }
  HostStagedComm(const HostStagedComm&) = delete;
  HostStagedComm& operator=(const HostStagedComm&) = delete;

  int rank() const override { return mpi_->rank(); }
  int size() const override { return mpi_->size(); }
  const char* transport() const override { return "mpi through host memory"; }
  bool capturable() const override { return false; }
  double seconds_in_collectives() const override { return seconds_; }

  void all_reduce_tree_f32(float* data, std::int64_t n) override {
    const double start_s = monotonic_s();
    auto* staged = reinterpret_cast<float*>(staging_);
    const std::int64_t piece = piece_bytes_ / kFloatBytes;
    for (std::int64_t at = 0; at < n; at += piece) {
      const std::int64_t count = std::min(piece, n - at);
      fetch(staging_, data + at, count * kFloatBytes);
      mpi_->all_reduce_tree_f32(staged, count);
      backend_.copy(data + at, staging_, static_cast<std::size_t>(count * kFloatBytes));
    }
    seconds_ += monotonic_s() - start_s;
  }

  void all_gather(const void* send, void* recv, std::int64_t bytes_per_rank) override {
    const double start_s = monotonic_s();
    for (std::int64_t at = 0; at < bytes_per_rank; at += piece_bytes_) {
      const std::int64_t bytes = std::min(piece_bytes_, bytes_per_rank - at);
      char* own = staging_ + rank() * bytes;
      fetch(own, static_cast<const char*>(send) + at, bytes);
      mpi_->all_gather(own, staging_, bytes);
      for (int r = 0; r < size(); ++r) {
        backend_.copy(static_cast<char*>(recv) + r * bytes_per_rank + at, staging_ + r * bytes,
                      static_cast<std::size_t>(bytes));
      }
    }
    seconds_ += monotonic_s() - start_s;
  }

 private:
  static constexpr std::int64_t kFloatBytes = sizeof(float);

  std::size_t staging_bytes() const {
    return static_cast<std::size_t>(mpi_->size() * piece_bytes_);
  }
  // The copy out of the staging memory that the call before enqueued comes first in the backend's
  // order, so that the memory is free again when this returns.
  void fetch(char* staged, const void* source, std::int64_t bytes) {
    backend_.copy(staged, source, static_cast<std::size_t>(bytes));
    backend_.synchronize();
  }

  Backend& backend_;
  std::unique_ptr<DeviceComm> mpi_;
  std::int64_t piece_bytes_;
  char* staging_;  // [size, piece_bytes_]
  double seconds_ = 0;
};

}  // namespace

std::unique_ptr<DeviceComm> make_host_staged_comm(const HostComm& group, Backend& backend,
                                                  StepBeacon* beacon, std::int64_t piece_bytes) {
  TANDEM_CHECK(piece_bytes > 0 && piece_bytes % 4 == 0, "pieces of {} bytes", piece_bytes);
  if (group.size() == 1) return make_single_device_comm(&backend);
  return std::make_unique<HostStagedComm>(group, backend, beacon, piece_bytes);
}

}  // namespace tandem
