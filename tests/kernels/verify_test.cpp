// The bookkeeping of rounds against a plain account of what a round does, written over vectors: for
// drafts of every fate, limits, stop ids, empty places and tokens that are known.
#include "kernels/ops/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr int kSlots = 5;
constexpr std::int32_t kStop = 7;
constexpr std::int32_t kUntouched = -77;

// Row arrays of `rows` rows and `segments` segments that nothing has written yet.
struct Rows {
  Rows(int rows, int num_segments)
      : tokens(static_cast<std::size_t>(rows), kUntouched),
        positions(tokens),
        slots(tokens),
        segments(static_cast<std::size_t>(num_segments)) {}
  ops::RowArrays arrays() {
    return {.token_ids = tokens.data(),
            .positions = positions.data(),
            .row_slots = slots.data(),
            .segments = segments.data()};
  }
  // Segment `place` is these tokens from `start` on; the rest of the place is padding.
  void expect_place(int place, int rows, int slot, int start, const Tokens& expected) const {
    const auto& segment = segments[static_cast<std::size_t>(place)];
    EXPECT_EQ(segment.first_row, place * rows);
    EXPECT_EQ(segment.num_rows, std::ssize(expected)) << "place " << place;
    if (!expected.empty()) {
      EXPECT_EQ(segment.slot, slot);
      EXPECT_EQ(segment.start_position, start);
    }
    for (int i = 0; i < rows; ++i) {
      const auto row = static_cast<std::size_t>(place * rows + i);
      const bool used = i < std::ssize(expected);
      EXPECT_EQ(tokens[row], used ? expected[static_cast<std::size_t>(i)] : 0);
      EXPECT_EQ(positions[row], used ? start + i : ops::kNoPosition);
      EXPECT_TRUE(used ? slots[row] == slot : slots[row] >= 0 && slots[row] < kSlots);
    }
  }

  Vector<std::int32_t> tokens, positions, slots;
  Vector<ops::Segment> segments;
};

ops::RoundSlot slot_with(std::int32_t last, int position, const Tokens& drafts, int limit) {
  ops::RoundSlot slot;
  slot.last_token = last;
  slot.position = position;
  slot.limit_len = limit;
  slot.num_drafts = static_cast<std::int32_t>(drafts.size());
  std::ranges::copy(drafts, slot.drafts);
  slot.sampling.temperature = 0.5f;
  return slot;
}

class Verify : public ::testing::Test {
 protected:
  ops::RoundPlaces places(int rows) {
    return {.num_places = static_cast<int>(order_.size()),
            .rows = rows,
            .slots = order_.data(),
            .table = table_.data()};
  }
  // The round of the places, with what was sampled in each row of them.
  void verify(int rows, const std::vector<Tokens>& sampled, int depth) {
    results_.assign(order_.size() * static_cast<std::size_t>(rows), {});
    for (std::size_t place = 0; place < sampled.size(); ++place) {
      for (std::size_t i = 0; i < sampled[place].size(); ++i) {
        results_[place * static_cast<std::size_t>(rows) + i] = {sampled[place][i],
                                                                -0.25f * static_cast<float>(i + 1)};
      }
    }
    depth_[0] = depth;
    certain_ = Rows(static_cast<int>(order_.size()) * rows, static_cast<int>(order_.size()));
    last_rows_.assign(order_.size(), kUntouched);
    records_.assign(order_.size(), {});
    ops::VerifyArgs args;
    args.places = places(rows);
    args.sampled = results_.data();
    args.stop_ids = stop_ids_.data();
    args.num_stop_ids = static_cast<int>(stop_ids_.size());
    args.depth = depth_.data();
    args.pending_rows = pending_.data();
    args.records = records_.data();
    args.certain = certain_.arrays();
    args.last_rows = last_rows_.data();
    ops::verify(*backend_, args);
  }

  std::unique_ptr<Backend> backend_ = test_backend(1);
  Vector<ops::RoundSlot> table_ = Vector<ops::RoundSlot>(kSlots);
  Vector<std::int32_t> order_, pending_ = Vector<std::int32_t>(kSlots, kUntouched);
  Vector<std::int32_t> stop_ids_{kStop, 9}, depth_{0}, last_rows_;
  Vector<ops::SampleResult> results_;
  Vector<ops::RoundRecord> records_;
  Rows certain_{0, 0};
};

