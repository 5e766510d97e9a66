// Ids of the places where recurrent states (with both convolution windows) are kept for prefix
// hits. The states themselves lie in the engine's arena; each is large, so there are few.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

inline constexpr std::int32_t kNoSnapshot = -1;

class SnapshotPool {
 public:
  explicit SnapshotPool(int num_snapshots);

  // The id freed last (at first: the lowest), or kNoSnapshot when all are taken.
  std::int32_t allocate();
  void release(std::int32_t snapshot);

  int num_snapshots() const { return static_cast<int>(taken_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  bool is_taken(std::int32_t snapshot) const;

 private:
  std::vector<std::uint8_t> taken_;  // [num_snapshots]
  std::vector<std::int32_t> free_;   // stack
};

}  // namespace tandem
