#include "cache/prefix_index.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/hash.h"
#include "kernels/ops/gated_delta_rule.h"

namespace tandem {

static_assert(kStateBlockTokens == ops::kGdnBlock);

namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

}  // namespace

PrefixIndex::PrefixIndex(PagePool& pool, int page_tokens, int num_snapshots)
    : pool_(pool),
      snapshots_(num_snapshots),
      block_tokens_(prefix_block_tokens(page_tokens)),
      snapshot_owners_(at(num_snapshots), kNone),
      snapshot_last_uses_(at(num_snapshots)) {
  TANDEM_CHECK(page_tokens >= 4 && page_tokens <= 256 && std::has_single_bit(unsigned(page_tokens)),
               "page_tokens {}", page_tokens);
  block_pages_ = block_tokens_ / page_tokens;
  if (!enabled()) return;
  const int max_nodes = pool.num_pages() / block_pages_;
  nodes_.resize(at(max_nodes));
  tokens_.resize(at(max_nodes) * at(block_tokens_));
  pages_.resize(at(max_nodes) * at(block_pages_));
  free_nodes_.reserve(at(max_nodes));
  for (int id = max_nodes - 1; id >= 0; --id) free_nodes_.push_back(id);
  buckets_.assign(std::bit_ceil(2 * at(max_nodes) + 1), kNone);
}

std::span<const std::int32_t> PrefixIndex::node_tokens(std::int32_t id) const {
  return std::span(tokens_).subspan(at(id) * at(block_tokens_), at(block_tokens_));
}

std::span<const std::int32_t> PrefixIndex::node_pages(std::int32_t id) const {
  return std::span(pages_).subspan(at(id) * at(block_pages_), at(block_pages_));
}

bool PrefixIndex::is_idle(std::int32_t id) const {
  return std::ranges::all_of(node_pages(id), [&](auto page) { return pool_.is_idle(page); });
}

std::int32_t PrefixIndex::bucket_of(std::int32_t parent,
                                    std::span<const std::int32_t> block) const {
  const auto hash =
      xxh3_64(block.data(), block.size_bytes(), static_cast<std::uint64_t>(parent + 1));
  return static_cast<std::int32_t>(hash & (buckets_.size() - 1));
}

std::int32_t PrefixIndex::find_child(std::int32_t parent,
                                     std::span<const std::int32_t> block) const {
  std::int32_t id = buckets_[at(bucket_of(parent, block))];
  while (id != kNone &&
         (node(id).parent != parent || !std::ranges::equal(node_tokens(id), block))) {
    id = node(id).next_in_bucket;
  }
  return id;
}

PrefixMatch PrefixIndex::match(std::span<const std::int32_t> tokens, int max_tokens) const {
  PrefixMatch match;
  if (!enabled()) return match;
  std::int32_t parent = kRoot;
  int num_idle_pages = 0;
  for (int begin = 0; begin + block_tokens_ <= max_tokens; begin += block_tokens_) {
    const auto id = find_child(parent, tokens.subspan(at(begin), at(block_tokens_)));
    if (id == kNone) break;
    for (const auto page : node_pages(id)) num_idle_pages += pool_.is_idle(page) ? 1 : 0;
    match.matched_tokens = begin + block_tokens_;
    if (node(id).snapshot != kNoSnapshot) {
      match.hit_tokens = match.matched_tokens;
      match.snapshot = node(id).snapshot;
      match.num_idle_pages = num_idle_pages;
    }
    parent = id;
  }
  return match;
}

std::int32_t PrefixIndex::find(std::span<const std::int32_t> tokens, int num_tokens) const {
  TANDEM_CHECK(num_tokens % block_tokens_ == 0, "{} tokens in blocks of {}", num_tokens,
               block_tokens_);
  std::int32_t id = kRoot;
  for (int begin = 0; begin < num_tokens; begin += block_tokens_) {
    id = find_child(id, tokens.subspan(at(begin), at(block_tokens_)));
    if (id == kNone) return kNone;
  }
  return id;
}

void PrefixIndex::acquire(std::span<const std::int32_t> tokens, const PrefixMatch& match,
                          std::vector<std::int32_t>& pages) {
  if (match.hit_tokens == 0) return;
  const std::int32_t last = find(tokens, match.hit_tokens);
  TANDEM_CHECK(last != kNone && node(last).snapshot == match.snapshot,
               "the match of {} tokens is out of date", match.hit_tokens);
  const auto begin = pages.size();
  pages.resize(begin + at(match.hit_tokens / block_tokens_) * at(block_pages_));
  for (std::int32_t id = last; id != kRoot; id = node(id).parent) {
    const auto block = node_pages(id);
    for (const auto page : block) pool_.retain(page);
    std::ranges::copy(block, pages.begin() + static_cast<std::ptrdiff_t>(
                                                 begin + at(node(id).depth - 1) * block.size()));
  }
  touch_path(last);
  snapshot_last_uses_[at(match.snapshot)] = ++num_snapshot_uses_;
}

