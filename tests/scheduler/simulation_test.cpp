// Long random runs of scheduler and fake engine: every invariant after every step, and the same
// tokens as without any scheduling.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <random>

#include "fake_engine.h"

namespace tandem {
namespace {

constexpr int kMaxSharedTokens = 700;
constexpr int kMaxOwnTokens = 100;
constexpr int kMaxNewTokens = 300;
constexpr int kMaxContext = kMaxSharedTokens + kMaxOwnTokens + kMaxNewTokens;
constexpr int kNumRequests = 150;

struct Case {
  const char* name;
  SchedulerLimits limits;
  bool disturb = false;  // cancel, change concurrency, close admission, forget prefixes at random
  int min_preemptions = 0;  // without so many of them the runs would prove little
  int min_hits = 0;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

struct Outcome {
  std::uint64_t digest = 0;
  std::int64_t num_preemptions = 0;
  int num_restores = 0;
  int num_rejected_drafts = 0;
  int num_forced_rows = 0;
  int num_hits = 0;
  int num_steps = 0;
};

class Simulation {
 public:
  Simulation(const Case& c, std::uint32_t seed)
      : case_(c), random_(seed), scheduler_(c.limits), engine_(c.limits, seed + 1) {
    for (auto& base : bases_) {
      for (int i = 0; i < kMaxSharedTokens; ++i) base.push_back(random_token());
    }
  }

