#include "kernels/ops/embedding.h"

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {

void embedding(Backend& backend, const EmbeddingArgs& args) {
  TANDEM_CHECK(
      args.num_rows >= 0 && args.hidden > 0 && args.shard_rows >= 0 && args.shard_begin >= 0,
      "{} rows of {}, shard of {} from {}", args.num_rows, args.hidden, args.shard_rows,
      args.shard_begin);
  if (args.num_rows == 0) return;
  check_float_dtype(args.table_dtype, "table");
  check_present(args.token_ids, "token_ids");
  TANDEM_CHECK(args.table != nullptr || args.shard_rows == 0, "table is missing");
  check_present(args.out, "out");
  TANDEM_DISPATCH(embedding, backend, args);
}

}  // namespace tandem::ops
