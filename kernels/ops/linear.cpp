#include "kernels/ops/linear.h"

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {
namespace {

bool is_power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }

void check_scales(const LinearWeight& w) {
  check_present(w.scales, "scales");
  TANDEM_CHECK(w.block_rows > 0 && w.block_cols > 0, "scale area of {} x {}", w.block_rows,
               w.block_cols);
  switch (w.scale_dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF8E4M3:
    case DType::kF8E8M0:
      return;
    default:
      TANDEM_CHECK(false, "scales of dtype {}", dtype_name(w.scale_dtype));
  }
}

void check_weight(const LinearWeight& w) {
  check_present(w.data, "weight");
  switch (w.format) {
    case WeightFormat::kBf16:
    case WeightFormat::kF32:
    case WeightFormat::kFp8Tensor:
      return;
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
      TANDEM_CHECK(w.in_features % 2 == 0, "{} columns of two codes a byte", w.in_features);
      [[fallthrough]];
    case WeightFormat::kFp8Block:
    case WeightFormat::kInt8Group:
      check_scales(w);
      return;
    case WeightFormat::kFp8Channel:
    case WeightFormat::kInt8Channel:
      check_present(w.scales, "scales");
      return;
  }
}

void lay_out(Backend& backend, const LinearWeight& weight) {
  TANDEM_DISPATCH(prepack_weight, backend, weight);
}

// False if there is nothing to do.
bool check_linear(const Backend& backend, const LinearArgs& args) {
  const LinearWeight& w = args.weight;
  TANDEM_CHECK(args.num_rows >= 0 && w.out_features >= 0 && w.in_features > 0, "{} x {} x {}",
               args.num_rows, w.out_features, w.in_features);
  if (args.num_rows == 0 || w.out_features == 0) return false;
  check_float_dtype(args.x_dtype, "x");
  check_float_dtype(args.y_dtype, "y");
  check_present(args.x, "x");
  check_present(args.y, "y");
  TANDEM_CHECK(args.x != args.y, "y aliases x");
  TANDEM_CHECK(
      args.num_rows == 1 || (args.x_stride >= w.in_features && args.y_stride >= w.out_features),
      "strides {} and {} for {} x {}", args.x_stride, args.y_stride, w.in_features, w.out_features);
  TANDEM_CHECK(is_power_of_two(args.num_leaves) && args.num_leaves <= kMaxLeaves &&
                   w.in_features % args.num_leaves == 0,
               "{} leaves of {} columns", args.num_leaves, w.in_features);
  TANDEM_CHECK(linear_supports(backend.kind(), w.format), "weight format {}",
               static_cast<int>(w.format));
  check_weight(w);
  TANDEM_CHECK(w.prepacked || !needs_prepacking(w.format), "weight format {} is not prepacked",
               static_cast<int>(w.format));
  return true;
}

}  // namespace

bool linear_supports(BackendKind kind, WeightFormat format) {
#if TANDEM_WITH_CUDA
  if (kind == BackendKind::kCuda) return cuda::linear_supports(format);
#endif
  return kind == BackendKind::kCpu && cpu::linear_supports(format);
}

void prepack_weight(Backend& backend, LinearWeight& weight) {
  if (!needs_prepacking(weight.format)) return;
  TANDEM_CHECK(!weight.prepacked, "a weight is prepacked twice");
  TANDEM_CHECK(linear_supports(backend.kind(), weight.format), "weight format {}",
               static_cast<int>(weight.format));
  if (weight.out_features > 0) {
    check_weight(weight);
    TANDEM_CHECK(reinterpret_cast<std::uintptr_t>(weight.data) % 4 == 0, "codes at {}",
                 weight.data);
    lay_out(backend, weight);
  }
  weight.prepacked = true;
}

void linear(Backend& backend, const LinearArgs& args) {
  if (check_linear(backend, args)) TANDEM_DISPATCH(linear, backend, args);
}

void linear_group(Backend& backend, std::span<const LinearArgs> group) {
  TANDEM_CHECK(group.size() <= kMaxLinearGroup, "{} linears at once", group.size());
  LinearArgs members[kMaxLinearGroup];
  std::size_t count = 0;
  for (const LinearArgs& args : group) {
    const LinearArgs& first = group.front();
    TANDEM_CHECK(args.x == first.x && args.x_dtype == first.x_dtype &&
                     args.x_stride == first.x_stride && args.num_rows == first.num_rows &&
                     args.row_class == first.row_class && args.row_factors == first.row_factors &&
                     args.weight.in_features == first.weight.in_features,
                 "a group of linears with different rows");
    if (check_linear(backend, args)) members[count++] = args;
  }
  if (count > 0) TANDEM_DISPATCH(linear_group, backend, std::span(members).first(count));
}

}  // namespace tandem::ops
