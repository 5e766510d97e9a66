// One decision a test: what a plan says in a situation made by hand.
#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "base/error.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Tokens = std::vector<std::int32_t>;

Tokens iota(int first, int count) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

Tokens join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

SchedulerLimits base_limits() {
  return {.max_sequences = 4,
          .max_batched_tokens = 2048,
          .max_context = 4096,
          .max_long_prefills = 1,
          .long_prefill_tokens = 1000,
          .page_tokens = 16,
          .num_pages = 1024,
          .draft_tokens = 0,
          .max_round_rows = 4,
          .num_snapshots = 8};
}

// A scheduler and the least of an engine: every token is accepted, token values do not matter.
class Harness {
 public:
  explicit Harness(const SchedulerLimits& limits) : scheduler(limits) {}

  Sequence& add(const Tokens& prompt, int max_tokens = 100) {
    Request& request = requests_.emplace_back();
    request.prompt_ids = prompt;
    request.sampling.max_tokens = max_tokens;
    Sequence& seq = sequences_.emplace_back(make_sequence(
        request, static_cast<int>(sequences_.size()), scheduler.limits().max_context));
    refusal = scheduler.add(seq);
    return seq;
  }

  const StepPlan& plan(Admission admission = Admission::kOpen) {
    const StepPlan& plan = scheduler.plan_step(admission);
    scheduler.check_integrity();
    return plan;
  }

  void report(const StepPlan& plan) {
    for (const auto& chunk : plan.chunks) {
      if (chunk.yields_token) chunk.seq->tokens.push_back(1);
      scheduler.complete_chunk(chunk);
    }
    for (const auto& entry : plan.rounds) {
      if (!entry.forced) {
        for (int i = 0; i < entry.num_rows; ++i) entry.seq->tokens.push_back(1);
        entry.seq->num_drafts = 0;
      }
      scheduler.complete_round(entry, entry.num_rows);
    }
    scheduler.check_integrity();
  }

  void step(int n = 1) {
    for (; n > 0; --n) report(plan());
  }

  // Until the prompt is done; for a scheduler that has nothing else to do.
  void prefill(Sequence& seq) {
    while (seq.state == SequenceState::kWaiting || seq.state == SequenceState::kPrefilling) step();
  }

  Scheduler scheduler;
  std::optional<std::string> refusal;

 private:
  std::deque<Request> requests_;
  std::deque<Sequence> sequences_;
};

// "index:start-end", "*" where a snapshot is saved.
std::vector<std::string> chunks_of(const StepPlan& plan) {
  std::vector<std::string> out;
  for (const auto& c : plan.chunks) {
    out.push_back(fmt::format("{}:{}-{}{}", c.seq->index, c.start, c.end(),
                              c.save_snapshot == kNoSnapshot ? "" : "*"));
  }
  return out;
}

// "index:start+rows", "!" for forced ones.
std::vector<std::string> rounds_of(const StepPlan& plan) {
  std::vector<std::string> out;
  for (const auto& r : plan.rounds) {
    out.push_back(
        fmt::format("{}:{}+{}{}", r.seq->index, r.start, r.num_rows, r.forced ? "!" : ""));
  }
  return out;
}

TEST(SchedulerAdd, RefusesWhatNeverFitsWithTheNumbers) {
  auto limits = base_limits();
  limits.num_pages = 10;
  Harness h(limits);
  h.add(iota(0, 100), 61);
  ASSERT_TRUE(h.refusal.has_value());
  EXPECT_THAT(*h.refusal, HasSubstr("needs 11 KV pages (100 prompt tokens and up to 61 more"));
  EXPECT_THAT(*h.refusal, HasSubstr("the pool has 10 (160 tokens)"));
  EXPECT_TRUE(h.scheduler.idle());
  h.add(iota(0, 100), 60);
  EXPECT_EQ(h.refusal, std::nullopt);
  EXPECT_EQ(h.scheduler.num_waiting(), 1);
}

TEST(SchedulerAdd, RefusesPromptsThatFillTheContext) {
  Harness h(base_limits());
  h.add(iota(0, 4096));
  ASSERT_TRUE(h.refusal.has_value());
  EXPECT_THAT(*h.refusal, HasSubstr("4096 tokens"));
  EXPECT_EQ(h.add(iota(0, 4095)).limit_len, 4096);
  EXPECT_EQ(h.refusal, std::nullopt);
}