TEST_F(Verify, LaysOutLastTokenAndDraftsOfEveryPlace) {
  table_[3] = slot_with(11, 40, {12, 13}, 100);
  table_[1] = slot_with(21, 5, {}, 100);
  table_[2] = slot_with(31, 6, {32}, 100);
  table_[2].ended = 1;
  order_ = {3, ops::kNoSlot, 1, 2};
  Rows rows(12, 4);
  Vector<ops::SampleParams> params(12);
  ops::lay_out_round(*backend_,
                     {.places = places(3), .out = rows.arrays(), .params = params.data()});
  rows.expect_place(0, 3, 3, 40, {11, 12, 13});
  rows.expect_place(1, 3, 0, 0, {});
  rows.expect_place(2, 3, 1, 5, {21});
  rows.expect_place(3, 3, 2, 6, {});
  // Row i yields the token behind its own position; padding must not cost a draw.
  for (const auto& [row, position] : {std::pair{0u, 41u}, {1u, 42u}, {2u, 43u}, {6u, 6u}}) {
    EXPECT_EQ(params[row].position, position);
    EXPECT_EQ(params[row].temperature, 0.5f);
  }
  for (const std::size_t row : {3u, 7u, 9u}) EXPECT_EQ(params[row].temperature, 0.0f);
  // As many as fit: one row for a drafter that starts behind the last token.
  Rows narrow(4, 4);
  ops::lay_out_round(*backend_, {.places = places(1), .out = narrow.arrays()});
  narrow.expect_place(0, 1, 3, 40, {11});
}

// Every number of drafts, every number of right ones.
TEST_F(Verify, AcceptsTheLeadingDraftsThatEqualTheSample) {
  constexpr int kRows = 5;
  order_ = {2};
  for (int drafts = 0; drafts < kRows; ++drafts) {
    for (int right = 0; right <= drafts; ++right) {
      Tokens proposed, sampled;
      for (int i = 0; i < drafts; ++i) {
        proposed.push_back(100 + i);
        // Behind the first wrong one equal tokens mean nothing.
        sampled.push_back(i == right ? 200 : 100 + i);
      }
      sampled.push_back(300);
      table_[2] = slot_with(50, 20, proposed, 1000);
      verify(kRows, {sampled}, 3);
      const Tokens expected(sampled.begin(), sampled.begin() + right + 1);

      const auto& record = records_[0];
      EXPECT_EQ(record.slot, 2);
      EXPECT_EQ(record.position, 20);
      EXPECT_EQ(record.num_drafts, drafts);
      EXPECT_EQ(record.accepted, right);
      EXPECT_EQ(record.next_num_drafts, 3);
      EXPECT_EQ(Tokens(record.drafts, record.drafts + drafts), proposed);
      EXPECT_EQ(Tokens(record.tokens, record.tokens + right + 1), expected);
      for (int i = 0; i <= right; ++i) {
        EXPECT_EQ(record.logprobs[i], -0.25f * static_cast<float>(i + 1));
      }
      const auto& slot = table_[2];
      EXPECT_EQ(slot.last_token, expected.back());
      EXPECT_EQ(slot.position, 21 + right);
      EXPECT_EQ(slot.num_drafts, 3);
      EXPECT_EQ(slot.ended, 0);
      EXPECT_EQ(pending_,
                (Vector<std::int32_t>{kUntouched, kUntouched, right + 1, kUntouched, kUntouched}));
      certain_.expect_place(0, kRows, 2, 21, expected);
      EXPECT_EQ(last_rows_[0], right);
    }
  }
}

TEST_F(Verify, EndsAtTheLimitAndAtStopIdsOfThoseWhoStop) {
  order_ = {0, 1, 2, 3, 4};
  for (int slot = 0; slot < kSlots; ++slot) {
    table_[static_cast<std::size_t>(slot)] = slot_with(50, 20, {51, 52}, 1000);
  }
  table_[0].limit_len = 24;  // of positions up to 23, the last token's
  table_[1].limit_len = 26;
  table_[2].stops = table_[4].stops = 1;
  const Tokens all = {51, 52, 53};
  verify(3, {all, all, {51, kStop, 53}, {51, kStop, 53}, all}, 4);
  EXPECT_EQ(table_[0].ended, 1);
  for (int place = 0; place < kSlots; ++place) {
    const auto p = static_cast<std::size_t>(place);
    EXPECT_EQ(records_[p].ended, table_[p].ended);
  }
  certain_.expect_place(0, 3, 0, 21, {});
  // Position 23, limit 26: one draft and the token behind it are left.
  EXPECT_EQ(table_[1].ended, 0);
  EXPECT_EQ(table_[1].num_drafts, 1);
  EXPECT_EQ(records_[1].next_num_drafts, 1);
  EXPECT_EQ(table_[2].ended, 1);
  EXPECT_EQ(records_[2].accepted, 1);  // a wrong draft: the stop id itself was sampled
  EXPECT_EQ(table_[3].ended, 0);       // who ignores stop ids goes on
  EXPECT_EQ(table_[4].ended, 0);
  EXPECT_EQ(table_[4].num_drafts, 4);

  // An ended slot has no rows and stays as it is.
  const ops::RoundSlot before = table_[0];
  order_ = {0, ops::kNoSlot};
  verify(3, {all, all}, 4);
  EXPECT_EQ(table_[0].position, before.position);
  for (int place = 0; place < 2; ++place) {
    EXPECT_EQ(records_[static_cast<std::size_t>(place)].slot, ops::kNoSlot);
    certain_.expect_place(place, 3, 0, 0, {});
    EXPECT_EQ(last_rows_[static_cast<std::size_t>(place)], place * 3);  // a row that exists
  }
}

