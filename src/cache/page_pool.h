// Who holds which page of the KV pool: reference counts and a free list, nothing more. The bytes
// of the pages belong to the engine's arena; page ids index every layer's pool alike. Host only and
// deterministic, so that all ranks hand out the same ids.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

// Pages that hold num_tokens positions.
constexpr int pages_for_tokens(int num_tokens, int page_tokens) {
  return (num_tokens + page_tokens - 1) / page_tokens;
}

// A page is free (no reference) or held by any number of sequences and at most once by the prefix
// index. The index's reference is told apart because a page that only the index holds is idle: it
// can be had by evicting, and admission counts it as available.
class PagePool {
 public:
  explicit PagePool(int num_pages);

  // The page freed last (at first: the lowest id), with one reference. Needs num_free() > 0.
  std::int32_t allocate();
  void retain(std::int32_t page);
  void release(std::int32_t page);
  // The prefix index's own reference.
  void retain_cached(std::int32_t page);
  void release_cached(std::int32_t page);

  int num_pages() const { return static_cast<int>(refs_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_in_use() const { return num_pages() - num_free() - num_idle_; }  // held by sequences
  int num_idle() const { return num_idle_; }                               // held by the index only
  int refs(std::int32_t page) const { return refs_[index(page)]; }
  bool is_cached(std::int32_t page) const { return cached_[index(page)] != 0; }
  bool is_idle(std::int32_t page) const { return is_cached(page) && refs(page) == 1; }

  // Throws Error{kInternal} unless free list, counts and flags agree.
  void check_integrity() const;

 private:
  std::size_t index(std::int32_t page) const;
  void drop(std::int32_t page);

  std::vector<std::int32_t> refs_;    // [num_pages], the index's reference included
  std::vector<std::uint8_t> cached_;  // [num_pages], 1 where the index holds a reference
  std::vector<std::int32_t> free_;    // stack
  int num_idle_ = 0;
};

}  // namespace tandem
