#include "kernels/ops/sample.h"

#include <limits>

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {

void argmax_rows(Backend& backend, const ArgmaxRowsArgs& args) {
  TANDEM_CHECK(args.num_rows >= 0 && args.shard_begin >= 0 && args.shard_rows >= 0 &&
                   args.shard_begin + args.shard_rows <= std::numeric_limits<std::int32_t>::max(),
               "{} rows, shard of {} from {}", args.num_rows, args.shard_rows, args.shard_begin);
  if (args.num_rows == 0) return;
  TANDEM_CHECK(args.logits != nullptr || args.shard_rows == 0, "logits are missing");
  TANDEM_CHECK(args.num_rows == 1 || args.stride >= args.shard_rows, "stride {} for {} logits",
               args.stride, args.shard_rows);
  check_present(args.out, "out");
  TANDEM_DISPATCH(argmax_rows, backend, args);
}

void merge_argmax(Backend& backend, const MergeArgmaxArgs& args) {
  TANDEM_CHECK(args.num_ranks >= 1 && args.num_rows >= 0, "{} rows of {} ranks", args.num_rows,
               args.num_ranks);
  if (args.num_rows == 0) return;
  check_present(args.parts, "parts");
  check_present(args.out, "out");
  TANDEM_DISPATCH(merge_argmax, backend, args);
}

std::size_t sample_scratch_bytes(const Backend& backend, std::int64_t vocab) {
  TANDEM_CHECK(vocab > 0, "vocabulary of {}", vocab);
  TANDEM_DISPATCH(sample_scratch_bytes, backend, vocab);
}

void sample_rows(Backend& backend, const SampleRowsArgs& args) {
  TANDEM_CHECK(args.num_rows >= 0 && args.valid_vocab > 0 &&
                   args.valid_vocab <= std::numeric_limits<std::int32_t>::max(),
               "{} rows of {} logits", args.num_rows, args.valid_vocab);
  if (args.num_rows == 0) return;
  check_present(args.logits, "logits");
  TANDEM_CHECK(args.num_rows == 1 || args.stride >= args.valid_vocab, "stride {} for {} logits",
               args.stride, args.valid_vocab);
  check_present(args.params, "params");
  check_present(args.out, "out");
  check_present(args.scratch, "scratch");
  TANDEM_DISPATCH(sample_rows, backend, args);
}

}  // namespace tandem::ops
