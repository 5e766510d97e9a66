// The small pieces around the step loop that need no ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/counter_rng.h"
#include "engine/engine_limits.h"
#include "engine/progress.h"
#include "engine/record_exchange.h"
#include "engine/request_exchange.h"
#include "engine/round_runner.h"
#include "engine/run_groups.h"
#include "engine/validators.h"
#include "parallel/transport.h"
#include "speculative/adaptive_depth.h"

namespace tandem {
namespace {

ModelConfig small_model() {
  ModelConfig model;
  model.max_position_embeddings = 4096;
  model.mtp_num_hidden_layers = 1;
  return model;
}

TEST(RunGroups, BatchModeRunsOnceAtFullConcurrency) {
  JobConfig job;
  job.scheduler.max_sequences = 6;
  const auto groups = run_groups(job);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].concurrency, 6);
  EXPECT_FALSE(groups[0].warmup);
}

TEST(RunGroups, BenchModeSweepsWithWarmUpFirst) {
  JobConfig job;
  job.run.mode = RunMode::kBench;
  job.run.concurrency = {1, 4};
  job.run.warmup = 1;
  job.run.repeats = 2;
  std::string seen;
  for (const auto& g : run_groups(job)) {
    seen += fmt::format("{}{}{} ", g.concurrency, g.warmup ? 'w' : 'c', g.run_index);
  }
  EXPECT_EQ(seen, "1w0 1c0 1c1 4w0 4c0 4c1 ");
}

