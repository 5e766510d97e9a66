#include "kernels/cpu/cpu_backend.h"

#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/units.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/target.h"

namespace tandem::cpu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kCopyGrain = std::size_t{1} << 20;

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

// Large blocks start on a huge page, so that transparent huge pages can back them.
std::size_t alignment_of(std::size_t bytes) {
  return bytes >= kHugePage ? kHugePage : page_bytes();
}

std::size_t mapped_bytes(std::size_t bytes) {
  return round_up(std::max<std::size_t>(bytes, 1), page_bytes());
}

// Writes to every page of [data, data + bytes), from all threads: on machines with several memory
// controllers a page lands beside the thread that touches it first.
void touch_pages(const CpuBackend& backend, std::byte* data, std::size_t bytes) {
  const auto grain = static_cast<std::int64_t>(16 * kHugePage);
  parallel_ranges(backend, static_cast<std::int64_t>(bytes), grain,
                  [&](std::int64_t first, std::int64_t last, int) {
                    std::byte* begin = data + first;
                    const auto length = static_cast<std::size_t>(last - first);
#if defined(MADV_POPULATE_WRITE)
                    if (madvise(begin, length, MADV_POPULATE_WRITE) == 0) return;
#endif
                    for (std::size_t i = 0; i < length; i += page_bytes()) {
                      *static_cast<volatile std::byte*>(begin + i) = std::byte{0};
                    }
                  });
}

}  // namespace

CpuBackend::CpuBackend(const BackendOptions& options)
    : num_threads_(options.num_threads > 0 ? options.num_threads : omp_get_max_threads()) {
  // Never more than OpenMP will give: scratch is one block a thread.
  num_threads_ = std::clamp(num_threads_, 1, omp_get_thread_limit());
  scratch_ = static_cast<std::byte*>(allocate(scratch_bytes()));
}

CpuBackend::~CpuBackend() { deallocate(scratch_, scratch_bytes()); }

std::size_t CpuBackend::scratch_bytes() const {
  return kSharedScratchBytes + static_cast<std::size_t>(num_threads_) * kThreadScratchBytes;
}

std::string CpuBackend::description() const {
  return fmt::format("cpu {} (runtime dispatch), {} thread{}", chosen_target_name(), num_threads_,
                     num_threads_ == 1 ? "" : "s");
}

void* CpuBackend::allocate(std::size_t bytes, MemoryKind) {
  // Far above any machine, and far enough from the end of std::size_t to round up.
  constexpr std::size_t kAbsurd = std::size_t{1} << 60;
  const std::size_t length = bytes < kAbsurd ? mapped_bytes(bytes) : kAbsurd;
  const std::size_t alignment = alignment_of(bytes);
  const std::size_t slack = alignment - page_bytes();
  void* raw =
      mmap(nullptr, length + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) {
    throw Error(
        ExitCode::kDoesNotFit,
        {.what = fmt::format("the system gave no {} of memory: {}",
                             format_bytes(static_cast<std::int64_t>(length)), std::strerror(errno)),
         .where = "cpu backend",
         .remedy = "lower memory.kv_bytes or scheduler.max_sequences, or free memory"});
  }
  // Cut the block out of the larger mapping; deallocate() then needs its size only.
  auto* begin = static_cast<std::byte*>(raw);
  auto* data =
      reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(raw), alignment));
  const auto head = static_cast<std::size_t>(data - begin);
  if (head > 0) munmap(begin, head);
  if (slack > head) munmap(data + length, slack - head);
  if (alignment == kHugePage) madvise(data, length, MADV_HUGEPAGE);  // a wish; refusal is harmless
  touch_pages(*this, data, length);
  return data;
}

void CpuBackend::deallocate(void* data, std::size_t bytes, MemoryKind) noexcept {
  if (data != nullptr) munmap(data, mapped_bytes(bytes));
}

void CpuBackend::copy(void* destination, const void* source, std::size_t bytes) {
  parallel_ranges(*this, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(kCopyGrain),
                  [&](std::int64_t first, std::int64_t last, int) {
                    std::memcpy(static_cast<std::byte*>(destination) + first,
                                static_cast<const std::byte*>(source) + first,
                                static_cast<std::size_t>(last - first));
                  });
}

void CpuBackend::zero(void* destination, std::size_t bytes) {
  parallel_ranges(*this, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(kCopyGrain),
                  [&](std::int64_t first, std::int64_t last, int) {
                    std::memset(static_cast<std::byte*>(destination) + first, 0,
                                static_cast<std::size_t>(last - first));
                  });
}

}  // namespace tandem::cpu
