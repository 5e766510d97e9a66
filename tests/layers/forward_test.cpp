// Layers over one rank and over several, the collectives done by hand: sums that a split does not
// change by a bit, vocabulary shards, and the states a Gated DeltaNet layer saves and restores.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/backend.h"
#include "layers/gated_delta_net.h"
#include "layers/mlp.h"
#include "layers/vocab.h"
#include "models/batch_arrays.h"
#include "tests/layers/layer_fixture.h"

namespace tandem::testing {
namespace {

constexpr float kScale = 0.25f;

// One rank of a layer under test: its memory, its weights and a context without other ranks, so
// that what a layer "sums over ranks" is this rank's part.
struct Rank {
  Rank(int rank, int size) : binder(memory, {rank, size}, source, BackendKind::kCpu) {}

  LayerContext context(DType activations = DType::kF32) {
    if (buffer == nullptr) buffer = memory.take(parts::kActivations, kScratchBytes);
    scratch = Scratch(buffer, kScratchBytes);
    return {*backend, *comm, scratch, activations};
  }

  static constexpr std::size_t kScratchBytes = std::size_t{4} << 20;
  HeapAllocator memory;
  StoredAs source{WeightFormat::kBf16};
  WeightBinder binder;
  std::unique_ptr<Backend> backend = make_backend(BackendKind::kCpu, {.num_threads = 1});
  std::unique_ptr<DeviceComm> comm = make_single_device_comm();
  void* buffer = nullptr;
  Scratch scratch;
};

std::vector<float> tree_sum(std::vector<std::vector<float>> parts) {
  while (parts.size() > 1) {
    std::vector<std::vector<float>> sums;
    for (std::size_t i = 0; i < parts.size(); i += 2) {
      std::vector<float> sum = parts[i];
      for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += parts[i + 1][j];
      sums.push_back(std::move(sum));
    }
    parts = std::move(sums);
  }
  return parts.front();
}

TEST(RowLinearSplit, RanksAddAlongTheTreeOfTheLayer) {
  constexpr int kOut = 20, kRows = 3;
  for (const auto& [in, blocks] : {std::pair{192, 24}, {96, 12}, {40, 40}, {96, 2}}) {
    const auto x = whole_weight("x", kRows * in, 1.0f);
    const auto run = [&, in = in, blocks = blocks](int rank, int size) {
      Rank r(rank, size);
      const RowLinear layer(r.binder, "w", kOut, in, blocks);
      fill_weights(r.binder.requests(), kScale);
      std::vector<float> part;
      for (int row = 0; row < kRows; ++row) {
        const auto begin = x.begin() + row * in + rank * (in / size);
        part.insert(part.end(), begin, begin + in / size);
      }
      std::vector<float> y(kOut * kRows);
      layer.forward(r.context(), part.data(), kRows, y.data());
      return y;
    };
    const auto alone = run(0, 1);
    const auto weight = whole_weight("w", kOut * in, kScale);
    for (int row = 0; row < kRows; ++row) {
      for (int o = 0; o < kOut; ++o) {
        double sum = 0;
        for (int i = 0; i < in; ++i) {
          sum += double{weight[static_cast<std::size_t>(o * in + i)]} *
                 double{x[static_cast<std::size_t>(row * in + i)]};
        }
        EXPECT_NEAR(alone[static_cast<std::size_t>(row * kOut + o)], sum, 1e-5);
      }
    }
    for (int size = 2; size <= num_tree_leaves(blocks); size *= 2) {
      std::vector<std::vector<float>> parts;
      for (int rank = 0; rank < size; ++rank) parts.push_back(run(rank, size));
      EXPECT_EQ(tree_sum(parts), alone) << in << " columns over " << size << " ranks";
    }
  }
}

TEST(MlpSplit, RanksAddUpToTheSameBits) {
  constexpr int kHidden = 72, kWidth = 48, kRows = 5;
  const auto x = whole_weight("x", kRows * kHidden, 1.0f);
  const auto run = [&](int rank, int size) {
    Rank r(rank, size);
    const GatedMlp mlp(r.binder, "mlp.", kHidden, kWidth);
    fill_weights(r.binder.requests(), kScale);
    std::vector<float> y(kHidden * kRows);
    mlp.forward(r.context(), {.x = x.data(), .rows = kRows}, y.data());
    return y;
  };
  const auto alone = run(0, 1);
  EXPECT_EQ(tree_sum({run(0, 2), run(1, 2)}), alone);
  EXPECT_EQ(tree_sum({run(0, 4), run(1, 4), run(2, 4), run(3, 4)}), alone);
}

TEST(VocabSplit, EmbeddingIsTheOwnersRowAndZeroElsewhere) {
  constexpr int kVocab = 11, kHidden = 8;
  const std::vector<std::int32_t> ids = {0, 10, 5, 6, 3};
  const auto table = whole_weight("embed", kVocab * kHidden, 1.0f);
  for (const int size : {1, 2, 4}) {
    std::vector<float> sum(ids.size() * kHidden, 0.0f);
    for (int rank = 0; rank < size; ++rank) {
      Rank r(rank, size);
      const VocabEmbedding embedding(r.binder, "embed", kVocab, kHidden);
      fill_weights(r.binder.requests(), 1.0f);
      std::vector<float> part(sum.size(), NAN);
      embedding.forward(r.context(), ids.data(), static_cast<int>(ids.size()), part.data());
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const auto id = ids[i / kHidden];
        const auto& shard = embedding.shard();
        if (id < shard.begin || id >= shard.begin + shard.rows) {
          EXPECT_EQ(part[i], 0);
        }
        sum[i] += part[i];
      }
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {
      EXPECT_EQ(sum[i], table[static_cast<std::size_t>(ids[i / kHidden]) * kHidden + i % kHidden]);
    }
  }
}

TEST(VocabSplit, HeadsLogitsAreThoseOfOneRank) {
  constexpr int kVocab = 11, kHidden = 40, kRows = 3;
  const auto x = whole_weight("x", kRows * kHidden, 1.0f);
  const auto run = [&](int rank, int size, VocabShard& shard) {
    Rank r(rank, size);
    const LmHead head(r.binder, "lm_head.weight", kVocab, kHidden);
    fill_weights(r.binder.requests(), kScale);
    shard = head.shard();
    std::vector<float> logits(static_cast<std::size_t>(kRows * shard.padded_rows), -7.0f);
    head.forward(r.context(), x.data(), kRows, logits.data());
    return logits;
  };
  VocabShard whole;
  const auto alone = run(0, 1, whole);
  for (const int size : {2, 4, 8}) {
    for (int rank = 0; rank < size; ++rank) {
      VocabShard shard;
      const auto part = run(rank, size, shard);
      for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t i = 0; i < shard.padded_rows; ++i) {
          const float got = part[static_cast<std::size_t>(row * shard.padded_rows + i)];
          const float expected =
              i < shard.rows ? alone[static_cast<std::size_t>(row * kVocab + shard.begin + i)]
                             : -7.0f;  // not written
          EXPECT_EQ(got, expected) << "rank " << rank << " of " << size;
        }
      }
    }
  }
}