TEST(SchedulerPrefill, CutsAtBlocksAndForTheLastSnapshot) {
  auto limits = base_limits();
  limits.max_batched_tokens = 100;
  Harness h(limits);
  h.add(iota(0, 200));
  std::vector<std::string> all;
  for (int i = 0; i < 4; ++i) {
    const auto& plan = h.plan();
    ASSERT_EQ(plan.chunks.size(), 1u);
    EXPECT_EQ(plan.chunks[0].yields_token, i == 3);
    EXPECT_EQ(plan.resets.size(), i == 0 ? 1u : 0u);
    all.push_back(chunks_of(plan)[0]);
    h.report(plan);
  }
  EXPECT_THAT(all, ElementsAre("0:0-64", "0:64-128", "0:128-192*", "0:192-200"));
}

TEST(SchedulerPrefill, PromptsShareAPass) {
  auto limits = base_limits();
  limits.max_batched_tokens = 256;
  limits.prefix_cache = false;
  Harness h(limits);
  h.add(iota(0, 90));
  h.add(iota(1000, 30));
  h.add(iota(2000, 200));
  EXPECT_THAT(chunks_of(h.plan()), ElementsAre("0:0-90", "1:0-30", "2:0-128"));
}

TEST(SchedulerPrefill, BelowABlockChunksEndAnywhere) {
  auto limits = base_limits();
  limits.max_batched_tokens = 50;
  Harness h(limits);
  h.add(iota(0, 70));
  EXPECT_THAT(chunks_of(h.plan()), ElementsAre("0:0-50"));
  h.report(h.plan());
  EXPECT_THAT(chunks_of(h.plan()), ElementsAre("0:50-64*"));
}

TEST(SchedulerPrefill, RoundsComeFirstButPromptsKeepABlock) {
  auto limits = base_limits();
  limits.max_batched_tokens = 128;
  limits.prefix_cache = false;
  Harness h(limits);
  h.prefill(h.add(iota(0, 10)));
  h.add(iota(1000, 500));
  const auto& plan = h.plan();
  EXPECT_THAT(rounds_of(plan), ElementsAre("0:10+1"));
  EXPECT_THAT(chunks_of(plan), ElementsAre("1:0-64"));  // 127 rows left, cut to a block
  EXPECT_EQ(plan.num_round_rows, 1);
  EXPECT_EQ(plan.num_prompt_rows, 64);

  limits.max_batched_tokens = 64;
  Harness small(limits);
  small.prefill(small.add(iota(0, 10)));
  small.add(iota(1000, 500));
  EXPECT_THAT(chunks_of(small.plan()), ElementsAre("1:0-64"));
}

TEST(SchedulerRound, DraftsAreClippedByDepthAndByTheLimit) {
  auto limits = base_limits();
  limits.draft_tokens = 3;
  Harness h(limits);
  Sequence& seq = h.add(iota(0, 10), 5);
  h.prefill(seq);
  ASSERT_EQ(seq.len(), 11);
  seq.num_drafts = 5;
  const RoundEntry entry = h.plan().rounds.at(0);
  EXPECT_EQ(entry.num_rows, 4);
  h.scheduler.complete_round(entry, 2);
  seq.tokens.insert(seq.tokens.end(), {1, 1});
  // Two more tokens are wanted: a draft and its successor.
  EXPECT_THAT(rounds_of(h.plan()), ElementsAre("0:12+2"));
}

TEST(SchedulerRound, OwnsPagesForTheDrafterAhead) {
  auto limits = base_limits();
  limits.draft_tokens = 3;
  limits.page_tokens = 4;
  Harness h(limits);
  Sequence& seq = h.add(iota(0, 8), 100);
  h.prefill(seq);
  EXPECT_EQ(seq.pages.size(), 3u);  // positions 0 ... 8 + 3
  seq.num_drafts = 3;
  h.plan();
  EXPECT_EQ(seq.pages.size(), 4u);  // 0 ... 11 + 4
  Sequence& last = h.add(iota(100, 8), 1);
  h.plan();
  EXPECT_EQ(last.pages.size(), 3u);  // never beyond its limit of 9 tokens
}

