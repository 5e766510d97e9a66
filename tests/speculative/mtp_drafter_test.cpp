// The MTP drafter on a real head: its proposals depend on the tokens before them and on nothing
// else, not on prompt chunks, other slots, how many proposals were asked for, which drafts were
// verified together, or whether the prefix came from a snapshot. On as many ranks as the test is
// started with.
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>

#include "tests/support/engine_harness.h"
#include "tests/support/mpi_test_main.h"

namespace tandem::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr int kDrafts = 4;

class MtpDrafting : public ::testing::TestWithParam<ActivationDType> {
 protected:
  static JobConfig job() {
    JobConfig job = tiny_job();
    job.model.activation_dtype = GetParam();
    job.scheduler.max_context = 512;
    job.scheduler.max_sequences = 3;
    job.speculative.tokens = kDrafts;
    return job;
  }
  MtpDrafting() {
    const auto& shape = engine_.parts().plan().limits.shape;
    for (int slot = 0; slot < shape.max_sequences; ++slot) own_pages(slot, 0);
  }

  static Tokens text(unsigned seed, std::size_t length) {
    std::mt19937 generator(seed);
    std::uniform_int_distribution<std::int32_t> id(0, 4000);
    Tokens out(length);
    for (auto& t : out) t = id(generator);
    return out;
  }

  DeviceProgram& program() { return engine_.parts().program(); }
  Drafter& drafter() { return *program().drafter(); }
  LayerContext context() { return engine_.parts().context(); }

  // The slot's page table from entry `first` on: pages of its own.
  void own_pages(int slot, int first) {
    const auto& shape = engine_.parts().plan().limits.shape;
    for (int i = first; i < shape.pages_per_sequence; ++i) {
      program().tables().page_table[slot * shape.pages_per_sequence + i] =
          slot * shape.pages_per_sequence + i;
    }
  }
  void share_pages(int from, int to, int count) {
    const auto& shape = engine_.parts().plan().limits.shape;
    auto* table = program().tables().page_table;
    std::copy_n(table + from * shape.pages_per_sequence, count,
                table + to * shape.pages_per_sequence);
  }

  // Prompt rows of `ids` from `start`, in chunks.
  void prompt(int slot, const Tokens& ids, const std::vector<int>& chunks, int start = 0) {
    if (start == 0) program().reset_slot(engine_.parts().backend(), slot);
    program().tables().pending_rows[slot] = 0;
    const int end = std::accumulate(chunks.begin(), chunks.end(), start);
    for (const int rows : chunks) {
      pass(ops::RowClass::kPrompt, slot, ids, start, rows, start + rows == end);
      drafter().observe_prompt(context(), program().batch(), program().hidden());
      start += rows;
    }
  }
  // A round of the target over ids[start ...]; all rows are accepted.
  void round(int slot, const Tokens& ids, int start, int rows) {
    pass(ops::RowClass::kGenerated, slot, ids, start, rows, false);
    program().tables().pending_rows[slot] = rows;
  }
  void pass(ops::RowClass row_class, int slot, const Tokens& ids, int start, int rows,
            bool ends_prompt) {
    auto& batch = program().batch();
    batch.clear(row_class);
    batch.add_segment(slot, start, ends_prompt);
    for (int i = 0; i < rows; ++i) batch.add_row(ids[static_cast<std::size_t>(start + i)]);
    program().model().forward(context(), batch.upload(context().backend), program().hidden());
  }

