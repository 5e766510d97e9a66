#include "cache/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/error.h"

namespace tandem {
namespace {

using Tokens = std::vector<std::int32_t>;
using Pages = std::vector<std::int32_t>;
using testing::ElementsAre;

constexpr int kBlock = 64;

// num_blocks blocks; block i is filled from contents[i].
Tokens make_tokens(std::initializer_list<int> contents) {
  Tokens tokens;
  for (const int content : contents) {
    for (int i = 0; i < kBlock; ++i) tokens.push_back(content * 1000 + i);
  }
  return tokens;
}

// An index over pages of 32 tokens (two a block), and the work of a sequence that computes a
// prompt.
class PrefixIndexTest : public testing::Test {
 protected:
  static constexpr int kPageTokens = 32;

  Pages compute(const Tokens& tokens) {
    Pages pages;
    for (std::size_t i = 0; i < tokens.size() / kPageTokens; ++i) pages.push_back(pool.allocate());
    return pages;
  }
  void release(const Pages& pages) {
    for (const auto page : pages) pool.release(page);
  }
  // Computes, publishes with a snapshot at the end, and leaves.
  std::int32_t visit(const Tokens& tokens) {
    const Pages pages = compute(tokens);
    const auto snapshot = index.reserve_snapshot(SnapshotEviction::kAllowed);
    index.publish(tokens, static_cast<int>(tokens.size()), pages, snapshot);
    release(pages);
    return snapshot;
  }
  PrefixMatch match(const Tokens& tokens) {
    return index.match(tokens, static_cast<int>(tokens.size()));
  }
  void TearDown() override {
    ASSERT_NO_THROW(pool.check_integrity());
    ASSERT_NO_THROW(index.check_integrity());
  }

