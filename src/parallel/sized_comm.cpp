#include "parallel/sized_comm.h"

#include <utility>

#include "base/error.h"

namespace tandem {
namespace {

class SizedComm final : public DeviceComm {
 public:
  SizedComm(std::unique_ptr<DeviceComm> small, std::unique_ptr<DeviceComm> large,
            std::int64_t small_bytes)
      : small_(std::move(small)),
        large_(std::move(large)),
        small_elements_(small_bytes / static_cast<std::int64_t>(sizeof(float))),
        transport_(fmt::format("{}; sums up to {} bytes {}", large_->transport(), small_bytes,
                               small_->transport())) {
    TANDEM_CHECK(small_->size() == large_->size() && small_->rank() == large_->rank());
  }

  int rank() const override { return large_->rank(); }
  int size() const override { return large_->size(); }
  const char* transport() const override { return transport_.c_str(); }
  bool capturable() const override { return small_->capturable() && large_->capturable(); }
  void all_reduce_tree_f32(float* data, std::int64_t n) override {
    (n <= small_elements_ ? small_ : large_)->all_reduce_tree_f32(data, n);
  }
  void all_gather(const void* send, void* recv, std::int64_t bytes_per_rank) override {
    large_->all_gather(send, recv, bytes_per_rank);
  }
  double seconds_in_collectives() const override {
    return small_->seconds_in_collectives() + large_->seconds_in_collectives();
  }
  std::optional<std::string> connection_log() const override { return large_->connection_log(); }

 private:
  std::unique_ptr<DeviceComm> small_;
  std::unique_ptr<DeviceComm> large_;
  std::int64_t small_elements_;
  std::string transport_;
};

}  // namespace

std::unique_ptr<DeviceComm> make_sized_comm(std::unique_ptr<DeviceComm> small,
                                            std::unique_ptr<DeviceComm> large,
                                            std::int64_t small_bytes) {
  return std::make_unique<SizedComm>(std::move(small), std::move(large), small_bytes);
}

}  // namespace tandem
