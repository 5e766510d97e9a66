#include "engine/part_arenas.h"

#include "base/error.h"

namespace tandem {

PartArenas::PartArenas(Backend& backend, const CountingAllocator& plan) {
  const auto allocate = [&backend](std::size_t bytes) -> ArenaMemory {
    void* data = backend.allocate(bytes);
    return {.data = static_cast<std::byte*>(data),
            .release = [&backend, data, bytes] { backend.deallocate(data, bytes); }};
  };
  for (const auto& [name, bytes] : plan.bytes_by_part()) {
    if (bytes == 0) continue;
    auto& part = parts_[name];
    part.plan.reserve(name, bytes);
    part.arena = std::make_unique<Arena>(name, part.plan, allocate);
  }
}

void* PartArenas::take(std::string_view part, std::size_t bytes) {
  const auto it = parts_.find(part);
  // A part of which nothing was planned holds empty arrays only.
  if (it == parts_.end()) {
    TANDEM_CHECK(bytes == 0, "{} bytes of unplanned part {}", bytes, part);
    return nullptr;
  }
  return it->second.arena->reserve_array<std::byte>(part, align_up(bytes));
}

}  // namespace tandem