TEST(VocabSplit, TiedHeadUsesTheEmbedding) {
  constexpr int kVocab = 11, kHidden = 40;
  const auto x = whole_weight("x", kHidden, 1.0f);
  Rank tied(1, 2), untied(1, 2);
  const VocabEmbedding embedding(tied.binder, "table", kVocab, kHidden);
  const LmHead tied_head(embedding);
  const LmHead head(untied.binder, "table", kVocab, kHidden);
  EXPECT_EQ(tied.binder.requests().size(), 1u);
  fill_weights(tied.binder.requests(), kScale);
  fill_weights(untied.binder.requests(), kScale);
  std::vector<float> a(6, 0.0f), b(6, 0.0f);
  tied_head.forward(tied.context(), x.data(), 1, a.data());
  head.forward(untied.context(), x.data(), 1, b.data());
  EXPECT_EQ(a, b);
  EXPECT_NE(a[0], 0);
}

// A Gated DeltaNet layer with two slots and one snapshot.
class DeltaNetState : public ::testing::Test {
 protected:
  static constexpr int kHidden = 48;
  DeltaNetState()
      : tables_(rank_.memory, shape_),
        batch_(rank_.memory, shape_, tables_),
        layer_(rank_.binder, rank_.memory, "gdn.",
               {.hidden = kHidden,
                .num_k_heads = 2,
                .num_v_heads = 4,
                .k_dim = 32,
                .v_dim = 16,
                .conv_kernel = 3,
                .eps = 1e-6},
               shape_) {
    fill_weights(rank_.binder.requests(), kScale);
    for (int slot = 0; slot < 2; ++slot) layer_.reset_slot(*rank_.backend, slot);
  }