  static DraftRequest request(int slot, const Tokens& ids, int first, std::size_t count,
                              int first_hidden_row, int num_drafts, Tokens& out) {
    return {.slot = slot,
            .first_position = first,
            .tokens = std::span(ids).subspan(static_cast<std::size_t>(first), count),
            .first_hidden_row = first_hidden_row,
            .num_drafts = num_drafts,
            .drafts = &out};
  }
  // Drafts behind a prompt of n tokens and the first generated one, ids[n].
  Tokens drafts_after_prompt(int slot, const Tokens& ids, int n, int num_drafts = kDrafts) {
    Tokens out;
    const auto r = request(slot, ids, n, 1, DraftRequest::kCarriedHidden, num_drafts, out);
    drafter().draft(context(), {&r, 1}, program().hidden());
    return out;
  }
  // The head's output for ids[n] behind a prompt of n tokens, without drafting.
  std::vector<float> head_row(int slot, const Tokens& ids, int n, int last_row) {
    auto& batch = program().batch();
    batch.clear(ops::RowClass::kGenerated);
    batch.add_segment(slot, n);
    batch.add_row(ids[static_cast<std::size_t>(n)]);
    const auto width = program().model().hidden_width();
    const auto activations = engine_.parts().plan().limits.shape.activations;
    const auto row_bytes = width * static_cast<std::int64_t>(dtype_bytes(activations));
    std::vector<std::byte> out(static_cast<std::size_t>(row_bytes));
    program().model().mtp_head()->forward(
        context(), batch.upload(context().backend),
        static_cast<const std::byte*>(program().hidden()) + last_row * row_bytes, out.data());
    return to_floats(TensorView(out.data(), activations, {1, width}));
  }

  EngineHarness engine_{world(), job()};
};

TEST_P(MtpDrafting, PromptChunksChangeNoBit) {
  constexpr int kLength = 150;
  for (unsigned seed = 0; seed < 4; ++seed) {
    const Tokens ids = text(seed, kLength + 1);
    prompt(0, ids, {kLength});
    const auto row = head_row(0, ids, kLength, kLength - 1);
    const auto drafts = drafts_after_prompt(0, ids, kLength);
    EXPECT_EQ(drafts.size(), static_cast<std::size_t>(kDrafts));
    for (const std::vector<int>& chunks : {std::vector<int>{64, 86}, {128, 22}, {64, 64, 22}}) {
      prompt(0, ids, chunks);
      EXPECT_EQ(head_row(0, ids, kLength, chunks.back() - 1), row) << "seed " << seed;
      EXPECT_EQ(drafts_after_prompt(0, ids, kLength), drafts) << "seed " << seed;
    }
  }
}

TEST_P(MtpDrafting, DraftsDoNotDependOnTheirNumberOrTheirCompany) {
  const std::vector<int> lengths = {40, 1, 100};
  std::vector<Tokens> texts, alone;
  for (int slot = 0; slot < 3; ++slot) {
    const int n = lengths[static_cast<std::size_t>(slot)];
    texts.push_back(text(10 + static_cast<unsigned>(slot), static_cast<std::size_t>(n) + 1));
    prompt(slot, texts.back(), {n});
    alone.push_back(drafts_after_prompt(slot, texts.back(), n));
    for (int fewer = 0; fewer < kDrafts; ++fewer) {
      EXPECT_EQ(drafts_after_prompt(slot, texts.back(), n, fewer),
                Tokens(alone.back().begin(), alone.back().begin() + fewer));
    }
  }
  for (const auto& depths : {std::array{4, 4, 4}, {4, 0, 2}, {1, 3, 0}, {0, 0, 4}, {0, 0, 0}}) {
    std::vector<Tokens> together(3, Tokens{99});  // old proposals go
    std::vector<DraftRequest> requests;
    for (int slot = 0; slot < 3; ++slot) {
      const auto s = static_cast<std::size_t>(slot);
      requests.push_back(request(slot, texts[s], lengths[s], 1, DraftRequest::kCarriedHidden,
                                 depths[s], together[s]));
    }
    drafter().draft(context(), requests, program().hidden());
    for (std::size_t s = 0; s < 3; ++s) {
      EXPECT_EQ(together[s], Tokens(alone[s].begin(), alone[s].begin() + depths[s]));
    }
  }
}

