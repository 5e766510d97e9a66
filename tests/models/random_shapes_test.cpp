// Engines of many shapes against the double-precision forward: logits of prompts in one chunk and
// in several, of generated rows behind accepted and rejected ones, and of the MTP head. One rank;
// more ranks are rank_split_test.cpp's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include "tests/models/double_forward.h"
#include "tests/support/engine_harness.h"
#include "tests/support/mpi_test_main.h"
#include "tests/support/test_data.h"

namespace tandem::testing {
namespace {

// In the 2-norm: fp32 of each row of logits, bf16 of all rows.
constexpr double kFp32Tolerance = 2e-5;
// Storage in bf16 between modules of up to five layers; a wrong formula gives errors of order 1.
constexpr double kBf16Tolerance = 0.05;

constexpr std::size_t kPrompt = 150;
constexpr std::size_t kGenerated = 20;
constexpr int kDrafts = 3;

// A checkpoint, a sequence of tokens, and what the double forward says of it.
struct Case {
  explicit Case(const ModelShape& shape)
      : checkpoint(shape, 1), forward(checkpoint), ids(kPrompt + kGenerated) {
    std::mt19937_64 generator(2);
    std::uniform_int_distribution<std::int32_t> any_id(0, shape.vocab - 1);
    for (auto& id : ids) id = any_id(generator);
    hidden = forward.hidden(ids);
    logits = forward.logits(hidden);
    checkpoint.write(directory / "model");
  }

  JobConfig job(ActivationDType activations = ActivationDType::kFp32) const {
    JobConfig job = tiny_job();
    job.model.path = (directory / "model").string();
    job.model.activation_dtype = activations;
    job.memory.kv_bytes = std::int64_t{8} << 20;
    job.scheduler.max_context = 256;
    job.scheduler.max_sequences = 4;
    job.speculative.tokens = kDrafts;
    return job;
  }
  std::span<const std::int32_t> part(std::size_t first, std::size_t count) const {
    return std::span(ids).subspan(first, count);
  }