  // Rows of the input sequence `name` from `start` on.
  std::vector<float> run(ops::RowClass row_class, int slot, const std::string& name, int start,
                         int rows, int pending) {
    batch_.clear(row_class);
    batch_.add_segment(slot, start, (start + rows) % 64 != 0);
    for (int i = 0; i < rows; ++i) batch_.add_row(0);
    tables_.pending_rows[slot] = pending;
    std::vector<float> x;
    for (int i = 0; i < rows * kHidden; ++i) {
      x.push_back(weight_value(name, start * kHidden + i, 1.0f));
    }
    std::vector<float> out(x.size());
    layer_.forward(rank_.context(), batch_.upload(*rank_.backend), {.x = x.data(), .rows = rows},
                   out.data());
    return out;
  }
  std::vector<float> prompt(int slot, const std::string& name, int start, int rows) {
    return run(ops::RowClass::kPrompt, slot, name, start, rows, 0);
  }

  EngineShape shape_{.max_sequences = 2,
                     .max_rows = 128,
                     .max_round_rows = 4,
                     .page_tokens = 128,
                     .pages_per_sequence = 1,
                     .num_snapshots = 2,
                     .activations = DType::kF32};
  Rank rank_{0, 1};
  SlotTables tables_;
  BatchArrays batch_;
  GatedDeltaNet layer_;
};

TEST_F(DeltaNetState, SlotsDoNotSeeEachOther) {
  const auto alone = prompt(0, "a", 0, 64);
  const auto alone_next = prompt(0, "a", 64, 20);
  layer_.reset_slot(*rank_.backend, 0);
  EXPECT_EQ(prompt(0, "a", 0, 64), alone);
  prompt(1, "b", 0, 64);
  EXPECT_EQ(prompt(0, "a", 64, 20), alone_next);
}

TEST_F(DeltaNetState, ResetForgetsEverything) {
  const auto fresh = prompt(0, "a", 0, 30);
  prompt(0, "b", 0, 64);
  run(ops::RowClass::kGenerated, 0, "b", 64, 4, 0);
  EXPECT_NE(prompt(0, "a", 0, 30), fresh);
  layer_.reset_slot(*rank_.backend, 0);
  EXPECT_EQ(prompt(0, "a", 0, 30), fresh);
}

TEST_F(DeltaNetState, SnapshotGoesOnInAnySlot) {
  prompt(0, "a", 0, 64);
  layer_.save_slot(*rank_.backend, 0, 1);
  const auto expected = prompt(0, "a", 64, 40);
  prompt(1, "b", 0, 64);
  run(ops::RowClass::kGenerated, 1, "b", 64, 3, 0);
  layer_.restore_slot(*rank_.backend, 1, 1);
  EXPECT_EQ(prompt(1, "a", 64, 40), expected);
}

// A rejection is a smaller number of pending rows, and nothing else.
TEST_F(DeltaNetState, RejectedRowsLeaveNoTrace) {
  prompt(0, "a", 0, 64);
  layer_.save_slot(*rank_.backend, 0, 0);
  std::vector<std::vector<float>> plain;
  for (int p = 64; p < 70; ++p) {
    plain.push_back(run(ops::RowClass::kGenerated, 0, "a", p, 1, p == 64 ? 0 : 1));
  }
  layer_.restore_slot(*rank_.backend, 0, 0);
  const auto first_row = [](std::vector<float> rows) {
    rows.resize(kHidden);
    return rows;
  };
  // Row 64 stays, three others of another text go; then 65 ... 67, of which two stay.
  run(ops::RowClass::kGenerated, 0, "a", 64, 1, 0);
  run(ops::RowClass::kGenerated, 0, "b", 65, 4, 1);
  EXPECT_EQ(first_row(run(ops::RowClass::kGenerated, 0, "a", 65, 3, 0)), plain[1]);
  EXPECT_EQ(first_row(run(ops::RowClass::kGenerated, 0, "a", 67, 1, 2)), plain[3]);
  EXPECT_EQ(first_row(run(ops::RowClass::kGenerated, 0, "a", 68, 2, 1)), plain[4]);
}

}  // namespace
}  // namespace tandem::testing
