// The real pass of the allocation: one arena a part, sized by the planning pass, on the backend's
// memory.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "memory/arena.h"
#include "memory/part_allocator.h"

namespace tandem {

class PartArenas final : public PartAllocator {
 public:
  // Allocates all parts. Throws Error{kDoesNotFit} if the device refuses one.
  PartArenas(Backend& backend, const CountingAllocator& plan);

  // Throws Error{kInternal} if a part gets more than was planned.
  void* take(std::string_view part, std::size_t bytes) override;

 private:
  struct Part {
    ArenaPlan plan;  // must outlive the arena's construction only; kept for its ledger
    std::unique_ptr<Arena> arena;
  };
  std::map<std::string, Part, std::less<>> parts_;
};

}  // namespace tandem
