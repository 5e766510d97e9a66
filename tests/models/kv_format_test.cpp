// The KV cache in FP8, through the whole engine: how far it moves the logits, that ranks share
// given scales by heads, what is refused, and what a page takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "tests/support/engine_harness.h"
#include "tests/support/mpi_test_main.h"
#include "tests/support/test_data.h"

namespace tandem::testing {
namespace {

namespace fs = std::filesystem;

// BF16 keeps 8 bits of a number and E4M3 keeps 4: a cache in FP8 moves logits 16 times as far as
// one in BF16 does (measured: 16.0). Given scales are not the best for every entry, which may cost
// as much again.
constexpr double kPredicted = 16;
constexpr double kAtMost = 2 * kPredicted;
constexpr double kAtLeast = kPredicted / 2;  // less would be no FP8
// What an FP8 cache may add to the divergence from the exact model (quantization.md, section 11.3).
constexpr double kMaxDivergence = 0.003;
constexpr int kRows = 64;  // of logits that are compared
constexpr int kHeads = 2;  // KV heads of the tiny model
constexpr int kDim = 256;

std::vector<std::int32_t> prompt_ids(const std::string& name) {
  const auto json = nlohmann::json::parse(read_text(test_data("prompts.json")));
  return json.at("prompts").at(name);
}

JobConfig kv_job(KvDType kv_dtype, const fs::path& model = test_data("tiny-qwen3.8")) {
  JobConfig job = tiny_job();
  job.model.path = model.string();
  job.model.activation_dtype = ActivationDType::kFp32;
  job.memory.kv_dtype = kv_dtype;
  job.scheduler.max_batched_tokens = 512;  // a prompt in one pass
  job.output.logit_hash = true;
  job.run.determinism = DeterminismLevel::kRankInvariant;
  return job;
}

// The tiny checkpoint, with scales of its attention layer's keys and values in a second file.
class CheckpointWithScales {
 public:
  CheckpointWithScales(const std::vector<float>& k, const std::vector<float>& v) {
    const fs::path source = test_data("tiny-qwen3.8");
    for (const auto& file : fs::directory_iterator(source)) {
      fs::copy(file.path(), directory_ / file.path().filename().string());
    }
    const auto checkpoint = Checkpoint::open(source);
    nlohmann::json weight_map;
    std::string attention;
    for (const auto& [name, entry] : checkpoint.tensors()) {
      weight_map[name] = "model.safetensors";
      const auto end = name.find("q_proj.weight");
      if (end != std::string::npos && !name.starts_with("mtp.")) attention = name.substr(0, end);
    }
    const auto count = [](const std::vector<float>& x) { return std::ssize(x); };
    const std::vector<TensorToWrite> scales{
        {attention + "k_proj.k_scale", DType::kF32, {count(k)}, k.data()},
        {attention + "v_proj.v_scale", DType::kF32, {count(v)}, v.data()}};
    for (const auto& scale : scales) weight_map[scale.name] = "scales.safetensors";
    write_safetensors(directory_ / "scales.safetensors", scales);
    write_text(directory_ / "model.safetensors.index.json",
               nlohmann::json{{"weight_map", weight_map}}.dump());
  }
  const fs::path& path() const { return directory_.path(); }

 private:
  TempDir directory_;
};

// Calls `action` with a group of the first `ranks` ranks on each of them.
template <typename Action>
void on_ranks(int ranks, const Action& action) {
  const bool member = world().rank() < ranks;
  const HostComm group = world().split(member ? 0 : 1, world().rank());
  if (member) action(group);
  world().barrier();
}

std::vector<float> prompt_logits(const HostComm& group, const JobConfig& job) {
  EngineHarness engine(group, job);
  const auto ids = prompt_ids("p300");
  engine.prompt_pass(ids);
  return engine.last_logits(kRows);
}

// Mean Kullback-Leibler divergence of rows [kRows, vocabulary] of logits from those of `exact`.
double divergence(const std::vector<float>& logits, const std::vector<float>& exact) {
  const std::size_t vocabulary = exact.size() / kRows;
  double sum = 0;
  for (std::size_t row = 0; row < kRows; ++row) {
    const auto log_sum = [&](const std::vector<float>& values) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * vocabulary);
      const auto end = begin + static_cast<std::ptrdiff_t>(vocabulary);
      const double max = *std::max_element(begin, end);
      return max + std::log(std::accumulate(begin, end, 0.0, [&](double total, float x) {
               return total + std::exp(x - max);
             }));
    };
    const double log_exact = log_sum(exact), log_other = log_sum(logits);
    for (std::size_t i = row * vocabulary; i < (row + 1) * vocabulary; ++i) {
      const double log_p = exact[i] - log_exact;
      sum += std::exp(log_p) * (log_p - (logits[i] - log_other));
    }
  }
  return sum / kRows;
}

// Large enough for the tiny model's keys, which are normed, and values; no larger than need be.
const std::vector<float> kKScales{0.030f, 0.035f}, kVScales{0.012f, 0.010f};