bool PrefixIndex::has_snapshot(std::span<const std::int32_t> tokens, int num_tokens) const {
  if (!enabled() || num_tokens == 0) return false;
  const std::int32_t id = find(tokens, num_tokens);
  return id != kNone && node(id).snapshot != kNoSnapshot;
}

int PrefixIndex::num_owned_snapshots() const {
  return static_cast<int>(
      std::ranges::count_if(snapshot_owners_, [](auto owner) { return owner != kNone; }));
}

bool PrefixIndex::can_reserve_snapshot() const {
  return snapshots_.num_free() > 0 || num_owned_snapshots() > 0;
}

std::int32_t PrefixIndex::reserve_snapshot(SnapshotEviction eviction) {
  if (snapshots_.num_free() == 0 && eviction == SnapshotEviction::kAllowed) {
    std::int32_t victim = kNoSnapshot;
    for (std::int32_t id = 0; id < snapshots_.num_snapshots(); ++id) {
      if (snapshot_owners_[at(id)] == kNone) continue;
      if (victim == kNoSnapshot || snapshot_last_uses_[at(id)] < snapshot_last_uses_[at(victim)]) {
        victim = id;
      }
    }
    if (victim != kNoSnapshot) {
      node(snapshot_owners_[at(victim)]).snapshot = kNoSnapshot;
      snapshot_owners_[at(victim)] = kNone;
      snapshots_.release(victim);
    }
  }
  return snapshots_.allocate();
}

void PrefixIndex::publish(std::span<const std::int32_t> tokens, int num_tokens,
                          std::span<const std::int32_t> pages, std::int32_t snapshot) {
  if (!enabled() || num_tokens == 0) return;
  TANDEM_CHECK(num_tokens % block_tokens_ == 0 && at(num_tokens) <= tokens.size() &&
                   at(num_tokens / block_tokens_ * block_pages_) <= pages.size(),
               "{} of {} tokens with {} pages", num_tokens, tokens.size(), pages.size());
  std::int32_t id = kRoot;
  for (int i = 0; i < num_tokens / block_tokens_; ++i) {
    const auto block = tokens.subspan(at(i) * at(block_tokens_), at(block_tokens_));
    const auto known = find_child(id, block);
    id = known != kNone
             ? known
             : insert(id, block, pages.subspan(at(i) * at(block_pages_), at(block_pages_)));
  }
  touch_path(id);
  if (snapshot == kNoSnapshot) return;
  if (node(id).snapshot != kNoSnapshot) {
    snapshots_.release(snapshot);
    return;
  }
  node(id).snapshot = snapshot;
  snapshot_owners_[at(snapshot)] = id;
  snapshot_last_uses_[at(snapshot)] = ++num_snapshot_uses_;
}

std::int32_t PrefixIndex::insert(std::int32_t parent, std::span<const std::int32_t> block,
                                 std::span<const std::int32_t> pages) {
  TANDEM_CHECK(!free_nodes_.empty(), "{} blocks for {} pages", num_nodes_, pool_.num_pages());
  const std::int32_t id = free_nodes_.back();
  free_nodes_.pop_back();
  ++num_nodes_;
  std::ranges::copy(block, tokens_.begin() + static_cast<std::ptrdiff_t>(at(id) * block.size()));
  std::ranges::copy(pages, pages_.begin() + static_cast<std::ptrdiff_t>(at(id) * pages.size()));
  for (const auto page : pages) pool_.retain_cached(page);

  Node& n = node(id);
  n = Node{};
  n.parent = parent;
  n.depth = parent == kRoot ? 1 : node(parent).depth + 1;
  if (parent != kRoot) ++node(parent).num_children;
  n.bucket = bucket_of(parent, block);
  n.next_in_bucket = buckets_[at(n.bucket)];
  buckets_[at(n.bucket)] = id;
  link_newest(id);
  return id;
}

void PrefixIndex::erase(std::int32_t id) {
  Node& n = node(id);
  TANDEM_CHECK(n.num_children == 0, "block {} has {} children", id, n.num_children);
  for (const auto page : node_pages(id)) pool_.release_cached(page);
  if (n.snapshot != kNoSnapshot) {
    snapshot_owners_[at(n.snapshot)] = kNone;
    snapshots_.release(n.snapshot);
  }
  std::int32_t* link = &buckets_[at(n.bucket)];
  while (*link != id) link = &node(*link).next_in_bucket;
  *link = n.next_in_bucket;
  if (n.parent != kRoot) --node(n.parent).num_children;
  unlink(id);
  free_nodes_.push_back(id);
  --num_nodes_;
}

