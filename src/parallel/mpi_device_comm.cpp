#include "parallel/mpi_device_comm.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "parallel/mpi_check.h"

namespace tandem {
namespace {

constexpr int kTag = 1;
constexpr std::int64_t kGatherPieceBytes = std::int64_t{1} << 28;  // MPI counts are int

bool is_power_of_two(int size) { return std::has_single_bit(static_cast<unsigned>(size)); }

// sum[i] = low[i] + high[i]. The payload of a NaN sum would be that of either operand, and which
// one the compiler picks depends on its flags and on the place in the array; it is made one value,
// so that broken numbers too are the same on all ranks. sum may be low or high.
void add_ordered(const float* low, const float* high, float* sum, std::int64_t n) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = low[i] + high[i];
    sum[i] = value == value ? value : kNan;
  }
}

class MpiDeviceComm final : public DeviceComm {
 public:
  MpiDeviceComm(HostComm group, StepBeacon* beacon, std::int64_t scratch_elements)
      : group_(std::move(group)),
        comm_(group_.impl().comm),
        beacon_(beacon),
        piece_(scratch_elements),
        scratch_(static_cast<std::size_t>(
            mpi_device_comm_scratch_bytes(group_.size(), scratch_elements) /
            static_cast<std::int64_t>(sizeof(float)))) {
    TANDEM_CHECK(piece_ > 0 && piece_ <= (1 << 29), "scratch of {} elements", piece_);
  }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  const char* transport() const override { return "mpi"; }
  bool capturable() const override { return false; }
  double seconds_in_collectives() const override { return seconds_; }

  void all_reduce_tree_f32(float* data, std::int64_t n) override {
    const BeaconScope scope(beacon_, "all-reduce", WaitsForPeers::kYes);
    const double start = monotonic_s();
    for (std::int64_t done = 0; done < n; done += piece_) {
      const auto piece = static_cast<int>(std::min(piece_, n - done));
      if (is_power_of_two(size())) {
        reduce_by_doubling(data + done, piece);
      } else {
        reduce_by_gathering(data + done, piece);
      }
    }
    seconds_ += monotonic_s() - start;
  }

  void all_gather(const void* send, void* recv, std::int64_t bytes_per_rank) override {
    const BeaconScope scope(beacon_, "all-gather", WaitsForPeers::kYes);
    const double start = monotonic_s();
    const auto own = static_cast<char*>(recv) + rank() * bytes_per_rank;
    if (bytes_per_rank <= kGatherPieceBytes) {
      const auto count = static_cast<int>(bytes_per_rank);
      TANDEM_CHECK_MPI(MPI_Allgather(send == own ? MPI_IN_PLACE : send, count, MPI_BYTE, recv,
                                     count, MPI_BYTE, comm_));
    } else {
      group_.all_gather_bytes(send, recv, bytes_per_rank);
    }
    seconds_ += monotonic_s() - start;
  }

 private:
  // Level by level of the tree: after the step of distance d, each rank of a block of 2d holds the
  // block's sum. Addition commutes, so both partners get the same bits.
  void reduce_by_doubling(float* data, int n) {
    for (int distance = 1; distance < size(); distance *= 2) {
      const int partner = rank() ^ distance;
      TANDEM_CHECK_MPI(MPI_Sendrecv(data, n, MPI_FLOAT, partner, kTag, scratch_.data(), n,
                                    MPI_FLOAT, partner, kTag, comm_, MPI_STATUS_IGNORE));
      if (rank() < partner) {
        add_ordered(data, scratch_.data(), data, n);
      } else {
        add_ordered(scratch_.data(), data, data, n);
      }
    }
  }

  void reduce_by_gathering(float* data, int n) {
    TANDEM_CHECK_MPI(MPI_Allgather(data, n, MPI_FLOAT, scratch_.data(), n, MPI_FLOAT, comm_));
    const auto part = [&](int r) { return scratch_.data() + std::int64_t{r} * n; };
    for (int distance = 1; distance < size(); distance *= 2) {
      for (int r = 0; r + distance < size(); r += 2 * distance) {
        add_ordered(part(r), part(r + distance), part(r), n);
      }
    }
    std::copy_n(part(0), n, data);
  }

  HostComm group_;
  MPI_Comm comm_;
  StepBeacon* beacon_;
  std::int64_t piece_;
  std::vector<float> scratch_;  // [1 or size, piece_]
  double seconds_ = 0;
};

}  // namespace

std::int64_t mpi_device_comm_scratch_bytes(int size, std::int64_t scratch_elements) {
  if (size == 1) return 0;
  const std::int64_t parts = is_power_of_two(size) ? 1 : size;
  return parts * scratch_elements * static_cast<std::int64_t>(sizeof(float));
}

std::unique_ptr<DeviceComm> make_mpi_device_comm(const HostComm& group, StepBeacon* beacon,
                                                 std::int64_t scratch_elements) {
  if (group.size() == 1) return make_single_device_comm();
  return std::make_unique<MpiDeviceComm>(group.duplicate(), beacon, scratch_elements);
}

}  // namespace tandem