TEST(RecordedShapes, CoverEveryRoundOfAJob) {
  const auto places_of = [](const RoundShapes& job) {
    std::vector<int> places;
    for (const auto& shape : recorded_shapes(job)) {
      if (shape.method == SampleMethod::kArgmax && shape.depth == job.draft_tokens) {
        places.push_back(shape.num_places);
      }
    }
    return places;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(places_of({.max_sequences = 1}), ElementsAre(1));
  EXPECT_THAT(places_of({.max_sequences = 5}), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(places_of({.max_sequences = 8}), ElementsAre(1, 2, 3, 4, 6, 8));
  EXPECT_THAT(places_of({.max_sequences = 64, .draft_tokens = 3}),
              ElementsAre(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64));

  const RoundShapes fixed{.max_sequences = 2, .draft_tokens = 3};
  EXPECT_THAT(recorded_shapes(fixed),
              ::testing::Contains(RoundShape{
                  .num_places = 2, .rows = 4, .depth = 3, .method = SampleMethod::kGathered}));
  EXPECT_THAT(recorded_shapes(fixed),
              ::testing::Contains(
                  RoundShape{.num_places = 1, .rows = 1, .depth = 3, .follows_prompt = true}));
  EXPECT_EQ(recorded_shapes(fixed).size(), 6u);
  // An adaptive job makes rounds of every depth; log-probabilities leave one way of choosing.
  RoundShapes adaptive = fixed;
  adaptive.adaptive_depth = true;
  EXPECT_EQ(recorded_shapes(adaptive).size(), 18u);
  adaptive.sample.logprobs = true;
  EXPECT_EQ(recorded_shapes(adaptive).size(), 10u);
  EXPECT_LE(
      recorded_shapes({.max_sequences = 4096, .draft_tokens = 7, .adaptive_depth = true}).size(),
      128u);
  EXPECT_GT(recorded_bytes(adaptive, 64), recorded_bytes(fixed, 64));
}

TEST(EngineLimits, SpeculationFollowsTheCheckpoint) {
  JobConfig job;
  auto model = small_model();
  EXPECT_EQ(resolve_limits(job, model).draft_tokens, 3);
  EXPECT_EQ(resolve_limits(job, model).method, SpeculativeMethod::kMtp);
  model.mtp_num_hidden_layers = 0;
  EXPECT_EQ(resolve_limits(job, model).draft_tokens, 0);
  job.speculative.method = SpeculativeMethod::kMtp;
  EXPECT_THROW(resolve_limits(job, model), Error);
}

TEST(EngineLimits, RefusesWhatTheModelCannotHold) {
  JobConfig job;
  job.scheduler.max_context = 5000;
  EXPECT_THROW(resolve_limits(job, small_model()), Error);
  job.scheduler.max_context = 4096;
  job.memory.kv_dtype = KvDType::kFp8DsMla;
  EXPECT_THROW(resolve_limits(job, small_model()), Error);
}

TEST(EngineLimits, KvFormatFollowsTheJobAndTheDraftersStaysWide) {
  using ops::KvFormat;
  JobConfig job;
  const auto shape = [&] { return resolve_limits(job, small_model()).shape; };
  EXPECT_EQ(shape().kv_format, KvFormat::kBf16);
  EXPECT_EQ(shape().drafter_kv_format, KvFormat::kBf16);
  job.memory.kv_dtype = KvDType::kFp8Dynamic;
  EXPECT_EQ(shape().kv_format, KvFormat::kFp8Dynamic);
  EXPECT_EQ(shape().drafter_kv_format, KvFormat::kBf16);
  job.model.activation_dtype = ActivationDType::kFp32;
  job.memory.kv_dtype = KvDType::kFp8Static;
  EXPECT_EQ(shape().kv_format, KvFormat::kFp8Static);
  EXPECT_EQ(shape().drafter_kv_format, KvFormat::kF32);
  job.memory.kv_dtype = KvDType::kBf16;
  EXPECT_EQ(shape().drafter_kv_format, KvFormat::kBf16);
}

TEST(EngineLimits, SmallBatchesKeepBlocksOpen) {
  JobConfig job;
  job.scheduler.max_batched_tokens = 16;
  EXPECT_TRUE(resolve_limits(job, small_model()).shape.open_blocks);
  job.scheduler.max_batched_tokens = 64;
  EXPECT_FALSE(resolve_limits(job, small_model()).shape.open_blocks);
}

TEST(RequestExchange, EveryFieldSurvives) {
  Request r;
  r.id = "a\xff id";
  r.prompt_ids = {1, 2, 300000};
  r.prompt_text = std::string("text with \0 and \xc3", 18);
  r.sampling = {.temperature = 0.7f,
                .top_p = 0.9f,
                .top_k = 20,
                .min_p = 0.05f,
                .seed = 0xffffffffffffffffull,
                .max_tokens = 7,
                .stop = {"a", "b"},
                .stop_scope = StopScope::kAll,
                .ignore_eos = true};
  r.tags = R"({"task":"x"})";
  r.reference = "42";
  r.line = 9;
  r.thinking = true;
  r.invalid_reason = "because";
  const auto back = deserialize_requests(serialize_requests({r, Request{}}));
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[0].id, r.id);
  EXPECT_EQ(back[0].prompt_ids, r.prompt_ids);
  EXPECT_EQ(back[0].prompt_text, r.prompt_text);
  EXPECT_EQ(sampling_text(back[0].sampling), sampling_text(r.sampling));
  EXPECT_EQ(back[0].sampling.temperature, r.sampling.temperature);
  EXPECT_EQ(back[0].sampling.seed, r.sampling.seed);
  EXPECT_EQ(back[0].tags, r.tags);
  EXPECT_EQ(back[0].reference, r.reference);
  EXPECT_EQ(back[0].line, 9);
  EXPECT_TRUE(back[0].thinking);
  EXPECT_EQ(back[0].invalid_reason, "because");
  EXPECT_EQ(back[1].reference, std::nullopt);
}

TEST(Validators, RunOnlyWhereAskedFor) {
  Request request;
  RequestRecord record;
  run_validators(request, " {\"a\": 1} ", record);
  EXPECT_EQ(record.json_valid, std::nullopt);
  EXPECT_FALSE(record.empty_answer);
  request.tags = R"({"validate": ["json", "lines"]})";
  run_validators(request, "{\"a\": 1}\n\n", record);
  EXPECT_EQ(record.json_valid, true);
  EXPECT_EQ(record.line_count, 1);
  run_validators(request, "{\"a\": ", record);
  EXPECT_EQ(record.json_valid, false);
  request.reference = "yes";
  run_validators(request, "yes\n", record);
  EXPECT_EQ(record.exact_match, true);
  run_validators(request, "  \n", record);
  EXPECT_TRUE(record.empty_answer);
}

TEST(Validators, RepetitionNeedsALoop) {
  std::vector<std::int32_t> ids(200);
  std::iota(ids.begin(), ids.end(), 0);
  EXPECT_FALSE(ends_in_repetition(ids));
  for (std::size_t i = 100; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i % 7);
  EXPECT_TRUE(ends_in_repetition(ids));
  EXPECT_FALSE(ends_in_repetition(std::span(ids).first(130)));
  const std::vector<std::int32_t> same(63, 5);
  EXPECT_FALSE(ends_in_repetition(same));
}

TEST(RecordExchange, MemoryRowsSurviveTheJourney) {
  MemoryRow row;
  row.time_s = 1.5;
  row.rank = 3;
  row.phase = "load";
  row.rss_bytes = 123;
  const auto back = deserialize_memory_row(serialize(row));
  EXPECT_EQ(back.time_s, 1.5);
  EXPECT_EQ(back.rank, 3);
  EXPECT_EQ(back.phase, "load");
  EXPECT_EQ(back.rss_bytes, 123);
  EXPECT_EQ(back.swap_used_bytes, std::nullopt);
}

TEST(Progress, StatusLineHasNoRateWithoutEvents) {
  const RunGroup group{.concurrency = 2};
  EngineStatus status;
  status.group = &group;
  status.requests_total = 4;
  status.group_seconds = 2;
  const auto text = status_line(status, 0);
  EXPECT_THAT(text, ::testing::HasSubstr("0/4 requests"));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("acceptance")));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("ETA")));
}