TEST(SchedulerRound, FollowsWhenNothingElseCouldBeDone) {
  auto limits = base_limits();
  limits.draft_tokens = 3;
  limits.page_tokens = 4;
  limits.num_pages = 20;
  limits.max_sequences = 2;
  Harness h(limits);
  Sequence& seq = h.add(iota(0, 8), 60);
  h.prefill(seq);
  seq.num_drafts = 3;
  h.plan();
  EXPECT_EQ(seq.pages.size(), 4u);  // 0 ... 11 + 4
  EXPECT_TRUE(h.scheduler.reserve_following_round());
  EXPECT_EQ(seq.pages.size(), 5u);  // 0 ... 15 + 4
  h.scheduler.check_integrity();
  EXPECT_TRUE(h.scheduler.reserve_following_round());
  EXPECT_EQ(seq.pages.size(), 5u) << "they are owned already";

  // Somebody could be admitted.
  Sequence& waiting = h.add(iota(100, 8), 4);
  EXPECT_FALSE(h.scheduler.reserve_following_round());
  // Nobody can, but a prompt is under way.
  h.scheduler.complete_round(h.scheduler.round_entry(seq), 1);
  seq.tokens.push_back(1);
  h.plan();
  EXPECT_EQ(waiting.state, SequenceState::kPrefilling);
  EXPECT_FALSE(h.scheduler.reserve_following_round());
}

// Who waits for pages keeps nobody from going on until there are some.
TEST(SchedulerRound, FollowsWhileOthersWaitForPages) {
  auto limits = base_limits();
  limits.page_tokens = 4;
  limits.num_pages = 9;
  Harness h(limits);
  Sequence& first = h.add(iota(0, 8), 8);
  Sequence& second = h.add(iota(100, 8), 8);
  h.add(iota(200, 20), 4);  // six pages
  while (second.state != SequenceState::kRunning) h.step();
  const StepPlan& plan = h.plan();
  ASSERT_EQ(h.scheduler.num_active(), 2);
  EXPECT_TRUE(h.scheduler.reserve_following_round());
  h.report(plan);
  h.plan();
  h.scheduler.finish(first);
  EXPECT_FALSE(h.scheduler.reserve_following_round()) << "now there are pages to be had";
  h.scheduler.check_integrity();
}

// Pages are taken from prefixes that nobody uses, never from a sequence.
TEST(SchedulerRound, DoesNotFollowAtTheCostOfAPreemption) {
  auto limits = base_limits();
  limits.page_tokens = 4;
  limits.num_pages = 6;
  limits.max_sequences = 2;
  Harness h(limits);
  Sequence& older = h.add(iota(0, 8), 8);
  Sequence& younger = h.add(iota(100, 8), 8);
  h.prefill(older);
  while (younger.state != SequenceState::kRunning) h.step();
  EXPECT_EQ(h.scheduler.pages().num_free(), 0);
  std::vector<bool> follows;
  for (int round = 0; round < 3; ++round) {
    const StepPlan& plan = h.plan();
    follows.push_back(h.scheduler.reserve_following_round());
    h.scheduler.check_integrity();
    h.report(plan);
  }
  // The third round ends with a page, and the one behind it would need another.
  EXPECT_THAT(follows, ElementsAre(true, true, false));
  EXPECT_EQ(h.scheduler.num_preemptions(), 0);
}

TEST(SchedulerPrefix, HitsRestoreTheLastBlockOfAnEqualPrompt) {
  Harness h(base_limits());
  Sequence& first = h.add(iota(0, 200));
  const auto& saving = h.plan();
  const auto saved = saving.chunks.at(0).save_snapshot;
  h.report(saving);
  h.prefill(first);
  Sequence& second = h.add(iota(0, 200));
  const auto& plan = h.plan();
  ASSERT_EQ(plan.resets.size(), 1u);
  EXPECT_EQ(plan.resets[0].restore_snapshot, saved);
  EXPECT_THAT(chunks_of(plan), ElementsAre("1:192-200"));
  EXPECT_EQ(second.cached_prompt_tokens, 192);
  EXPECT_TRUE(std::equal(first.pages.begin(), first.pages.begin() + 12, second.pages.begin()));
}