TEST(KvFormat, LogitsStayClose) {
  on_ranks(1, [](const HostComm& group) {
    const auto wide = prompt_logits(group, kv_job(KvDType::kFp32));
    const double bf16 = relative_error(prompt_logits(group, kv_job(KvDType::kBf16)), wide);
    RecordProperty("bf16", std::to_string(bf16));
    const CheckpointWithScales checkpoint(kKScales, kVScales);
    for (const KvDType fp8 : {KvDType::kFp8Dynamic, KvDType::kFp8Static}) {
      const char* name = fp8 == KvDType::kFp8Dynamic ? "fp8_dynamic" : "fp8_static";
      const auto logits = prompt_logits(group, kv_job(fp8, checkpoint.path()));
      const double error = relative_error(logits, wide);
      RecordProperty(name, std::to_string(error));
      RecordProperty(std::string(name) + ".divergence", std::to_string(divergence(logits, wide)));
      EXPECT_LE(error, kAtMost * bf16) << name;
      EXPECT_GE(error, kAtLeast * bf16) << name;
      EXPECT_LE(divergence(logits, wide), kMaxDivergence) << name;
    }
  });
}

// With BF16 activations, which a GPU has other kernels for, their rounding is what shows.
TEST(KvFormat, LogitsStayCloseInBf16) {
  on_ranks(1, [](const HostComm& group) {
    const auto exact = prompt_logits(group, kv_job(KvDType::kFp32));
    const auto error = [&](KvDType kv_dtype) {
      JobConfig job = kv_job(kv_dtype);
      job.model.activation_dtype = ActivationDType::kBf16;
      return relative_error(prompt_logits(group, job), exact);
    };
    EXPECT_LE(error(KvDType::kFp8Dynamic), 1.5 * error(KvDType::kBf16));
  });
}

// Scales that differ between heads: a rank must take those of its own.
TEST(KvFormat, GivenScalesFollowTheirHeads) {
  const CheckpointWithScales checkpoint(kKScales, kVScales);
  std::vector<std::int32_t> ids;
  std::vector<std::uint64_t> hashes;
  for (const int ranks : {1, 2, 4}) {
    if (ranks > world().size()) continue;
    on_ranks(ranks, [&](const HostComm& group) {
      EngineHarness engine(group, kv_job(KvDType::kFp8Static, checkpoint.path()));
      EXPECT_EQ(engine.parts().program().model().kv_calibration(), KvCalibration::kMeasured);
      const auto record = engine.run({make_request("r", prompt_ids("p130"), 24)}, 1)[0];
      if (ranks == 1) {
        ids = record.completion_ids;
        hashes = record.logit_hashes;
      }
      if (group.rank() > 0) return;
      ASSERT_FALSE(hashes.empty());
      EXPECT_EQ(record.completion_ids, ids) << ranks << " ranks";
      EXPECT_EQ(record.logit_hashes, hashes) << ranks << " ranks";
    });
  }
}

TEST(KvFormat, UncalibratedScalesNeedTheKey) {
  on_ranks(1, [](const HostComm& group) {
    const CheckpointWithScales unit({1.0f}, {1.0f});
    for (const fs::path& model : {unit.path(), test_data("tiny-qwen3.8")}) {
      JobConfig job = kv_job(KvDType::kFp8Static, model);
      try {
        EngineHarness engine(group, job);
        ADD_FAILURE() << "not refused: " << model;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kConfiguration);
        EXPECT_THAT(error.what(), ::testing::HasSubstr("kv_unit_scale"));
      }
      job.memory.kv_unit_scale = true;
      EngineHarness engine(group, job);
      EXPECT_EQ(engine.parts().program().model().kv_calibration(), KvCalibration::kUnit);
    }
  });
}

// Of a token: in the model's layer FP8, in the drafter's the activations' type; scales in one only.
TEST(KvFormat, PagesTakeWhatTheirFormatSays) {
  on_ranks(1, [](const HostComm& group) {
    const CheckpointWithScales checkpoint(kKScales, kVScales);
    const auto token_bytes = [&](KvDType kv_dtype, ActivationDType activations) {
      JobConfig job = kv_job(kv_dtype, checkpoint.path());
      job.model.activation_dtype = activations;
      job.memory.page_tokens = 8;
      EngineHarness engine(group, job);
      const auto& plan = engine.parts().plan();
      EXPECT_LE(plan.limits.shape.num_pages * plan.page_bytes, *job.memory.kv_bytes);
      return plan.page_bytes / 8;
    };
    constexpr int kPlanes = 2 * kHeads;
    constexpr int kBf16Layer = kPlanes * kDim * 2, kF32Layer = kPlanes * kDim * 4;
    EXPECT_EQ(token_bytes(KvDType::kAuto, ActivationDType::kBf16), 2 * kBf16Layer);
    EXPECT_EQ(token_bytes(KvDType::kFp8Dynamic, ActivationDType::kBf16),
              kPlanes * (kDim + 4) + kBf16Layer);
    EXPECT_EQ(token_bytes(KvDType::kFp8Static, ActivationDType::kBf16),
              kPlanes * kDim + kBf16Layer);
    EXPECT_EQ(token_bytes(KvDType::kFp8Dynamic, ActivationDType::kFp32),
              kPlanes * (kDim + 4) + kF32Layer);
  });
}

}  // namespace
}  // namespace tandem::testing
