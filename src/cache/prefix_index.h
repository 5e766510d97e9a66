// Which prompt prefixes are in the KV pool: a trie of token blocks, each with its pages and, at
// some blocks, a snapshot of the recurrent state at the block's end. It decides what is reused and
// what is evicted; copying states and filling pages is the engine's work.
//
// A block's pages hold everything that is indexed by position, the drafter's cache included. So
// that a page depends on the tokens up to its end and on nothing after it, an entry that also needs
// the token after its position (MTP: hidden state p with token p + 1) belongs to position p + 1.
//
// Only positions computed as prompt rows may be published: generated rows go through other kernels
// and would make a hit differ in the last bit from computing the same tokens as a prompt.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "cache/snapshot_pool.h"

namespace tandem {

// The recurrent layers work on prompts in blocks of 64 from the sequence start: chunk ends and
// reusable prefixes lie on multiples of it.
inline constexpr int kStateBlockTokens = 64;

// Tokens of one node of the index: whole pages and whole state blocks.
constexpr int prefix_block_tokens(int page_tokens) {
  return page_tokens > kStateBlockTokens ? page_tokens : kStateBlockTokens;
}

struct PrefixMatch {
  int hit_tokens = 0;  // restorable: up to the deepest matched block with a snapshot
  std::int32_t snapshot = kNoSnapshot;  // state at hit_tokens; kNoSnapshot when hit_tokens == 0
  int matched_tokens = 0;               // blocks known, with or without snapshot; >= hit_tokens
  int num_idle_pages = 0;               // pages of the hit that nobody but the index holds
};

enum class SnapshotEviction { kForbidden, kAllowed };

class PrefixIndex {
 public:
  // pool is borrowed. page_tokens: a power of two from 4 to 256. Without snapshots nothing can be
  // restored: the index is disabled, never matches and keeps nothing.
  PrefixIndex(PagePool& pool, int page_tokens, int num_snapshots);

  bool enabled() const { return snapshots_.num_snapshots() > 0; }
  int block_tokens() const { return block_tokens_; }

  // Looks at the first max_tokens tokens, rounded down to whole blocks; changes nothing.
  PrefixMatch match(std::span<const std::int32_t> tokens, int max_tokens) const;
  // Takes up a match (nothing may have been evicted since): retains the hit's pages, appends them
  // to `pages` in order, and marks the path and its snapshot as used just now.
  void acquire(std::span<const std::int32_t> tokens, const PrefixMatch& match,
               std::vector<std::int32_t>& pages);

  // True if the first num_tokens tokens (a multiple of block_tokens()) are known with a snapshot.
  bool has_snapshot(std::span<const std::int32_t> tokens, int num_tokens) const;
  // A snapshot id to be filled by the caller and handed over with publish() or discard_snapshot();
  // kNoSnapshot if none is free and, with kAllowed, no node can give its least recently used one
  // up.
  std::int32_t reserve_snapshot(SnapshotEviction eviction);
  bool can_reserve_snapshot() const;
  void discard_snapshot(std::int32_t snapshot) { snapshots_.release(snapshot); }

  // Makes the first num_tokens tokens (a multiple of block_tokens(), all prompt rows, computed)
  // known. pages: the sequence's pages in order, at least those of num_tokens. A block that is
  // known already keeps its pages: the caller's stay private. snapshot (or kNoSnapshot): state at
  // num_tokens; given back if that block has one already.
  void publish(std::span<const std::int32_t> tokens, int num_tokens,
               std::span<const std::int32_t> pages, std::int32_t snapshot);

  // Evicts least recently used blocks until the pool has num_free pages, or nothing idle is left;
  // true if it has. Blocks in use by sequences go only when they keep idle ancestors from going.
  bool evict_until_free(int num_free);
  // Forgets everything; pages in use stay with their sequences, reserved snapshots with theirs.
  void clear();

  int num_blocks() const { return num_nodes_; }
  const SnapshotPool& snapshots() const { return snapshots_; }
  int num_owned_snapshots() const;  // restorable; the other taken ones are reserved
  // Throws Error{kInternal} unless the trie, the hash chains, the recency order, page references
  // and snapshots agree.
  void check_integrity() const;

 private:
  static constexpr std::int32_t kNone = -1;
  static constexpr std::int32_t kRoot = -1;

  struct Node {
    std::int32_t parent = kRoot;
    std::int32_t num_children = 0;
    std::int32_t snapshot = kNoSnapshot;
    std::int32_t depth = 0;  // blocks up to and including this one
    std::int32_t bucket = 0;
    std::int32_t next_in_bucket = kNone;
    std::int32_t older = kNone;  // neighbours in the recency list
    std::int32_t newer = kNone;
  };

  Node& node(std::int32_t id) { return nodes_[static_cast<std::size_t>(id)]; }
  const Node& node(std::int32_t id) const { return nodes_[static_cast<std::size_t>(id)]; }
  std::span<const std::int32_t> node_tokens(std::int32_t id) const;
  std::span<const std::int32_t> node_pages(std::int32_t id) const;
  std::int32_t bucket_of(std::int32_t parent, std::span<const std::int32_t> block) const;
  std::int32_t find_child(std::int32_t parent, std::span<const std::int32_t> block) const;
  std::int32_t find(std::span<const std::int32_t> tokens, int num_tokens) const;
  std::int32_t insert(std::int32_t parent, std::span<const std::int32_t> block,
                      std::span<const std::int32_t> pages);
  void erase(std::int32_t id);
  void touch_path(std::int32_t id);
  void link_newest(std::int32_t id);
  void unlink(std::int32_t id);
  bool is_idle(std::int32_t id) const;

  PagePool& pool_;
  SnapshotPool snapshots_;
  int block_tokens_;
  int block_pages_ = 0;
  // Nodes hold disjoint sets of pages, so there are at most num_pages / block_pages of them.
  std::vector<Node> nodes_;
  std::vector<std::int32_t> tokens_;      // [nodes, block_tokens]
  std::vector<std::int32_t> pages_;       // [nodes, block_pages]
  std::vector<std::int32_t> free_nodes_;  // stack
  std::vector<std::int32_t> buckets_;     // [power of two], first node of each hash chain
  // Recency list. A node's ancestors are always newer than the node: whoever uses it uses them too.
  std::int32_t oldest_ = kNone;
  std::int32_t newest_ = kNone;
  int num_nodes_ = 0;
  std::vector<std::int32_t> snapshot_owners_;     // [num_snapshots], kNone: free or reserved
  std::vector<std::int64_t> snapshot_last_uses_;  // [num_snapshots], logical time
  std::int64_t num_snapshot_uses_ = 0;
};

}  // namespace tandem
