// Where the long-lived arrays of a rank come from. Everything that owns device memory takes it
// through this interface at construction, under the name of the part it belongs to, so that the
// plan and the run add up the same calls: a planning pass counts and returns nullptr, the real pass
// returns memory. Nothing is ever given back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace tandem {

inline constexpr std::size_t kPartAlignment = 256;

constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment = kPartAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

class PartAllocator {
 public:
  virtual ~PartAllocator() = default;
  // 256-byte aligned memory, or nullptr in a planning pass.
  virtual void* take(std::string_view part, std::size_t bytes) = 0;

  template <typename T>
  T* take_array(std::string_view part, std::int64_t count) {
    return static_cast<T*>(take(part, static_cast<std::size_t>(count) * sizeof(T)));
  }
};

// Counts and allocates nothing.
class CountingAllocator final : public PartAllocator {
 public:
  void* take(std::string_view part, std::size_t bytes) override {
    bytes_by_part_[std::string(part)] += align_up(bytes);
    return nullptr;
  }
  const std::map<std::string, std::size_t>& bytes_by_part() const { return bytes_by_part_; }
  std::size_t bytes(const std::string& part) const {
    const auto it = bytes_by_part_.find(part);
    return it == bytes_by_part_.end() ? 0 : it->second;
  }

 private:
  std::map<std::string, std::size_t> bytes_by_part_;
};

// The parts, as `plan` prints them and /memory stores them.
namespace parts {
inline constexpr std::string_view kWeights = "weights";
inline constexpr std::string_view kDrafterWeights = "drafter weights";
inline constexpr std::string_view kKvPages = "KV pages";
inline constexpr std::string_view kStates = "recurrent states";
inline constexpr std::string_view kSnapshots = "prefix snapshots";
inline constexpr std::string_view kActivations = "activations";
inline constexpr std::string_view kCommunication = "communication buffers";
// Small tables that the host writes and kernels read between steps, and results the other way.
inline constexpr std::string_view kHostTables = "host tables";
}  // namespace parts

}  // namespace tandem