// Rounds whose drafts survive with probability `p` each, costing 1 + slope * depth.
int settled_depth(double p, double slope) {
  AdaptiveDepth adaptive(5);
  std::uint32_t counter = 0;
  int depth = 0;
  for (int round = 0; round < 1000; ++round) {
    const int chosen = adaptive.choose();
    if (round % 32 != 0) depth = chosen;
    int accepted = 0;
    while (accepted < chosen &&
           uniform01(random_bits({}, counter++, RngPurpose::kAccept, 0)) < static_cast<float>(p)) {
      ++accepted;
    }
    adaptive.count_round(chosen, accepted);
    adaptive.count_time(chosen, 1.0 + slope * chosen);
  }
  return depth;
}

TEST(AdaptiveDepth, DraftsDeepWhenDraftsAreGoodAndCheap) {
  EXPECT_EQ(settled_depth(0.95, 0.05), 5);
}

TEST(AdaptiveDepth, StopsDraftingWhenItDoesNotPay) {
  EXPECT_EQ(settled_depth(0.05, 0.3), 0);
  const int middle = settled_depth(0.6, 0.2);
  EXPECT_GE(middle, 1);
  EXPECT_LE(middle, 3);
}

TEST(Transport, UnprovenIsNotRdma) {
  const auto on = [](int hosts) {
    std::vector<RankPlace> places(2);
    for (int i = 0; i < 2; ++i) {
      auto& place = places[static_cast<std::size_t>(i)];
      place.host = place.host_id = "host" + std::to_string(hosts == 1 ? 0 : i);
    }
    return make_rank_layout(0, ParallelSection{}, places);
  };
  const auto refused = [](TransportRequire require, const RankLayout& layout) {
    try {
      enforce_transport(require, layout, mpi_transport(layout));
      return false;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kTransport);
      return true;
    }
  };
  EXPECT_FALSE(refused(TransportRequire::kAuto, on(1)));
  EXPECT_FALSE(refused(TransportRequire::kAny, on(2)));
  EXPECT_TRUE(refused(TransportRequire::kAuto, on(2)));
  EXPECT_TRUE(refused(TransportRequire::kRdma, on(1)));
}

}  // namespace
}  // namespace tandem