TEST(SchedulerPrefix, TheLastTokenIsAlwaysComputed) {
  Harness h(base_limits());
  h.prefill(h.add(iota(0, 193)));
  Sequence& shorter = h.add(iota(0, 192));
  EXPECT_THAT(chunks_of(h.plan()), ElementsAre("1:0-128*"));  // its last reusable block
  EXPECT_EQ(shorter.cached_prompt_tokens, 0);
}

TEST(SchedulerPrefix, TheSecondVisitorOfABranchSavesItForTheThird) {
  Harness h(base_limits());
  const Tokens system = iota(0, 150);
  h.prefill(h.add(join(system, iota(1000, 200))));
  h.add(join(system, iota(2000, 200)));
  const auto& plan = h.plan();
  EXPECT_THAT(chunks_of(plan), ElementsAre("1:0-128*"));
  h.report(plan);
  h.step(2);
  Sequence& third = h.add(join(system, iota(3000, 200)));
  h.plan();
  EXPECT_EQ(third.cached_prompt_tokens, 128);
}

TEST(SchedulerPrefix, EqualPromptsSideBySideSaveOneSnapshot) {
  Harness h(base_limits());
  h.add(iota(0, 200));
  h.add(iota(0, 200));
  EXPECT_THAT(chunks_of(h.plan()), ElementsAre("0:0-192*", "1:0-200"));
}

TEST(SchedulerPrefix, LongPromptsLeaveSnapshotsOnTheWayWhileSomeAreFree) {
  auto limits = base_limits();
  limits.max_batched_tokens = 512;
  limits.num_snapshots = 2;
  Harness h(limits);
  h.add(iota(0, 3000));
  std::vector<std::string> all;
  for (int i = 0; i < 6; ++i) {
    const auto& plan = h.plan();
    all.push_back(chunks_of(plan).at(0));
    h.report(plan);
  }
  EXPECT_THAT(all, ElementsAre("0:0-512", "0:512-1024*", "0:1024-1536", "0:1536-2048*",
                               "0:2048-2560", "0:2560-2944*"));
}

TEST(SchedulerPrefix, SnapshotsOnTheWayEndWholeBlocks) {
  auto limits = base_limits();
  limits.page_tokens = 256;
  limits.num_pages = 64;
  limits.max_batched_tokens = 1100;
  Harness h(limits);
  h.add(iota(0, 3400));
  std::vector<std::string> all;
  for (int i = 0; i < 4; ++i) {
    const auto& plan = h.plan();
    all.push_back(chunks_of(plan).at(0));
    h.report(plan);
  }
  EXPECT_THAT(all, ElementsAre("0:0-1088", "0:1088-2176", "0:2176-3264", "0:3264-3328*"));
}

TEST(SchedulerPrefix, GeneratedPositionsAreNeverShared) {
  Harness h(base_limits());
  Sequence& seq = h.add(iota(0, 60), 100);
  h.step(90);
  ASSERT_GT(seq.len(), 140);
  Sequence& next_turn = h.add(join(seq.tokens, iota(500, 20)));
  h.plan();
  EXPECT_EQ(next_turn.cached_prompt_tokens, 0);
}

TEST(SchedulerPrefix, ACancelledChunkGivesItsSnapshotBack) {
  Harness h(base_limits());
  Sequence& seq = h.add(iota(0, 200));
  h.plan();
  ASSERT_NE(seq.pending_snapshot, kNoSnapshot);
  h.scheduler.cancel(seq);
  EXPECT_EQ(h.scheduler.prefixes().snapshots().num_free(), 8);
  EXPECT_EQ(h.scheduler.pages().num_free(), 1024);
  EXPECT_TRUE(h.scheduler.idle());
  h.scheduler.check_integrity();
}

