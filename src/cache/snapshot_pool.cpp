#include "cache/snapshot_pool.h"

#include "base/error.h"

namespace tandem {

SnapshotPool::SnapshotPool(int num_snapshots) {
  TANDEM_CHECK(num_snapshots >= 0, "{} snapshots", num_snapshots);
  taken_.resize(static_cast<std::size_t>(num_snapshots));
  free_.reserve(static_cast<std::size_t>(num_snapshots));
  for (int id = num_snapshots - 1; id >= 0; --id) free_.push_back(id);
}

std::int32_t SnapshotPool::allocate() {
  if (free_.empty()) return kNoSnapshot;
  const std::int32_t id = free_.back();
  free_.pop_back();
  taken_[static_cast<std::size_t>(id)] = 1;
  return id;
}

void SnapshotPool::release(std::int32_t snapshot) {
  TANDEM_CHECK(is_taken(snapshot), "snapshot {} is free", snapshot);
  taken_[static_cast<std::size_t>(snapshot)] = 0;
  free_.push_back(snapshot);
}

bool SnapshotPool::is_taken(std::int32_t snapshot) const {
  TANDEM_CHECK(snapshot >= 0 && snapshot < num_snapshots(), "snapshot {} of {}", snapshot,
               num_snapshots());
  return taken_[static_cast<std::size_t>(snapshot)] != 0;
}

}  // namespace tandem