void PrefixIndex::touch_path(std::int32_t id) {
  // Deepest first, so that every ancestor ends up newer than its descendants.
  for (; id != kRoot; id = node(id).parent) {
    unlink(id);
    link_newest(id);
  }
}

void PrefixIndex::link_newest(std::int32_t id) {
  node(id).older = newest_;
  node(id).newer = kNone;
  (newest_ == kNone ? oldest_ : node(newest_).newer) = id;
  newest_ = id;
}

void PrefixIndex::unlink(std::int32_t id) {
  const Node& n = node(id);
  (n.older == kNone ? oldest_ : node(n.older).newer) = n.newer;
  (n.newer == kNone ? newest_ : node(n.newer).older) = n.older;
}

bool PrefixIndex::evict_until_free(int num_free) {
  // One pass suffices: a parent that becomes a leaf on the way is newer than its child.
  for (std::int32_t id = oldest_; id != kNone && pool_.num_free() < num_free;) {
    const std::int32_t newer = node(id).newer;
    if (node(id).num_children == 0 && is_idle(id)) erase(id);
    id = newer;
  }
  // What is still idle lies under blocks in use: a sequence that computed a known prefix again
  // holds the pages of its own continuation, but not those of its ancestors. The sequence keeps the
  // pages; only the index forgets them. The oldest block is always a leaf.
  while (pool_.num_free() < num_free && pool_.num_idle() > 0) erase(oldest_);
  return pool_.num_free() >= num_free;
}

void PrefixIndex::clear() {
  while (oldest_ != kNone) erase(oldest_);
}

void PrefixIndex::check_integrity() const {
  std::vector<std::int32_t> num_children(nodes_.size());
  std::vector<std::int32_t> age(nodes_.size(), kNone);
  int num_listed = 0;
  for (std::int32_t id = oldest_; id != kNone; id = node(id).newer) {
    TANDEM_CHECK(age[at(id)] == kNone && num_listed < num_nodes_, "block {} is listed twice", id);
    age[at(id)] = num_listed++;
    TANDEM_CHECK(node(id).newer != kNone ? node(node(id).newer).older == id : newest_ == id,
                 "block {}: broken recency list", id);
  }
  TANDEM_CHECK(num_listed == num_nodes_ && num_nodes_ + static_cast<int>(free_nodes_.size()) ==
                                               static_cast<int>(nodes_.size()),
               "{} blocks listed, {} in use, {} free", num_listed, num_nodes_, free_nodes_.size());

  int num_snapshots = 0;
  std::vector<std::uint8_t> page_seen(static_cast<std::size_t>(pool_.num_pages()));
  for (std::int32_t id = oldest_; id != kNone; id = node(id).newer) {
    const Node& n = node(id);
    TANDEM_CHECK(find_child(n.parent, node_tokens(id)) == id, "block {} is not found", id);
    if (n.parent != kRoot) {
      TANDEM_CHECK(age[at(n.parent)] > age[at(id)], "block {} is newer than its parent", id);
      TANDEM_CHECK(n.depth == node(n.parent).depth + 1, "block {} at depth {}", id, n.depth);
      ++num_children[at(n.parent)];
    }
    for (const auto page : node_pages(id)) {
      TANDEM_CHECK(pool_.is_cached(page) && !page_seen[at(page)], "page {} of block {}", page, id);
      page_seen[at(page)] = 1;
    }
    if (n.snapshot != kNoSnapshot) {
      TANDEM_CHECK(snapshots_.is_taken(n.snapshot) && snapshot_owners_[at(n.snapshot)] == id,
                   "snapshot {} of block {}", n.snapshot, id);
      ++num_snapshots;
    }
  }
  for (std::int32_t id = oldest_; id != kNone; id = node(id).newer) {
    TANDEM_CHECK(num_children[at(id)] == node(id).num_children, "block {} has {} children", id,
                 num_children[at(id)]);
  }
  for (std::int32_t page = 0; page < pool_.num_pages(); ++page) {
    TANDEM_CHECK(pool_.is_cached(page) == (page_seen[at(page)] != 0), "page {} has no block", page);
  }
  TANDEM_CHECK(num_owned_snapshots() == num_snapshots, "{} snapshots have owners, {} are in blocks",
               num_owned_snapshots(), num_snapshots);
}

}  // namespace tandem