TEST(SchedulerAdmission, LongPromptsWaitForEachOtherAndShortOnesOvertake) {
  auto limits = base_limits();
  limits.max_batched_tokens = 1024;
  limits.prefix_cache = false;
  Harness h(limits);
  Sequence& first_long = h.add(iota(0, 3000));
  Sequence& second_long = h.add(iota(10000, 3000));
  h.add(iota(20000, 100));
  const auto& plan = h.plan();
  // The short prompt's rows are set aside, the first long one gets the rest.
  EXPECT_THAT(chunks_of(plan), ElementsAre("0:0-896", "2:0-100"));
  h.report(plan);
  h.step(2);
  EXPECT_EQ(second_long.state, SequenceState::kWaiting);
  ASSERT_GT(first_long.num_computed, 2000);  // no longer long
  h.plan();
  EXPECT_EQ(second_long.state, SequenceState::kPrefilling);
}

TEST(SchedulerAdmission, ShortPromptsLeaveLongOnesHalfThePass) {
  auto limits = base_limits();
  limits.max_batched_tokens = 512;
  limits.prefix_cache = false;
  Harness h(limits);
  h.add(iota(0, 3000));
  for (int i = 1; i < 4; ++i) h.add(iota(10000 * i, 900));
  EXPECT_THAT(chunks_of(h.plan()), ElementsAre("0:0-256", "1:0-256"));
}

TEST(SchedulerAdmission, LeavesPagesForARoundOfThoseThatRun) {
  auto limits = base_limits();
  limits.num_pages = 7;
  limits.draft_tokens = 3;
  limits.prefix_cache = false;
  Harness h(limits);
  Sequence& running = h.add(iota(0, 40), 60);  // at most 100 tokens: 7 pages
  h.prefill(running);
  while (running.len() < 55) h.step();
  ASSERT_EQ(running.pages.size(), 4u);
  Sequence& newcomer = h.add(iota(1000, 30), 10);  // 3 pages, and 3 are free
  h.step();
  EXPECT_EQ(running.pages.size(), 4u);
  EXPECT_FALSE(newcomer.is_active()) << "would be preempted in the next round but one";
  h.scheduler.finish(running);
  h.step();
  EXPECT_TRUE(newcomer.is_active());
}

TEST(SchedulerAdmission, ConcurrencyCanChangeBetweenSteps) {
  Harness h(base_limits());
  for (int i = 0; i < 4; ++i) h.add(iota(1000 * i, 10));
  h.scheduler.set_concurrency(1);
  h.step();
  EXPECT_EQ(h.scheduler.num_active(), 1);
  h.scheduler.set_concurrency(3);
  h.step();
  EXPECT_EQ(h.scheduler.num_active(), 3);
  h.scheduler.set_concurrency(2);
  h.step();
  EXPECT_EQ(h.scheduler.num_active(), 3);  // nobody is preempted for it
  EXPECT_EQ(h.scheduler.num_waiting(), 1);
  EXPECT_THROW(h.scheduler.set_concurrency(5), Error);
}

TEST(SchedulerAdmission, ClosedAdmissionFinishesWhatRuns) {
  Harness h(base_limits());
  h.scheduler.set_concurrency(1);
  Sequence& first = h.add(iota(0, 10));
  h.add(iota(100, 10));
  h.step();
  EXPECT_THAT(rounds_of(h.plan(Admission::kClosed)), ElementsAre("0:10+1"));
  h.scheduler.finish(first);
  EXPECT_TRUE(h.plan(Admission::kClosed).empty());
  EXPECT_FALSE(h.scheduler.idle());
  EXPECT_THAT(chunks_of(h.plan()), ElementsAre("1:0-10"));
}

TEST(SchedulerAdmission, SlotsAreHandedOutLowestFirst) {
  Harness h(base_limits());
  Sequence& a = h.add(iota(0, 10));
  Sequence& b = h.add(iota(100, 10));
  h.step();
  EXPECT_EQ(a.slot, 0);
  EXPECT_EQ(b.slot, 1);
  h.scheduler.finish(a);
  Sequence& c = h.add(iota(200, 10));
  h.step();
  EXPECT_EQ(c.slot, 0);
}

// Two sequences of up to 160 tokens, a pool for 240.
class SchedulerPreemption : public testing::Test {
 protected:
  static SchedulerLimits narrow_limits() {
    auto limits = base_limits();
    limits.num_pages = 15;
    return limits;
  }
  void run_until_preemption() {
    while (h.scheduler.num_preemptions() == 0) {
      younger.num_drafts = 1;  // more than the depth of 0: never verified
      h.step();
    }
  }