// Drafting writes entries of its own making behind the sequence; what a round verified replaces
// them.
TEST_P(MtpDrafting, VerifiedRowsReplaceWhatDraftingWrote) {
  constexpr int kLength = 70;
  const Tokens ids = text(20, kLength + 5);
  Tokens at_once, one_by_one, late;

  prompt(0, ids, {kLength});
  drafts_after_prompt(0, ids, kLength);
  round(0, ids, kLength, 4);
  auto r = request(0, ids, kLength + 1, 4, 0, kDrafts, at_once);
  drafter().draft(context(), {&r, 1}, program().hidden());

  prompt(0, ids, {kLength});
  drafts_after_prompt(0, ids, kLength);
  for (int p = kLength; p < kLength + 4; ++p) {
    round(0, ids, p, 1);
    r = request(0, ids, p + 1, 1, 0, kDrafts, one_by_one);
    drafter().draft(context(), {&r, 1}, program().hidden());
  }
  EXPECT_EQ(at_once, one_by_one);

  // Rounds that propose nothing keep the head's cache filled.
  prompt(0, ids, {kLength});
  drafts_after_prompt(0, ids, kLength, 0);
  round(0, ids, kLength, 3);
  r = request(0, ids, kLength + 1, 3, 0, 0, late);
  drafter().draft(context(), {&r, 1}, program().hidden());
  round(0, ids, kLength + 3, 1);
  r = request(0, ids, kLength + 4, 1, 0, kDrafts, late);
  drafter().draft(context(), {&r, 1}, program().hidden());
  EXPECT_EQ(at_once, late);
}

// Rounds of two slots in one pass: each slot's hidden states are where its segment is.
TEST_P(MtpDrafting, SlotsOfOneRoundTakeTheirOwnRows) {
  constexpr int kLength = 30, kRows = 3;
  const std::array texts = {text(40, kLength + kRows + 1), text(41, kLength + kRows + 1)};
  std::array<Tokens, 2> alone, together;
  for (int slot = 0; slot < 2; ++slot) {
    const auto& ids = texts[static_cast<std::size_t>(slot)];
    prompt(slot, ids, {kLength});
    drafts_after_prompt(slot, ids, kLength, 0);
    round(slot, ids, kLength, kRows);
    const auto r =
        request(slot, ids, kLength + 1, kRows, 0, kDrafts, alone[static_cast<std::size_t>(slot)]);
    drafter().draft(context(), {&r, 1}, program().hidden());
    prompt(slot, ids, {kLength});
    drafts_after_prompt(slot, ids, kLength, 0);
  }
  auto& batch = program().batch();
  batch.clear(ops::RowClass::kGenerated);
  std::vector<DraftRequest> requests;
  for (int slot = 0; slot < 2; ++slot) {
    const auto s = static_cast<std::size_t>(slot);
    requests.push_back(
        request(slot, texts[s], kLength + 1, kRows, batch.num_rows(), kDrafts, together[s]));
    batch.add_segment(slot, kLength);
    for (int i = 0; i < kRows; ++i) batch.add_row(texts[s][static_cast<std::size_t>(kLength + i)]);
  }
  program().model().forward(context(), batch.upload(context().backend), program().hidden());
  drafter().draft(context(), requests, program().hidden());
  EXPECT_EQ(together, alone);
}

// A prefix hit: pages shared, states from a snapshot, another continuation.
TEST_P(MtpDrafting, SnapshotAndSharedPagesStandForThePrefix) {
  constexpr int kPrefix = 64, kLength = 100, kSnapshot = 1;
  const int shared_pages = kPrefix / engine_.parts().plan().limits.shape.page_tokens;
  Tokens first = text(30, kLength + 1);
  Tokens second = text(31, kLength + 1);
  std::copy_n(first.begin(), kPrefix, second.begin());
  prompt(1, second, {kLength});
  const auto row = head_row(1, second, kLength, kLength - 1);
  const auto drafts = drafts_after_prompt(1, second, kLength);

  prompt(0, first, {kPrefix});
  program().save_slot(engine_.parts().backend(), 0, kSnapshot);
  prompt(0, first, {kLength - kPrefix}, kPrefix);
  prompt(2, text(32, 50), {50});  // the slot has a past
  share_pages(0, 2, shared_pages);
  program().restore_slot(engine_.parts().backend(), 2, kSnapshot);
  prompt(2, second, {kLength - kPrefix}, kPrefix);
  EXPECT_EQ(head_row(2, second, kLength, kLength - kPrefix - 1), row);
  EXPECT_EQ(drafts_after_prompt(2, second, kLength), drafts);
}

INSTANTIATE_TEST_SUITE_P(Activations, MtpDrafting,
                         ::testing::Values(ActivationDType::kFp32, ActivationDType::kBf16),
                         [](const auto& p) {
                           return p.param == ActivationDType::kFp32 ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace tandem::testing
