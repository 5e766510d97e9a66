#include "engine/part_arenas.h"

#include "base/error.h"

namespace tandem {

PartArenas::PartArenas(Backend& backend, const CountingAllocator& plan) {
  for (const auto& [name, bytes] : plan.bytes_by_part()) {
    if (bytes == 0) continue;
    const MemoryKind kind =
        name == parts::kHostTables ? MemoryKind::kHostVisible : MemoryKind::kDevice;
    const auto allocate = [&backend, kind](std::size_t size) -> ArenaMemory {
      void* data = backend.allocate(size, kind);
      return {.data = static_cast<std::byte*>(data),
              .release = [&backend, data, size, kind] { backend.deallocate(data, size, kind); }};
    };
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