  Harness h{narrow_limits()};
  Sequence& older = h.add(iota(0, 70), 90);
  Sequence& younger = h.add(iota(1000, 70), 90);
};

TEST_F(SchedulerPreemption, TakesTheYoungestAndKeepsItsTokens) {
  run_until_preemption();
  EXPECT_EQ(older.state, SequenceState::kRunning);
  EXPECT_EQ(younger.state, SequenceState::kWaiting);
  EXPECT_EQ(younger.num_preemptions, 1);
  EXPECT_GT(younger.num_generated(), 40);
  EXPECT_EQ(younger.slot, -1);
  EXPECT_EQ(younger.num_drafts, 0);
  EXPECT_THAT(younger.pages, IsEmpty());
}

TEST_F(SchedulerPreemption, ComesBackWithPromptRowsThenForcedRounds) {
  run_until_preemption();
  const int len = younger.len();
  // Not before there is room for all of it.
  EXPECT_EQ(h.scheduler.num_active(), 1);
  h.scheduler.finish(older);

  const auto& back = h.plan();
  ASSERT_EQ(back.chunks.size(), 1u);
  EXPECT_TRUE(back.chunks[0].ends_prompt);
  EXPECT_FALSE(back.chunks[0].yields_token);
  h.report(back);
  EXPECT_EQ(younger.state, SequenceState::kRecomputing);
  int position = 70;
  while (younger.state == SequenceState::kRecomputing) {
    const auto& plan = h.plan();
    ASSERT_EQ(plan.rounds.size(), 1u);
    EXPECT_TRUE(plan.rounds[0].forced);
    EXPECT_EQ(plan.rounds[0].start, position);
    position += plan.rounds[0].num_rows;
    h.report(plan);
  }
  EXPECT_EQ(position, len - 1);
  EXPECT_EQ(younger.len(), len);
  EXPECT_FALSE(h.plan().rounds.at(0).forced);
}

TEST_F(SchedulerPreemption, ComesBackBeforeThoseThatNeverRan) {
  h.scheduler.set_concurrency(2);
  Sequence& newcomer = h.add(iota(2000, 10), 10);
  run_until_preemption();
  h.step(3);
  EXPECT_FALSE(newcomer.is_active()) << "overtook for lack of pages";
  h.scheduler.finish(older);
  h.scheduler.set_concurrency(1);
  h.plan();
  EXPECT_TRUE(younger.is_active());
  EXPECT_FALSE(newcomer.is_active());
}

TEST_F(SchedulerPreemption, IdlePrefixesGoBeforeSequences) {
  auto limits = narrow_limits();
  limits.num_pages = 20;
  Harness roomy(limits);
  Sequence& gone = roomy.add(iota(5000, 129), 10);
  roomy.prefill(gone);
  roomy.scheduler.finish(gone);
  ASSERT_EQ(roomy.scheduler.pages().num_idle(), 8);
  roomy.add(iota(0, 70), 90);
  roomy.add(iota(1000, 70), 90);
  roomy.step(80);
  EXPECT_EQ(roomy.scheduler.num_preemptions(), 0);
  EXPECT_EQ(roomy.scheduler.prefixes().num_blocks(), 2);  // only those in use
}

TEST(SchedulerContract, ReportsMustMatchThePlan) {
  Harness h(base_limits());
  Sequence& seq = h.add(iota(0, 200));
  const PromptChunk chunk = h.plan().chunks.at(0);
  EXPECT_THROW(h.plan(), Error);  // the chunk and its snapshot are not reported
  h.scheduler.complete_chunk(chunk);
  EXPECT_THROW(h.scheduler.complete_chunk(chunk), Error);
  h.prefill(seq);
  const RoundEntry entry = h.plan().rounds.at(0);
  EXPECT_THROW(h.scheduler.complete_round(entry, 0), Error);
  EXPECT_THROW(h.scheduler.complete_round(entry, 2), Error);
  h.scheduler.finish(seq);
  EXPECT_THROW(h.scheduler.finish(seq), Error);
}

}  // namespace
}  // namespace tandem
