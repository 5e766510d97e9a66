// One allocation per purpose, made once and early; views are cut from it and nothing grows later.
// Sizes come from a planning pass through the same code that later fills the arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "memory/budget.h"

namespace tandem {

constexpr std::size_t kArenaAlignment = 256;

// Hands out offsets, or places when it lies on memory. Code that reserves its buffers through this
// runs twice: on a bare ArenaPlan for the sizes (base() is null, so pointers come out null), then
// on an Arena.
class ArenaPlan {
 public:
  virtual ~ArenaPlan() = default;

  // Offset of `bytes` bytes; `part` groups the ledger. align: a power of two, at most
  // kArenaAlignment where the memory is real.
  std::size_t reserve(std::string_view part, std::size_t bytes,
                      std::size_t align = kArenaAlignment);
  // The same as an address; null while planning.
  template <typename T>
  T* reserve_array(std::string_view part, std::size_t count) {
    const auto offset = reserve(part, count * sizeof(T));
    return base() == nullptr ? nullptr : reinterpret_cast<T*>(base() + offset);
  }

  std::size_t used_bytes() const { return used_; }
  // Parts in order of first use; padding counts to the part that caused it.
  const std::vector<MemoryPart>& parts() const { return parts_; }
  virtual std::byte* base() const { return nullptr; }

 protected:
  virtual void check_room(std::size_t end) const;

 private:
  std::size_t used_ = 0;
  std::vector<MemoryPart> parts_;
};

// Memory that an arena lies on, and how to give it back.
struct ArenaMemory {
  std::byte* data = nullptr;
  std::function<void()> release;
};
// Returns data == nullptr if the memory cannot be had.
using ArenaAllocator = std::function<ArenaMemory(std::size_t bytes)>;

// Anonymous pages, all touched by `threads` threads before it returns: running out shows now, not
// in the middle of a step. Asks for huge pages.
ArenaMemory allocate_host_pages(std::size_t bytes, int threads = 4);

class Arena : public ArenaPlan {
 public:
  // Throws Error{kDoesNotFit} with the plan's parts when the allocator refuses. `name`: "weights".
  Arena(std::string name, const ArenaPlan& plan, const ArenaAllocator& allocate);
  ~Arena() override;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* base() const override { return memory_.data; }
  std::size_t size_bytes() const { return size_; }

 protected:
  // Beyond the planned size: a defect.
  void check_room(std::size_t end) const override;

 private:
  std::string name_;
  std::size_t size_ = 0;
  ArenaMemory memory_;
};

}  // namespace tandem
