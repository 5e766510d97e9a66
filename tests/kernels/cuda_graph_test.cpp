// The CUDA backend on a GPU, beyond what the operators' own tests say: identity, memory, and
// operators captured in a graph that is replayed over changed inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/handles.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/sample.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

class CudaBackendTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "runs as cuda.kernels";
  }
};

TEST_F(CudaBackendTest, SaysWhatItIs) {
  const auto backend = test_backend(1);
  EXPECT_EQ(backend->kind(), BackendKind::kCuda);
  EXPECT_EQ(default_backend(), BackendKind::kCuda);
  EXPECT_THAT(backend->description(), ::testing::HasSubstr("compiled for sm_"));
}

TEST_F(CudaBackendTest, RefusesADeviceThatIsNotThere) {
  try {
    make_backend(BackendKind::kCuda, {.device = 1000});
    FAIL() << "a device 1000";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfiguration);
  }
}

TEST_F(CudaBackendTest, CopiesThroughEveryKindOfMemory) {
  const std::vector<float> values = random_normal(1, 100000);
  const std::size_t bytes = values.size() * sizeof(float);
  for (const DeviceMemory memory : {DeviceMemory::kAuto, DeviceMemory::kPinned}) {
    const auto backend = make_backend(BackendKind::kCuda, {.device_memory = memory});
    for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kHostVisible}) {
      void* data = backend->allocate(bytes, kind);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 256, 0u);
      std::vector<float> back(values.size());
      backend->copy(data, values.data(), bytes);
      backend->copy(back.data(), data, bytes);
      backend->synchronize();
      EXPECT_EQ(back, values);
      if (kind == MemoryKind::kHostVisible) {
        EXPECT_EQ(static_cast<float*>(data)[99999], values[99999]);
      }
      backend->zero(data, bytes);
      backend->copy(back.data(), data, bytes);
      backend->synchronize();
      EXPECT_EQ(back, std::vector<float>(values.size()));
      backend->deallocate(data, bytes, kind);
    }
  }
}

TEST_F(CudaBackendTest, TooMuchMemoryIsAnErrorAtOnce) {
  const auto backend = test_backend(1);
  try {
    backend->allocate(std::size_t{1} << 50);
    FAIL() << "a pebibyte was given";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kDoesNotFit);
  }
  backend->deallocate(backend->allocate(1), 1);  // and the next one works
}

TEST_F(CudaBackendTest, ACapturedGraphReplaysOverChangedInputs) {
  constexpr int kRows = 3, kWidth = 512, kVocab = 1000;
  cuda::CudaBackend backend({});
  Array x(DType::kBF16, random_normal(1, kRows * kWidth)), normed(DType::kBF16, kRows * kWidth);
  Array norm(DType::kF32, random_normal(2, kWidth, 0.2f));
  Array w(DType::kBF16, random_normal(3, kVocab * kWidth)), logits(DType::kF32, kRows * kVocab);
  Vector<ops::ArgmaxResult> best(kRows);
  const auto work = [&] {
    ops::rms_norm(backend, {.x = x.data(),
                            .x_stride = kWidth,
                            .weight = norm.floats(),
                            .num_rows = kRows,
                            .width = kWidth,
                            .y = normed.data(),
                            .y_stride = kWidth});
    ops::linear(backend,
                {.x = normed.data(),
                 .x_stride = kWidth,
                 .num_rows = kRows,
                 .weight = {.out_features = kVocab, .in_features = kWidth, .data = w.data()},
                 .y = logits.data(),
                 .y_dtype = DType::kF32,
                 .y_stride = kVocab});
    ops::argmax_rows(backend, {.logits = logits.floats(),
                               .stride = kVocab,
                               .num_rows = kRows,
                               .shard_rows = kVocab,
                               .valid_vocab = kVocab,
                               .out = best.data()});
  };
  const auto graph = backend.capture(work);
  for (std::uint64_t seed = 10; seed < 13; ++seed) {
    const auto fresh = random_normal(seed, kRows * kWidth);
    for (std::size_t i = 0; i < fresh.size(); ++i) x.set(i, fresh[i]);
    graph.launch(backend.stream());
    backend.synchronize();
    const auto replayed = logits.values();
    const Vector<ops::ArgmaxResult> replayed_best = best;
    work();
    backend.synchronize();
    EXPECT_EQ(first_difference(replayed, logits.values()), "");
    for (std::size_t r = 0; r < kRows; ++r) EXPECT_EQ(replayed_best[r].id, best[r].id);
  }
}

// Broken off inside, the stream must be usable again.
TEST_F(CudaBackendTest, AFailedCaptureLeavesTheStreamUsable) {
  cuda::CudaBackend backend({});
  EXPECT_THROW(backend.capture([] { throw Error(ExitCode::kInternal, {.what = "no"}); }), Error);
  Array y(DType::kF32, 16);
  backend.zero(y.data(), 16 * sizeof(float));
  backend.synchronize();
  EXPECT_EQ(y[15], 0.0f);
}

}  // namespace
}  // namespace tandem::testing