  void run(int num_requests) {
    int num_added = 0;
    const int max_steps = 400 * num_requests;
    while (num_added < num_requests || !scheduler_.idle()) {
      while (num_added < num_requests && (random_() % 3 == 0 || scheduler_.idle())) {
        add_request(num_added++);
      }
      if (case_.disturb) disturb();
      ASSERT_LT(++outcome_.num_steps, max_steps) << "no end in sight";
      const bool open = !case_.disturb || random_() % 8 != 0;
      step(open ? Admission::kOpen : Admission::kClosed);
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(scheduler_.pages().num_in_use(), 0);
    scheduler_.clear_prefix_cache();
    EXPECT_EQ(scheduler_.pages().num_free(), case_.limits.num_pages);
    EXPECT_EQ(scheduler_.prefixes().snapshots().num_free(),
              case_.limits.prefix_cache ? case_.limits.num_snapshots : 0);
    outcome_.digest = engine_.plan_digest();
    outcome_.num_preemptions = scheduler_.num_preemptions();
    outcome_.num_restores = engine_.num_restores();
    outcome_.num_rejected_drafts = engine_.num_rejected_drafts();
    outcome_.num_forced_rows = engine_.num_forced_rows();
  }

  const Outcome& outcome() const { return outcome_; }

 private:
  std::int32_t random_token() {
    return 1 + static_cast<std::int32_t>(random_() % (kFakeVocab - 1));
  }

  void add_request(int index) {
    Request& request = requests_.emplace_back();
    const auto kind = random_() % 4;
    if (kind == 0 && !transcripts_.empty()) {
      request.prompt_ids =
          transcripts_[random_() % transcripts_.size()];  // next turn of a dialogue
      request.prompt_ids.resize(std::min<std::size_t>(request.prompt_ids.size(), kMaxSharedTokens));
    } else if (kind != 1) {
      const auto& base = bases_[random_() % bases_.size()];
      request.prompt_ids.assign(
          base.begin(), base.begin() + static_cast<std::ptrdiff_t>(random_() % kMaxSharedTokens));
    }
    for (auto n = 1 + random_() % kMaxOwnTokens; n > 0; --n)
      request.prompt_ids.push_back(random_token());
    request.sampling.max_tokens = 1 + static_cast<int>(random_() % kMaxNewTokens);
    sequences_.push_back(make_sequence(request, index, case_.limits.max_context));
    ASSERT_EQ(scheduler_.add(sequences_.back()), std::nullopt);
  }

  void disturb() {
    if (random_() % 20 == 0) {
      scheduler_.set_concurrency(
          1 + static_cast<int>(random_() % static_cast<unsigned>(case_.limits.max_sequences)));
    }
    if (random_() % 30 == 0) cancel_one();
    if (random_() % 60 == 0) scheduler_.clear_prefix_cache();
  }

  void cancel_one() {
    auto& seq = sequences_[random_() % sequences_.size()];
    if (seq.state != SequenceState::kFinished) scheduler_.cancel(seq);
  }

  void step(Admission admission) {
    std::int64_t oldest = -1;
    for (const auto& seq : sequences_) {
      if (seq.is_active() && (oldest < 0 || seq.admission_order < oldest))
        oldest = seq.admission_order;
    }
    const StepPlan& plan = scheduler_.plan_step(admission);
    ASSERT_NO_THROW(scheduler_.check_integrity());
    for (const auto* seq : plan.preempted) ASSERT_NE(seq->admission_order, oldest);
    int num_long = 0;
    for (const auto& seq : sequences_) {
      num_long +=
          seq.is_active() && seq.prompt_len - seq.num_computed > case_.limits.long_prefill_tokens
              ? 1
              : 0;
    }
    ASSERT_LE(num_long, case_.limits.max_long_prefills);
    check_rounds_are_complete(plan);
    for (const auto& reset : plan.resets) {
      if (reset.seq->num_preemptions == 0 && reset.restore_snapshot != kNoSnapshot) {
        ASSERT_EQ(reset.seq->cached_prompt_tokens, reset.seq->num_computed);
        ASSERT_GT(reset.seq->cached_prompt_tokens, 0);
        ++outcome_.num_hits;
      }
    }
    std::vector<Sequence*> ended;
    ASSERT_NO_THROW(ended = engine_.run_step(scheduler_, plan)) << "step " << outcome_.num_steps;
    ASSERT_NO_THROW(scheduler_.check_integrity());
    for (const auto* seq : ended) {
      ASSERT_EQ(seq->tokens, fake_reference(*seq->request, case_.limits.max_context))
          << "sequence " << seq->index;
      transcripts_.push_back(seq->tokens);
    }
  }

  void check_rounds_are_complete(const StepPlan& plan) {
    for (auto& seq : sequences_) {
      if (seq.state != SequenceState::kRunning && seq.state != SequenceState::kRecomputing)
        continue;
      ASSERT_TRUE(std::ranges::any_of(plan.rounds, [&](auto& e) { return e.seq == &seq; }))
          << "sequence " << seq.index << " is left out";
    }
  }

  Case case_;
  std::mt19937 random_;
  Scheduler scheduler_;
  FakeEngine engine_;
  std::array<std::vector<std::int32_t>, 3> bases_;
  std::vector<std::vector<std::int32_t>> transcripts_;
  std::deque<Request> requests_;    // stable addresses
  std::deque<Sequence> sequences_;  // stable addresses
  Outcome outcome_;
};

class SchedulerSimulation : public testing::TestWithParam<Case> {};

TEST_P(SchedulerSimulation, KeepsEveryInvariant) {
  std::int64_t num_preemptions = 0;
  int num_hits = 0;
  int num_rejected_drafts = 0;
  for (const std::uint32_t seed : {1u, 2u}) {
    SCOPED_TRACE(seed);
    Simulation simulation(GetParam(), seed);
    simulation.run(kNumRequests);
    if (HasFatalFailure()) return;
    const Outcome& outcome = simulation.outcome();
    num_preemptions += outcome.num_preemptions;
    num_hits += outcome.num_hits;
    num_rejected_drafts += outcome.num_rejected_drafts;

    Simulation again(GetParam(), seed);
    again.run(kNumRequests);
    EXPECT_EQ(again.outcome().digest, outcome.digest) << "the same calls gave other plans";
  }
  EXPECT_GE(num_preemptions, GetParam().min_preemptions);
  EXPECT_GE(num_hits, GetParam().min_hits);
  EXPECT_TRUE(GetParam().limits.prefix_cache || num_hits == 0);
  EXPECT_GE(num_rejected_drafts, GetParam().limits.draft_tokens > 0 ? 50 : 0);
}

SchedulerLimits limits(int page_tokens, int pool_tokens, int max_batched_tokens, int draft_tokens) {
  return {.max_sequences = 6,
          .max_batched_tokens = max_batched_tokens,
          .max_context = kMaxContext,
          .max_long_prefills = 1,
          .long_prefill_tokens = 300,
          .page_tokens = page_tokens,
          .num_pages = pages_for_tokens(pool_tokens, page_tokens),
          .draft_tokens = draft_tokens,
          .max_round_rows = std::max(4, draft_tokens + 1),
          .num_snapshots = 4};
}

constexpr int kTight = kMaxContext;  // in tokens: just holds the longest request
constexpr int kNarrow = 1900;
constexpr int kRoomy = 12000;

SchedulerLimits without_prefix_cache(SchedulerLimits l) {
  l.prefix_cache = false;
  return l;
}

SchedulerLimits with_one_snapshot(SchedulerLimits l) {
  l.num_snapshots = 1;
  return l;
}

INSTANTIATE_TEST_SUITE_P(
    Runs, SchedulerSimulation,
    testing::Values(Case{"pages_of_4", limits(4, kNarrow, 2048, 3), false, 20, 20},
                    Case{"pages_of_8_tight", limits(8, kTight, 256, 3), true, 0, 0},
                    Case{"pages_of_16", limits(16, kRoomy, 2048, 3), false, 0, 20},
                    Case{"pages_of_16_narrow", limits(16, kNarrow, 2048, 3), false, 20, 20},
                    Case{"pages_of_16_disturbed", limits(16, kNarrow, 300, 3), true, 0, 20},
                    Case{"pages_of_32_small_steps", limits(32, kNarrow, 64, 2), true, 0, 10},
                    Case{"pages_of_64_odd_steps", limits(64, kNarrow, 100, 0), false, 0, 20},
                    Case{"pages_of_128", limits(128, kRoomy, 512, 7), true, 0, 20},
                    Case{"pages_of_256", limits(256, kRoomy, 2048, 3), false, 0, 20},
                    Case{"pages_of_256_tight", limits(256, kTight, 2048, 1), true, 0, 0},
                    Case{"open_blocks", limits(16, kRoomy, 16, 3), false, 0, 20},
                    Case{"open_blocks_narrow", limits(4, kNarrow, 33, 3), true, 0, 20},
                    Case{"tiny_steps", limits(16, kRoomy, 5, 0), false, 0, 20},
                    Case{"one_snapshot", with_one_snapshot(limits(16, kRoomy, 512, 3)), true, false,
                         true},
                    Case{"no_prefix_cache", without_prefix_cache(limits(16, kNarrow, 512, 3)), true,
                         true, false}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tandem