  TempDir directory;
  RandomCheckpoint checkpoint;
  DoubleForward forward;
  std::vector<std::int32_t> ids;
  Matrix hidden;
  Matrix logits;
};

class RandomShapes : public ::testing::TestWithParam<ModelShape> {
 protected:
  static const Case& the_case() {
    static std::map<std::string, std::unique_ptr<Case>> cases;
    auto& slot = cases[GetParam().name];
    if (!slot) slot = std::make_unique<Case>(GetParam());
    return *slot;
  }
  static void TearDownTestSuite() {
    std::printf("largest relative error of logits: fp32 %.2g, MTP %.2g, bf16 %.2g\n", worst_fp32,
                worst_mtp, worst_bf16);
  }
  static double worst_fp32, worst_mtp, worst_bf16;
};
double RandomShapes::worst_fp32 = 0;
double RandomShapes::worst_mtp = 0;
double RandomShapes::worst_bf16 = 0;

// ||ours - row|| / ||row||, infinity for NaN.
double row_error(std::span<const float> ours, std::span<const double> row) {
  if (ours.size() != row.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    difference += (ours[i] - row[i]) * (ours[i] - row[i]);
    norm += row[i] * row[i];
  }
  const double error = std::sqrt(difference / norm);
  return std::isnan(error) ? INFINITY : error;
}

// Largest error of consecutive rows; expected row `first` belongs to row 0.
double worst_error(const std::vector<float>& ours, const Matrix& expected, std::size_t first) {
  double worst = ours.empty() ? INFINITY : 0;
  for (std::size_t i = 0; i * expected.cols < ours.size(); ++i) {
    worst = std::max(worst, row_error(std::span(ours).subspan(i * expected.cols, expected.cols),
                                      expected.row(first + i)));
  }
  return worst;
}

std::vector<float> logits_of(EngineHarness& engine, const void* hidden, std::size_t rows) {
  auto& model = engine.parts().program().model();
  std::vector<float> out(rows * static_cast<std::size_t>(model.vocab_shard().padded_rows));
  model.logits(engine.parts().context(), hidden, static_cast<int>(rows), out.data());
  return out;
}

// A prompt pass in chunks of the given lengths; logits of all rows.
std::vector<float> prompt_in_chunks(EngineHarness& engine, const Case& c,
                                    const std::vector<std::size_t>& chunks) {
  const std::size_t length = std::accumulate(chunks.begin(), chunks.end(), std::size_t{0});
  std::vector<float> out;
  std::size_t begin = 0;
  for (const std::size_t n : chunks) {
    engine.prompt_pass(c.part(begin, n), static_cast<int>(begin), begin + n == length);
    const auto rows = engine.last_logits(static_cast<int>(n));
    out.insert(out.end(), rows.begin(), rows.end());
    begin += n;
  }
  return out;
}

// A round in slot 0 from position `start`, of which the first `accepted` rows stay; logits of
// those. The others carry tokens of no use.
std::vector<float> round_logits(EngineHarness& engine, const Case& c, std::size_t start,
                                std::size_t rows, std::size_t accepted) {
  auto& program = engine.parts().program();
  auto& batch = program.batch();
  batch.clear(ops::RowClass::kGenerated);
  batch.add_segment(0, static_cast<int>(start));
  for (std::size_t i = 0; i < rows; ++i) {
    const auto id = c.ids[start + i];
    batch.add_row(i < accepted ? id : (id + 1) % c.checkpoint.shape().vocab);
  }
  program.model().forward(engine.parts().context(), batch.upload(engine.parts().backend()),
                          program.hidden());
  program.tables().pending_rows[0] = static_cast<std::int32_t>(accepted);
  return logits_of(engine, program.hidden(), accepted);
}

TEST_P(RandomShapes, PromptLogits) {
  const Case& c = the_case();
  EngineHarness engine(world(), c.job());
  for (const std::size_t n : {1u, 63u, 64u, 65u, 150u}) {
    const double error = worst_error(prompt_in_chunks(engine, c, {n}), c.logits, 0);
    EXPECT_LT(error, kFp32Tolerance) << n << " tokens";
    worst_fp32 = std::max(worst_fp32, error);
  }
}

TEST_P(RandomShapes, PromptLogitsInBf16) {
  const Case& c = the_case();
  EngineHarness engine(world(), c.job(ActivationDType::kBf16));
  const auto logits = prompt_in_chunks(engine, c, {kPrompt});
  const double error = row_error(logits, std::span(c.logits.values).first(logits.size()));
  EXPECT_LT(error, kBf16Tolerance);
  worst_bf16 = std::max(worst_bf16, error);
}

TEST_P(RandomShapes, ChunksChangeNoBit) {
  const Case& c = the_case();
  EngineHarness engine(world(), c.job());
  const auto whole = prompt_in_chunks(engine, c, {kPrompt});
  EXPECT_EQ(prompt_in_chunks(engine, c, {64, 64, 22}), whole);
  EXPECT_EQ(prompt_in_chunks(engine, c, {128, 22}), whole);

  JobConfig small = c.job();
  small.scheduler.max_batched_tokens = 40;  // chunks end anywhere
  EngineHarness open_blocks(world(), small);
  EXPECT_EQ(prompt_in_chunks(open_blocks, c, {40, 40, 40, 30}), whole);
  EXPECT_EQ(prompt_in_chunks(open_blocks, c, {1, 1, 7, 33, 22, 1, 39, 24, 22}), whole);
}

TEST_P(RandomShapes, GeneratedRows) {
  const Case& c = the_case();
  EngineHarness engine(world(), c.job());
  struct Round {
    std::size_t rows, accepted;
  };
  const std::vector<Round> rounds = {{1, 1}, {4, 1}, {4, 4}, {8, 2},
                                     {2, 2}, {1, 1}, {4, 3}, {1, 1}};
  for (const std::size_t prompt : {1u, 64u, 65u, 150u}) {
    prompt_in_chunks(engine, c, {prompt});
    std::vector<float> in_rounds;
    std::size_t position = prompt;
    for (const Round& round : rounds) {
      const auto logits = round_logits(engine, c, position, round.rows, round.accepted);
      const double error = worst_error(logits, c.logits, position);
      EXPECT_LT(error, kFp32Tolerance) << "prompt " << prompt << ", position " << position;
      worst_fp32 = std::max(worst_fp32, error);
      in_rounds.insert(in_rounds.end(), logits.begin(), logits.end());
      position += round.accepted;
    }
    // Verified in company or decoded alone: the same bits.
    prompt_in_chunks(engine, c, {prompt});
    std::vector<float> one_by_one;
    for (std::size_t p = prompt; p < position; ++p) {
      const auto logits = round_logits(engine, c, p, 1, 1);
      one_by_one.insert(one_by_one.end(), logits.begin(), logits.end());
    }
    EXPECT_EQ(one_by_one, in_rounds) << "prompt " << prompt;
  }
}

TEST_P(RandomShapes, MtpLogits) {
  const Case& c = the_case();
  EngineHarness engine(world(), c.job());
  auto& program = engine.parts().program();
  MtpHead* mtp = program.model().mtp_head();
  ASSERT_EQ(mtp != nullptr, GetParam().mtp_head);
  ASSERT_EQ(program.drafter() != nullptr, GetParam().mtp_head);
  if (mtp == nullptr) return;
  const Matrix expected = c.forward.logits(c.forward.mtp_hidden(c.part(1, kPrompt), [&] {
    Matrix h(kPrompt, c.hidden.cols);
    std::copy_n(c.hidden.values.begin(), h.values.size(), h.values.begin());
    return h;
  }()));

  // Row p of the formula is the head's row p + 1: see MtpHead.
  const auto hidden = engine.prompt_pass(c.part(0, kPrompt));
  auto& batch = program.batch();
  batch.clear(ops::RowClass::kPrompt);
  batch.add_segment(0, 1);
  for (const auto id : c.part(1, kPrompt)) batch.add_row(id);
  std::vector<float> output(hidden.size());
  mtp->forward(engine.parts().context(), batch.upload(engine.parts().backend()), hidden.data(),
               output.data());
  double error = worst_error(logits_of(engine, output.data(), kPrompt), expected, 0);
  EXPECT_LT(error, kFp32Tolerance) << "prompt rows";

  // One generated row behind a cache that observe_prompt() filled, chunk by chunk.
  for (const std::vector<std::size_t>& chunks : {std::vector<std::size_t>{kPrompt}, {64, 64, 22}}) {
    prompt_in_chunks(engine, c, chunks);
    batch.clear(ops::RowClass::kGenerated);
    batch.add_segment(0, kPrompt);
    batch.add_row(c.ids[kPrompt]);
    const std::size_t width = c.hidden.cols;
    mtp->forward(engine.parts().context(), batch.upload(engine.parts().backend()),
                 &hidden[(kPrompt - 1) * width], output.data());
    error =
        std::max(error, worst_error(logits_of(engine, output.data(), 1), expected, kPrompt - 1));
    EXPECT_LT(error, kFp32Tolerance) << chunks.size() << " chunks";
  }
  worst_mtp = std::max(worst_mtp, error);
}

// Drafts are the head applied to its own output, from the same state in double precision.
TEST_P(RandomShapes, MtpDrafts) {
  if (!GetParam().mtp_head) GTEST_SKIP() << "no MTP head";
  const Case& c = the_case();
  constexpr std::size_t kLength = 70;
  std::vector<std::int32_t> next(c.ids.begin() + 1, c.ids.begin() + 1 + kLength);
  Matrix hidden(kLength, c.hidden.cols);
  std::copy_n(c.hidden.values.begin(), hidden.values.size(), hidden.values.begin());
  std::vector<std::int32_t> expected;
  for (int i = 0; i < kDrafts; ++i) {
    const Matrix out = c.forward.mtp_hidden(next, hidden);
    Matrix last(1, out.cols);
    std::ranges::copy(out.row(out.rows - 1), last.values.begin());
    const auto logits = c.forward.logits(last).values;
    const auto valid = logits.begin() + 4096;  // the tokenizer's ids
    const auto best = std::max_element(logits.begin(), valid);
    expected.push_back(static_cast<std::int32_t>(best - logits.begin()));
    next.push_back(expected.back());
    hidden.values.insert(hidden.values.end(), last.values.begin(), last.values.end());
    ++hidden.rows;
  }

  EngineHarness engine(world(), c.job());
  for (const std::vector<std::size_t>& chunks : {std::vector<std::size_t>{kLength}, {64, 6}}) {
    prompt_in_chunks(engine, c, chunks);
    auto& program = engine.parts().program();
    auto& backend = engine.parts().backend();
    ops::RoundSlot slot;
    slot.last_token = c.part(kLength, 1)[0];
    slot.position = kLength;
    slot.num_drafts = kDrafts;
    program.tables().upload_pages(backend, 0, engine.parts().plan().limits.shape.num_pages);
    program.rounds().join(backend, 0, slot);
    RoundRunner runner(engine.parts().context(), program,
                       {.max_sequences = 1, .draft_tokens = kDrafts});
    const std::int32_t slots[] = {0};
    runner.draft_behind_prompts(slots, kDrafts);
    backend.copy(&slot, program.rounds().places(1, 1).table, sizeof slot);
    backend.synchronize();
    EXPECT_EQ(std::vector(slot.drafts, slot.drafts + kDrafts), expected)
        << chunks.size() << " chunks";
  }
}

// A wrong model is the user's to change, not a broken invariant in the middle of a pass.
TEST(UnsupportedShape, NamesEveryDimensionWithoutAKernel) {
  const ModelShape shape{.name = "unsupported",
                         .layers = "LF",
                         .num_heads = 66,
                         .num_kv_heads = 1,
                         .head_dim = 40,
                         .linear_k_heads = 1,
                         .linear_v_heads = 1,
                         .k_dim = 24,
                         .v_dim = 272,
                         .conv_kernel = 9};
  const TempDir directory;
  RandomCheckpoint(shape, 1).write(directory / "model");
  JobConfig job = tiny_job();
  job.model.path = (directory / "model").string();
  try {
    const EngineHarness engine(world(), job);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfiguration);
    for (const char* fault : {"head_dim 40, a multiple of 16 up to 256",
                              "one key-value head 66, at most 64", "linear_key_head_dim 24",
                              "linear_value_head_dim 272", "linear_conv_kernel_dim 9, at most 8"}) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr(fault));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RandomShapes, ::testing::ValuesIn(model_shapes()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace tandem::testing
