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
  // A round of the target over ids[start ...], all of whose rows are accepted: what a slot needs
  // for it and for `num_drafts` drafts behind it.
  static ops::RoundSlot true_round(const Tokens& ids, int start, int rows, int num_drafts) {
    ops::RoundSlot slot;
    slot.last_token = ids[static_cast<std::size_t>(start)];
    slot.position = start;
    slot.limit_len = start + rows + 2 + num_drafts;
    slot.num_drafts = rows - 1;
    std::copy_n(ids.begin() + start + 1, rows - 1, slot.drafts);
    slot.known_next = ids[static_cast<std::size_t>(start + rows)];
    return slot;
  }
  // The drafts of each slot behind its round.
  std::vector<Tokens> run_rounds(const std::vector<int>& slots,
                                 const std::vector<ops::RoundSlot>& rounds) {
    int rows = 1;
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      join(slots[i], rounds[i]);
      ids.push_back(slots[i]);
      rows = std::max(rows, 1 + rounds[i].num_drafts);
    }
    runner_.run_known(ids, rows, kDrafts);
    // The next round has what was drafted.
    std::vector<Tokens> drafts = drafts_of(ids);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      program().tables().note_pending_rows(slots[i], 1 + rounds[i].num_drafts);
    }
    return drafts;
  }
  Tokens round(int slot, const Tokens& ids, int start, int rows, int num_drafts = kDrafts) {
    return run_rounds({slot}, {true_round(ids, start, rows, num_drafts)})[0];
  }
  void join(int slot, const ops::RoundSlot& state) {
    const auto& shape = engine_.parts().plan().limits.shape;
    program().tables().upload_pages(context().backend, slot, shape.pages_per_sequence);
    program().rounds().join(context().backend, slot, state);
  }
  // What the slots hold for their next round.
  std::vector<Tokens> drafts_of(const std::vector<std::int32_t>& slots) {
    context().backend.synchronize();
    const auto places = program().rounds().places(1, 1);
    std::vector<Tokens> out;
    for (const auto slot : slots) {
      ops::RoundSlot state;
      context().backend.copy(&state, places.table + slot, sizeof state);
      context().backend.synchronize();
      out.emplace_back(state.drafts, state.drafts + state.num_drafts);
    }
    return out;
  }
  void pass(ops::RowClass row_class, int slot, const Tokens& ids, int start, int rows,
            bool ends_prompt) {
    auto& batch = program().batch();
    batch.clear(row_class);
    batch.add_segment(slot, start, ends_prompt);
    for (int i = 0; i < rows; ++i) batch.add_row(ids[static_cast<std::size_t>(start + i)]);
    program().model().forward(context(), batch.upload(context().backend), program().hidden());
  }

  // Drafts behind prompts of lengths[i] tokens and the first generated ones.
  std::vector<Tokens> drafts_after_prompts(const std::vector<std::int32_t>& slots,
                                           const std::vector<Tokens>& texts,
                                           const std::vector<int>& lengths,
                                           const std::vector<int>& num_drafts) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      ops::RoundSlot state;
      state.last_token = texts[i][static_cast<std::size_t>(lengths[i])];
      state.position = lengths[i];
      state.limit_len = 512;
      state.num_drafts = num_drafts[i];
      join(slots[i], state);
    }
    runner_.draft_behind_prompts(slots, kDrafts);
    return drafts_of(slots);
  }
  Tokens drafts_after_prompt(int slot, const Tokens& ids, int n, int num_drafts = kDrafts) {
    return drafts_after_prompts({slot}, {ids}, {n}, {num_drafts})[0];
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
  RoundRunner runner_{context(), program(), {.max_sequences = 3, .draft_tokens = kDrafts}};
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
    const auto together =
        drafts_after_prompts({0, 1, 2}, texts, lengths, {depths.begin(), depths.end()});
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
  Tokens one_by_one;

  prompt(0, ids, {kLength});
  drafts_after_prompt(0, ids, kLength);
  const Tokens at_once = round(0, ids, kLength, 4);

  prompt(0, ids, {kLength});
  drafts_after_prompt(0, ids, kLength);
  for (int p = kLength; p < kLength + 4; ++p) one_by_one = round(0, ids, p, 1);
  EXPECT_EQ(at_once, one_by_one);

  // Rounds that propose nothing keep the head's cache filled.
  prompt(0, ids, {kLength});
  drafts_after_prompt(0, ids, kLength, 0);
  EXPECT_EQ(round(0, ids, kLength, 3, 0), Tokens{});
  EXPECT_EQ(at_once, round(0, ids, kLength + 3, 1));
}

// Rounds of two slots in one pass: each slot's hidden states are where its place is, also when one
// has fewer rows than its place.
TEST_P(MtpDrafting, SlotsOfOneRoundTakeTheirOwnRows) {
  constexpr int kLength = 30, kRows = 3;
  const std::array texts = {text(40, kLength + kRows + 1), text(41, kLength + kRows + 1)};
  for (const int second_rows : {kRows, 1}) {
    const std::array rows = {kRows, second_rows};
    std::vector<ops::RoundSlot> rounds;
    std::vector<Tokens> alone;
    for (int slot = 0; slot < 2; ++slot) {
      const auto s = static_cast<std::size_t>(slot);
      const auto& ids = texts[s];
      rounds.push_back(true_round(ids, kLength, rows[s], kDrafts));
      prompt(slot, ids, {kLength});
      drafts_after_prompt(slot, ids, kLength, 0);
      alone.push_back(run_rounds({slot}, {rounds[s]})[0]);
      prompt(slot, ids, {kLength});
      drafts_after_prompt(slot, ids, kLength, 0);
    }
    EXPECT_EQ(run_rounds({0, 1}, rounds), alone);
  }
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