// A stop id among accepted drafts ends the slot, whatever comes behind it.
TEST_F(Verify, SeesStopIdsAmongAcceptedDrafts) {
  order_ = {1};
  table_[1] = slot_with(50, 20, {kStop, 52}, 1000);
  table_[1].stops = 1;
  verify(3, {{kStop, 52, 53}}, 4);
  EXPECT_EQ(records_[0].accepted, 2);
  EXPECT_EQ(table_[1].ended, 1);
  EXPECT_EQ(table_[1].num_drafts, 0);
}

TEST_F(Verify, KnownTokensAreAcceptedWithoutASample) {
  order_ = {1};
  table_[1] = slot_with(50, 20, {kStop, 52}, 1000);
  table_[1].stops = 1;
  table_[1].known_next = 60;
  ops::VerifyArgs args;
  args.places = places(3);
  args.stop_ids = stop_ids_.data();
  args.num_stop_ids = 2;
  args.depth = depth_.data();
  args.pending_rows = pending_.data();
  records_.assign(1, {});
  args.records = records_.data();
  ops::verify(*backend_, args);  // no drafter either
  EXPECT_EQ(table_[1].last_token, 60);
  EXPECT_EQ(table_[1].position, 23);
  EXPECT_EQ(table_[1].ended, 0) << "it went on the first time";
  EXPECT_EQ(table_[1].known_next, ops::kSampled);
  EXPECT_EQ(pending_[1], 3);
  if (on_gpu()) return;
  EXPECT_THROW(ops::verify(*backend_, args), Error);  // now something must have been sampled
}

// The drafter's chain: two ranks' parts, slots that want different numbers of drafts.
TEST_F(Verify, ProposesWhatTheSlotsWantAndLaysOutTheNextStep) {
  order_ = {4, ops::kNoSlot, 0, 2};
  table_[4] = slot_with(50, 20, {1, 1, 1}, 1000);
  table_[0] = slot_with(60, 30, {1}, 1000);
  table_[2] = slot_with(70, 40, {}, 1000);
  const Vector<ops::ArgmaxResult> best = {{1.0f, 10}, {9.0f, 11}, {2.0f, 12}, {3.0f, 13},
                                          {1.5f, 20}, {9.5f, 21}, {2.0f, 22}, {4.0f, 23}};
  const auto step = [&](int index) {
    Rows next(4, 4);
    ops::propose(*backend_, {.places = places(1),
                             .best = best.data(),
                             .num_ranks = 2,
                             .index = index,
                             .next = next.arrays()});
    return next;
  };
  const Rows first = step(0);
  EXPECT_EQ(table_[4].drafts[0], 20);
  EXPECT_EQ(table_[0].drafts[0], 12) << "a tie goes to the lower id";
  first.expect_place(0, 1, 4, 21, {20});
  for (const int place : {1, 2, 3}) first.expect_place(place, 1, 0, 0, {});
  const Rows second = step(1);
  EXPECT_EQ(table_[4].drafts[1], 20);
  EXPECT_EQ(table_[0].drafts[1], 0) << "it wants one";
  second.expect_place(0, 1, 4, 22, {20});
  step(2).expect_place(0, 1, 4, 0, {});  // nothing behind the last
  EXPECT_EQ(table_[4].drafts[2], 20);
}

TEST_F(Verify, RefusesWhatDoesNotFit) {
  order_ = {0};
  table_[0] = slot_with(1, 1, {2, 3}, 10);
  if (!on_gpu()) {
    EXPECT_THROW(verify(2, {{2, 3}}, 0), Error);  // two drafts need three rows
  }
  ops::LayOutRoundArgs too_many;
  too_many.places = places(ops::kMaxRoundRows + 1);
  EXPECT_THROW(ops::lay_out_round(*backend_, too_many), Error);
  ops::ProposeArgs nothing;
  nothing.places = places(1);
  EXPECT_THROW(ops::propose(*backend_, nothing), Error);
}

}  // namespace
}  // namespace tandem::testing
