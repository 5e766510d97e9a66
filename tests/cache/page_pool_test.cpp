#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "cache/snapshot_pool.h"

namespace tandem {
namespace {

TEST(PagePool, HandsOutLowestFirstAndReusesTheLastFreed) {
  PagePool pool(4);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), 2);
  pool.release(1);
  pool.release(0);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), 3);
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_THROW(pool.allocate(), Error);
}

TEST(PagePool, CountsPagesOfTheIndexAloneAsIdle) {
  PagePool pool(2);
  const auto page = pool.allocate();
  pool.retain_cached(page);
  EXPECT_EQ(pool.num_idle(), 0);  // its sequence still holds it
  EXPECT_EQ(pool.num_in_use(), 1);
  pool.release(page);
  EXPECT_EQ(pool.num_idle(), 1);
  EXPECT_EQ(pool.num_in_use(), 0);
  pool.retain(page);
  EXPECT_EQ(pool.num_idle(), 0);
  pool.release_cached(page);
  EXPECT_EQ(pool.num_free(), 1);
  pool.release(page);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(PagePool, RefusesUnbalancedUse) {
  PagePool pool(2);
  EXPECT_THROW(pool.retain(0), Error);   // free
  EXPECT_THROW(pool.release(0), Error);  // free
  EXPECT_THROW(pool.retain(2), Error);   // no such page
  const auto page = pool.allocate();
  pool.retain_cached(page);
  EXPECT_THROW(pool.retain_cached(page), Error);  // at most once
  pool.release(page);
  EXPECT_THROW(pool.release(page), Error);  // that reference is the index's
  pool.release_cached(page);
  EXPECT_THROW(pool.release_cached(page), Error);
}

TEST(PagePool, CountsStayExactInRandomUse) {
  std::mt19937 random(7);
  PagePool pool(13);
  std::vector<int> held(13);  // references of sequences
  std::vector<bool> cached(13);
  for (int step = 0; step < 20000; ++step) {
    const auto page = static_cast<std::int32_t>(random() % 13);
    const auto i = static_cast<std::size_t>(page);
    switch (random() % 5) {
      case 0:
        if (pool.num_free() > 0) ++held[static_cast<std::size_t>(pool.allocate())];
        break;
      case 1:
        if (held[i] > 0 || cached[i]) pool.retain(page), ++held[i];
        break;
      case 2:
        if (held[i] > 0) pool.release(page), --held[i];
        break;
      case 3:
        if (held[i] > 0 && !cached[i]) pool.retain_cached(page), cached[i] = true;
        break;
      default:
        if (cached[i]) pool.release_cached(page), cached[i] = false;
    }
    int num_free = 0;
    int num_idle = 0;
    for (std::size_t p = 0; p < 13; ++p) {
      ASSERT_EQ(pool.refs(static_cast<std::int32_t>(p)), held[p] + (cached[p] ? 1 : 0));
      num_free += held[p] == 0 && !cached[p] ? 1 : 0;
      num_idle += held[p] == 0 && cached[p] ? 1 : 0;
    }
    ASSERT_EQ(pool.num_free(), num_free);
    ASSERT_EQ(pool.num_idle(), num_idle);
    ASSERT_NO_THROW(pool.check_integrity());
  }
}

TEST(SnapshotPool, GivesEachIdOnce) {
  SnapshotPool pool(2);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), kNoSnapshot);
  pool.release(0);
  EXPECT_THROW(pool.release(0), Error);
  EXPECT_FALSE(pool.is_taken(0));
  EXPECT_EQ(pool.allocate(), 0);
}

}  // namespace
}  // namespace tandem
