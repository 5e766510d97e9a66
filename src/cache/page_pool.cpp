#include "cache/page_pool.h"

#include "base/error.h"

namespace tandem {

PagePool::PagePool(int num_pages) {
  TANDEM_CHECK(num_pages >= 0, "{} pages", num_pages);
  refs_.resize(static_cast<std::size_t>(num_pages));
  cached_.resize(static_cast<std::size_t>(num_pages));
  free_.reserve(static_cast<std::size_t>(num_pages));
  for (int page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

std::size_t PagePool::index(std::int32_t page) const {
  TANDEM_CHECK(page >= 0 && page < num_pages(), "page {} of {}", page, num_pages());
  return static_cast<std::size_t>(page);
}

std::int32_t PagePool::allocate() {
  TANDEM_CHECK(!free_.empty(), "all {} pages are taken", num_pages());
  const std::int32_t page = free_.back();
  free_.pop_back();
  refs_[index(page)] = 1;
  return page;
}

void PagePool::retain(std::int32_t page) {
  TANDEM_CHECK(refs(page) > 0, "page {} is free", page);
  if (is_idle(page)) --num_idle_;
  ++refs_[index(page)];
}

void PagePool::release(std::int32_t page) {
  TANDEM_CHECK(refs(page) > (is_cached(page) ? 1 : 0), "page {} is held by no sequence", page);
  drop(page);
  if (is_idle(page)) ++num_idle_;
}

void PagePool::retain_cached(std::int32_t page) {
  TANDEM_CHECK(refs(page) > 0 && !is_cached(page), "page {}: {} references", page, refs(page));
  ++refs_[index(page)];
  cached_[index(page)] = 1;
}

void PagePool::release_cached(std::int32_t page) {
  TANDEM_CHECK(is_cached(page), "page {} is not in the prefix index", page);
  if (is_idle(page)) --num_idle_;
  cached_[index(page)] = 0;
  drop(page);
}

void PagePool::drop(std::int32_t page) {
  if (--refs_[index(page)] == 0) free_.push_back(page);
}

void PagePool::check_integrity() const {
  std::vector<std::uint8_t> is_free(refs_.size());
  for (const auto page : free_) {
    TANDEM_CHECK(refs(page) == 0, "free page {} has {} references", page, refs(page));
    TANDEM_CHECK(!is_free[index(page)], "page {} is free twice", page);
    is_free[index(page)] = 1;
  }
  int num_idle = 0;
  for (std::int32_t page = 0; page < num_pages(); ++page) {
    TANDEM_CHECK(refs(page) >= (is_cached(page) ? 1 : 0), "page {}: {} references", page,
                 refs(page));
    TANDEM_CHECK(refs(page) > 0 || is_free[index(page)], "page {} is lost", page);
    num_idle += is_idle(page) ? 1 : 0;
  }
  TANDEM_CHECK(num_idle == num_idle_, "{} idle pages, counted as {}", num_idle, num_idle_);
}

}  // namespace tandem