  PagePool pool{12};
  PrefixIndex index{pool, kPageTokens, 2};
};

TEST_F(PrefixIndexTest, HitsEndAtTheDeepestSnapshot) {
  const Tokens tokens = make_tokens({1, 2, 3});
  const Pages pages = compute(tokens);
  index.publish(tokens, kBlock, pages, index.reserve_snapshot(SnapshotEviction::kForbidden));
  index.publish(tokens, 3 * kBlock, pages, kNoSnapshot);
  release(pages);

  const PrefixMatch found = match(make_tokens({1, 2, 9}));
  EXPECT_EQ(found.hit_tokens, kBlock);
  EXPECT_EQ(found.snapshot, 0);
  EXPECT_EQ(found.matched_tokens, 2 * kBlock);
  EXPECT_EQ(found.num_idle_pages, 2);

  Pages mine;
  index.acquire(tokens, found, mine);
  EXPECT_THAT(mine, ElementsAre(pages[0], pages[1]));
  EXPECT_EQ(pool.refs(mine[0]), 2);
  EXPECT_EQ(pool.num_idle(), 4);
  release(mine);
}

TEST_F(PrefixIndexTest, OnlyWholeBlocksBelowTheCapMatch) {
  const Tokens tokens = make_tokens({1, 2});
  visit(tokens);
  EXPECT_EQ(index.match(tokens, 2 * kBlock).hit_tokens, 2 * kBlock);
  EXPECT_EQ(index.match(tokens, 2 * kBlock - 1).matched_tokens, kBlock);
  EXPECT_EQ(index.match(tokens, 2 * kBlock - 1).hit_tokens, 0);  // no snapshot there
  EXPECT_EQ(index.match(tokens, kBlock - 1).matched_tokens, 0);
}

TEST_F(PrefixIndexTest, EqualBlocksUnderOtherParentsAreDistinct) {
  visit(make_tokens({1, 2}));
  EXPECT_EQ(match(make_tokens({2})).matched_tokens, 0);
  EXPECT_EQ(match(make_tokens({3, 2})).matched_tokens, 0);
  Tokens almost = make_tokens({1, 2});
  almost.back() += 1;
  EXPECT_EQ(match(almost).matched_tokens, kBlock);
}

TEST_F(PrefixIndexTest, PublishingAKnownPrefixKeepsItsPagesAndSnapshot) {
  const Tokens tokens = make_tokens({1});
  const Pages first = compute(tokens);
  const Pages second = compute(tokens);
  index.publish(tokens, kBlock, first, index.reserve_snapshot(SnapshotEviction::kForbidden));
  index.publish(tokens, kBlock, second, index.reserve_snapshot(SnapshotEviction::kForbidden));
  EXPECT_EQ(index.num_blocks(), 1);
  EXPECT_EQ(match(tokens).snapshot, 0);
  EXPECT_EQ(index.snapshots().num_free(), 1);
  EXPECT_TRUE(pool.is_cached(first[0]));
  EXPECT_FALSE(pool.is_cached(second[0]));
  release(first);
  release(second);
  EXPECT_EQ(pool.num_free(), 10);
}

TEST_F(PrefixIndexTest, EvictsLeastRecentlyUsedLeavesFirst) {
  visit(make_tokens({1, 2}));
  visit(make_tokens({1, 3}));
  visit(make_tokens({4}));
  Pages mine;
  const Tokens used = make_tokens({1, 3});
  index.acquire(used, match(used), mine);
  release(mine);
  EXPECT_EQ(pool.num_free(), 4);

  EXPECT_TRUE(index.evict_until_free(5));  // {1, 2}: its last use is the oldest
  EXPECT_EQ(pool.num_free(), 6);
  EXPECT_EQ(match(make_tokens({1, 2})).matched_tokens, kBlock);
  EXPECT_TRUE(index.evict_until_free(7));  // {4}
  EXPECT_EQ(match(make_tokens({4})).matched_tokens, 0);
  EXPECT_EQ(match(used).hit_tokens, 2 * kBlock);
  EXPECT_TRUE(index.evict_until_free(12));
  EXPECT_EQ(index.num_blocks(), 0);
  EXPECT_EQ(index.snapshots().num_free(), 2);
}

TEST_F(PrefixIndexTest, BlocksInUseStay) {
  const Tokens tokens = make_tokens({1, 2});
  const Pages pages = compute(tokens);
  index.publish(tokens, 2 * kBlock, pages, kNoSnapshot);
  visit(make_tokens({3}));
  EXPECT_FALSE(index.evict_until_free(12));
  EXPECT_EQ(match(tokens).matched_tokens, 2 * kBlock);
  EXPECT_EQ(match(make_tokens({3})).matched_tokens, 0);
  release(pages);
}

// A sequence that computed {1} again and went on to {1, 2} holds the second block's pages but not
// the first's. Without forgetting the second, the first could never be evicted, and a pool that
// just fits the sequence would be stuck.
TEST_F(PrefixIndexTest, IdleAncestorsOfBlocksInUseCanBeHad) {
  const Tokens first = make_tokens({1});
  const Tokens both = make_tokens({1, 2});
  const Pages other = compute(first);
  const Pages mine = compute(both);
  index.publish(first, kBlock, other, kNoSnapshot);
  index.publish(both, 2 * kBlock, mine, kNoSnapshot);
  release(other);
  EXPECT_EQ(pool.num_idle(), 2);
  EXPECT_TRUE(index.evict_until_free(8));
  EXPECT_EQ(pool.num_in_use(), 4);
  EXPECT_EQ(pool.num_free(), 8);
  release(mine);
}

TEST_F(PrefixIndexTest, SnapshotsAreEvictedByLastUse) {
  const Tokens a = make_tokens({1});
  const Tokens b = make_tokens({2});
  const Tokens c = make_tokens({3});
  const auto of_a = visit(a);
  const auto of_b = visit(b);
  Pages mine;
  index.acquire(a, match(a), mine);
  EXPECT_EQ(index.reserve_snapshot(SnapshotEviction::kForbidden), kNoSnapshot);
  EXPECT_EQ(visit(c), of_b);
  EXPECT_TRUE(index.has_snapshot(a, kBlock));
  EXPECT_FALSE(index.has_snapshot(b, kBlock));
  EXPECT_EQ(match(b).matched_tokens, kBlock);  // the block itself stays
  EXPECT_EQ(match(a).snapshot, of_a);
  release(mine);
}

TEST_F(PrefixIndexTest, ReservedSnapshotsAreNobodys) {
  const auto first = index.reserve_snapshot(SnapshotEviction::kAllowed);
  const auto second = index.reserve_snapshot(SnapshotEviction::kAllowed);
  EXPECT_NE(first, second);
  EXPECT_FALSE(index.can_reserve_snapshot());
  EXPECT_EQ(index.reserve_snapshot(SnapshotEviction::kAllowed), kNoSnapshot);
  index.discard_snapshot(first);
  EXPECT_EQ(index.reserve_snapshot(SnapshotEviction::kAllowed), first);
}

TEST_F(PrefixIndexTest, AMatchIsNoLongerGoodAfterEviction) {
  const Tokens tokens = make_tokens({1});
  visit(tokens);
  const PrefixMatch stale = match(tokens);
  index.clear();
  Pages mine;
  EXPECT_THROW(index.acquire(tokens, stale, mine), Error);
}

TEST(PrefixIndex, WithoutSnapshotsItKeepsNothing) {
  PagePool pool(2);
  PrefixIndex index(pool, 64, 0);
  const Tokens tokens = make_tokens({1});
  const Pages pages{pool.allocate()};
  index.publish(tokens, kBlock, pages, kNoSnapshot);
  EXPECT_FALSE(index.enabled());
  EXPECT_EQ(index.match(tokens, kBlock).matched_tokens, 0);
  EXPECT_FALSE(pool.is_cached(pages[0]));
}

TEST(PrefixIndex, BlocksAreWholePages) {
  PagePool pool(4);
  EXPECT_EQ(PrefixIndex(pool, 4, 1).block_tokens(), 64);
  EXPECT_EQ(PrefixIndex(pool, 64, 1).block_tokens(), 64);
  EXPECT_EQ(PrefixIndex(pool, 256, 1).block_tokens(), 256);
  EXPECT_THROW(PrefixIndex(pool, 48, 1), Error);
  EXPECT_THROW(PrefixIndex(pool, 512, 1), Error);
}

// Against a plain map from prefixes to pages: what matches is right, and nothing that must stay
// goes.
TEST(PrefixIndex, AgreesWithAMapInRandomUse) {
  std::mt19937 random(11);
  PagePool pool(24);
  PrefixIndex index(pool, 64, 3);          // one page a block
  std::map<Tokens, std::int32_t> page_of;  // prefix -> page that was first published for it
  std::map<std::int32_t, Tokens> snapshot_of;
  struct Visitor {
    Tokens tokens;
    Pages pages;
  };
  std::vector<Visitor> visitors;
  int num_hits = 0;

  for (int step = 0; step < 4000; ++step) {
    if (random() % 2 == 0 && visitors.size() < 4) {
      Visitor v;
      for (auto n = 1 + random() % 5; n > 0; --n) {
        const Tokens block = make_tokens({static_cast<int>(random() % 3)});
        v.tokens.insert(v.tokens.end(), block.begin(), block.end());
      }
      const int len = static_cast<int>(v.tokens.size());
      const PrefixMatch found = index.match(v.tokens, len);
      index.acquire(v.tokens, found, v.pages);
      ASSERT_EQ(static_cast<int>(v.pages.size()), found.hit_tokens / kBlock);
      for (std::size_t i = 0; i < v.pages.size(); ++i) {
        const Tokens prefix(v.tokens.begin(),
                            v.tokens.begin() + static_cast<std::ptrdiff_t>((i + 1) * kBlock));
        ASSERT_EQ(v.pages[i], page_of.at(prefix)) << "block " << i << " in step " << step;
      }
      if (found.hit_tokens > 0) {
        ++num_hits;
        ASSERT_EQ(snapshot_of.at(found.snapshot),
                  Tokens(v.tokens.begin(), v.tokens.begin() + found.hit_tokens));
      }
      const int num_more = len / kBlock - static_cast<int>(v.pages.size());
      if (!index.evict_until_free(num_more)) {
        for (const auto page : v.pages) pool.release(page);
        continue;
      }
      for (int i = 0; i < num_more; ++i) v.pages.push_back(pool.allocate());
      const auto snapshot =
          random() % 2 == 0 ? index.reserve_snapshot(SnapshotEviction::kAllowed) : kNoSnapshot;
      const bool had_snapshot = index.has_snapshot(v.tokens, len);
      for (int n = 1; n <= len / kBlock; ++n) {
        const Tokens prefix(v.tokens.begin(), v.tokens.begin() + std::ptrdiff_t{n} * kBlock);
        if (index.match(prefix, n * kBlock).matched_tokens < n * kBlock) {
          page_of[prefix] = v.pages[static_cast<std::size_t>(n - 1)];
        }
      }
      index.publish(v.tokens, len, v.pages, snapshot);
      if (snapshot != kNoSnapshot && !had_snapshot) snapshot_of[snapshot] = v.tokens;
      visitors.push_back(v);
    } else if (!visitors.empty()) {
      const auto i = static_cast<std::ptrdiff_t>(random() % visitors.size());
      for (const auto page : visitors[static_cast<std::size_t>(i)].pages) pool.release(page);
      visitors.erase(visitors.begin() + i);
    }
    if (step % 500 == 499) index.clear();
    ASSERT_NO_THROW(pool.check_integrity()) << "step " << step;
    ASSERT_NO_THROW(index.check_integrity()) << "step " << step;
  }
  EXPECT_GT(num_hits, 100);
  while (!visitors.empty()) {
    for (const auto page : visitors.back().pages) pool.release(page);
    visitors.pop_back();
  }
  EXPECT_TRUE(index.evict_until_free(pool.num_pages()));
}

}  // namespace
}  // namespace tandem
