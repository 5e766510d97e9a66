#include "memory/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "base/units.h"

namespace tandem {

std::size_t ArenaPlan::reserve(std::string_view part, std::size_t bytes, std::size_t align) {
  TANDEM_CHECK(align > 0 && (align & (align - 1)) == 0 && align <= kArenaAlignment,
               "alignment {} of {}", align, part);
  const std::size_t offset = (used_ + align - 1) & ~(align - 1);
  TANDEM_CHECK(offset >= used_ && offset + bytes >= offset, "{}: size overflow", part);
  check_room(offset + bytes);
  auto entry = std::find_if(parts_.begin(), parts_.end(),
                            [&](const MemoryPart& p) { return p.name == part; });
  if (entry == parts_.end()) {
    entry = parts_.insert(parts_.end(), {.name = std::string(part), .bytes = 0});
  }
  entry->bytes += static_cast<std::int64_t>(offset + bytes - used_);
  used_ = offset + bytes;
  return offset;
}

void ArenaPlan::check_room(std::size_t) const {}

ArenaMemory allocate_host_pages(std::size_t bytes, int threads) {
  if (bytes == 0) return {};
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return {};
  madvise(mapping, bytes, MADV_HUGEPAGE);  // a wish: kernels without it serve small pages
  auto* data = static_cast<std::byte*>(mapping);

  // First touch in parallel: zeroing dominates, and one thread reaches a fraction of the bandwidth.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t pages = (bytes + page - 1) / page;
  const auto workers = static_cast<std::size_t>(std::max(threads, 1));
  std::vector<std::thread> pool;
  for (std::size_t w = 0; w < workers; ++w) {
    pool.emplace_back([=] {
      for (std::size_t p = pages * w / workers; p < pages * (w + 1) / workers; ++p) {
        *static_cast<volatile std::byte*>(data + p * page) = std::byte{0};
      }
    });
  }
  for (auto& thread : pool) thread.join();
  return {.data = data, .release = [=] { munmap(mapping, bytes); }};
}

Arena::Arena(std::string name, const ArenaPlan& plan, const ArenaAllocator& allocate)
    : name_(std::move(name)), size_(plan.used_bytes()) {
  if (size_ == 0) return;
  memory_ = allocate(size_);
  if (memory_.data == nullptr) {
    std::string ledger;
    for (const auto& part : plan.parts()) {
      ledger += fmt::format("\n  {:<32} {:>12}", part.name, format_bytes(part.bytes));
    }
    throw Error(
        ExitCode::kDoesNotFit,
        {.what = fmt::format("{} cannot be allocated in one piece",
                             format_bytes(static_cast<std::int64_t>(size_))),
         .where = fmt::format("arena {}", name_),
         .remedy = fmt::format("free memory on this host or lower the job's needs; the parts "
                               "are:{}",
                               ledger)});
  }
  TANDEM_CHECK(reinterpret_cast<std::uintptr_t>(memory_.data) % kArenaAlignment == 0,
               "arena {} is not aligned", name_);
}

Arena::~Arena() {
  if (memory_.release) memory_.release();
}

void Arena::check_room(std::size_t end) const {
  TANDEM_CHECK(end <= size_, "arena {}: {} bytes wanted, {} planned", name_, end, size_);
}

}  // namespace tandem
