// Quantized checkpoints as they are stored against the same weights multiplied out to F32: logits
// equal but for fp32 rounding, on one rank and on two (run with two), where slices cut scale blocks
// too.
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "memory/part_allocator.h"
#include "tests/models/quantized_checkpoint.h"
#include "tests/models/random_checkpoint.h"
#include "tests/support/engine_harness.h"
#include "tests/support/mpi_test_main.h"
#include "tests/support/test_data.h"

namespace tandem::testing {
namespace {

// Of logits in the 2-norm. Sums run in another order on the other side: a scale missed, swapped or
// shifted by a block gives errors of a tenth and more.
constexpr double kTolerance = 2e-5;
constexpr std::size_t kPrompt = 70, kGenerated = 4;

// Checkpoints that all ranks see; construction and destruction are collective.
class Copies {
 public:
  Copies(const std::filesystem::path& source, QuantRecipe recipe) {
    std::string path;
    if (world().rank() == 0) {
      directory_ = std::make_unique<TempDir>();
      write_quantized(source, *directory_ / "quantized", recipe);
      write_dequantized(*directory_ / "quantized", *directory_ / "f32");
      path = directory_->path().string();
    }
    world().bcast(path);
    path_ = path;
  }
  ~Copies() { world().barrier(); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  JobConfig job(const char* which) const {
    JobConfig job = tiny_job();
    job.model.path = (path_ / which).string();
    job.model.activation_dtype = ActivationDType::kFp32;
    job.memory.kv_bytes = std::int64_t{4} << 20;
    job.scheduler.max_context = 256;
    job.scheduler.max_sequences = 2;
    return job;
  }

 private:
  std::unique_ptr<TempDir> directory_;
  std::filesystem::path path_;
};

struct Outcome {
  std::vector<float> logits;  // of the last rows of a prompt
  std::int64_t weight_bytes = 0;
};

// The same on every rank of the group of `ranks` first ones; empty on the others.
Outcome run(int ranks, const JobConfig& job) {
  const bool member = world().rank() < ranks;
  const HostComm group = world().split(member ? 0 : 1, world().rank());
  return world().together([&] {
    Outcome out;
    if (!member) return out;
    EngineHarness engine(group, job);
    std::mt19937_64 generator(5);
    std::uniform_int_distribution<std::int32_t> any_id(0, 4000);
    std::vector<std::int32_t> ids(kPrompt);
    for (auto& id : ids) id = any_id(generator);
    engine.prompt_pass(ids, 0, true);
    out.logits = engine.last_logits(kGenerated);
    out.weight_bytes =
        static_cast<std::int64_t>(engine.parts().plan().counts.bytes(std::string(parts::kWeights)));
    return out;
  });
}

class Quantized : public ::testing::TestWithParam<QuantRecipe> {
 protected:
  static void compare(const std::filesystem::path& source, int max_ranks) {
    const Copies copies(source, GetParam());
    for (int ranks = 1; ranks <= max_ranks; ranks *= 2) {
      const Outcome stored = run(ranks, copies.job("quantized"));
      const Outcome widened = run(ranks, copies.job("f32"));
      if (world().rank() >= ranks) continue;
      EXPECT_LT(relative_error(stored.logits, widened.logits), kTolerance) << ranks << " ranks";
      // Not widened behind the scenes.
      EXPECT_LT(stored.weight_bytes, widened.weight_bytes);
    }
  }
};

TEST_P(Quantized, LogitsAreThoseOfTheValues) { compare(test_data("tiny-qwen3.8"), 2); }

// Columns and rows that no block divides, two files, a prefix of nested exports, F16 sources.
TEST_P(Quantized, AwkwardShapes) {
  for (const ModelShape& shape : model_shapes()) {
    if (shape.max_ranks < 2) continue;
    SCOPED_TRACE(shape.name);
    std::unique_ptr<TempDir> directory;
    std::string path;
    if (world().rank() == 0) {
      directory = std::make_unique<TempDir>();
      RandomCheckpoint(shape, 4).write(*directory / "model");
      path = (*directory / "model").string();
    }
    world().bcast(path);
    compare(path, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Quantized, ::testing::ValuesIn(quant_recipes()),
                         [](const auto& param) { return recipe_name(param.param); });

}  // namespace
}  // namespace tandem::testing
