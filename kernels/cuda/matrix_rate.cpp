// cuBLASLt as a yardstick. It is opened at run time: the program does not need it, and it may be
// missing where the toolkit has been trimmed.
#include <cuda_runtime_api.h>
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define TANDEM_HAS_CUBLASLT 1
#endif

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "base/types.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/shared_library.h"

namespace tandem::cuda {

#if TANDEM_HAS_CUBLASLT
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;
constexpr int kMaxAlgorithms = 8;

// Loaded as the version that the header describes.
#define TANDEM_TEXT_OF(macro) TANDEM_TEXT(macro)
#define TANDEM_TEXT(tokens) #tokens
struct CublasLt {
  SharedLibrary library{"libcublasLt.so." TANDEM_TEXT_OF(CUBLAS_VER_MAJOR)};
#undef TANDEM_TEXT_OF
#undef TANDEM_TEXT
#define TANDEM_CUBLASLT_FUNCTION(name) \
  decltype(&::cublasLt##name) name = library.find<decltype(&::cublasLt##name)>("cublasLt" #name)
  TANDEM_CUBLASLT_FUNCTION(GetVersion);
  TANDEM_CUBLASLT_FUNCTION(Create);
  TANDEM_CUBLASLT_FUNCTION(Destroy);
  TANDEM_CUBLASLT_FUNCTION(MatmulDescCreate);
  TANDEM_CUBLASLT_FUNCTION(MatmulDescSetAttribute);
  TANDEM_CUBLASLT_FUNCTION(MatmulDescDestroy);
  TANDEM_CUBLASLT_FUNCTION(MatrixLayoutCreate);
  TANDEM_CUBLASLT_FUNCTION(MatrixLayoutDestroy);
  TANDEM_CUBLASLT_FUNCTION(MatmulPreferenceCreate);
  TANDEM_CUBLASLT_FUNCTION(MatmulPreferenceSetAttribute);
  TANDEM_CUBLASLT_FUNCTION(MatmulPreferenceDestroy);
  TANDEM_CUBLASLT_FUNCTION(MatmulAlgoGetHeuristic);
  TANDEM_CUBLASLT_FUNCTION(Matmul);
#undef TANDEM_CUBLASLT_FUNCTION
};

void check_status(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ExitCode::kInternal,
              {.what = fmt::format("{} failed with status {}", call, static_cast<int>(status)),
               .where = "cuBLASLt"});
}

// Device memory for the time of a measurement.
class Block {
 public:
  Block(CudaBackend& backend, std::size_t bytes)
      : backend_(backend), bytes_(bytes), data_(backend.allocate(bytes)) {}
  ~Block() { backend_.deallocate(data_, bytes_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  CudaBackend& backend_;
  std::size_t bytes_;
  void* data_;
};

// Numbers around zero: products of zeros take less power, and so more clock, than a model's do.
void fill_matrix(CudaBackend& backend, const Block& matrix) {
  std::vector<bf16> period(1 << 18);
  std::uint32_t state = 1;
  for (bf16& value : period) {
    state = state * 1664525u + 1013904223u;
    value = to_bf16(static_cast<float>(state >> 8) * 0x1p-24f - 0.5f);
  }
  const std::size_t period_bytes = period.size() * sizeof(bf16);
  for (std::size_t at = 0; at < matrix.bytes(); at += period_bytes) {
    backend.copy(static_cast<std::byte*>(matrix.data()) + at, period.data(),
                 std::min(period_bytes, matrix.bytes() - at));
  }
  backend.synchronize();
}

// Handles of one n x n x n product D = A^T B, columns stored one after the other: both inputs are
// read along the summed dimension, as in a linear of ours.
class Product {
 public:
  // Delegates, so that the handles made so far are given back when a later call fails.
  Product(const CublasLt& lt, std::uint64_t n) : Product(lt) {
    check_status(lt_.Create(&handle_), "cublasLtCreate");
    check_status(lt_.MatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_status(lt_.MatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                            sizeof transposed),
                 "cublasLtMatmulDescSetAttribute");
    check_status(lt_.MatrixLayoutCreate(&layout_, CUDA_R_16BF, n, n, static_cast<std::int64_t>(n)),
                 "cublasLtMatrixLayoutCreate");
    check_status(lt_.MatmulPreferenceCreate(&preference_), "cublasLtMatmulPreferenceCreate");
    const std::size_t workspace = kWorkspaceBytes;
    check_status(
        lt_.MatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace, sizeof workspace),
        "cublasLtMatmulPreferenceSetAttribute");
  }
  ~Product() {
    if (preference_ != nullptr) lt_.MatmulPreferenceDestroy(preference_);
    if (layout_ != nullptr) lt_.MatrixLayoutDestroy(layout_);
    if (product_ != nullptr) lt_.MatmulDescDestroy(product_);
    if (handle_ != nullptr) lt_.Destroy(handle_);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  std::vector<cublasLtMatmulAlgo_t> algorithms() const {
    std::array<cublasLtMatmulHeuristicResult_t, kMaxAlgorithms> found{};
    int count = 0;
    check_status(lt_.MatmulAlgoGetHeuristic(handle_, product_, layout_, layout_, layout_, layout_,
                                            preference_, kMaxAlgorithms, found.data(), &count),
                 "cublasLtMatmulAlgoGetHeuristic");
    std::vector<cublasLtMatmulAlgo_t> usable;
    for (int i = 0; i < count; ++i) {
      const auto& result = found[static_cast<std::size_t>(i)];
      if (result.state == CUBLAS_STATUS_SUCCESS) usable.push_back(result.algo);
    }
    return usable;
  }

  void run(const cublasLtMatmulAlgo_t& algorithm, const Block& a, const Block& b, const Block& d,
           const Block& workspace, cudaStream_t stream) const {
    const float one = 1, zero = 0;
    check_status(lt_.Matmul(handle_, product_, &one, a.data(), layout_, b.data(), layout_, &zero,
                            d.data(), layout_, d.data(), layout_, &algorithm, workspace.data(),
                            workspace.bytes(), stream),
                 "cublasLtMatmul");
  }

 private:
  explicit Product(const CublasLt& lt) : lt_(lt) {}

  const CublasLt& lt_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t layout_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
};

// Median seconds of one product.
double seconds_of(CudaBackend& backend, const std::function<void()>& product) {
  constexpr int kCalls = 5, kSamples = 5;
  const auto timer = make_device_timer(backend, ops::Submit::kOneByOne, kCalls, product);
  timer->seconds();  // warms up
  std::array<double, kSamples> seconds{};
  for (double& s : seconds) s = timer->seconds() / kCalls;
  std::nth_element(seconds.begin(), seconds.begin() + kSamples / 2, seconds.end());
  return seconds[kSamples / 2];
}

}  // namespace

ops::MatrixRate measure_matrix_rate(CudaBackend& backend, int n) {
  CublasLt lt;
  if (!lt.library.error().empty()) {
    return {.flops_per_s = 0, .source = "no cuBLASLt: " + lt.library.error()};
  }
  const std::size_t matrix_bytes =
      static_cast<std::size_t>(n) * static_cast<std::size_t>(n) * sizeof(bf16);
  const Block a(backend, matrix_bytes), b(backend, matrix_bytes), d(backend, matrix_bytes),
      workspace(backend, kWorkspaceBytes);
  fill_matrix(backend, a);
  fill_matrix(backend, b);
  const Product product(lt, static_cast<std::uint64_t>(n));
  double least_s = 0;
  for (const cublasLtMatmulAlgo_t& algorithm : product.algorithms()) {
    const double s =
        seconds_of(backend, [&] { product.run(algorithm, a, b, d, workspace, backend.stream()); });
    if (least_s == 0 || s < least_s) least_s = s;
  }
  const std::size_t version = lt.GetVersion();
  ops::MatrixRate rate;
  rate.source = fmt::format("cuBLASLt {}.{}.{}, {} x {} x {}", version / 10000, version / 100 % 100,
                            version % 100, n, n, n);
  if (least_s > 0) {
    rate.flops_per_s = 2.0 * n * n * n / least_s;
  } else {
    rate.source += ": no algorithm";
  }
  return rate;
}
#else
ops::MatrixRate measure_matrix_rate(CudaBackend&, int) {
  return {.flops_per_s = 0, .source = "built without cuBLASLt's header"};
}
#endif

}  // namespace tandem::cuda
