#include "kernels/ops/verify.h"

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {
namespace {

void check_places(const RoundPlaces& places) {
  TANDEM_CHECK(places.num_places >= 0 && places.rows >= 1 && places.rows <= kMaxRoundRows,
               "{} places of {} rows, at most {}", places.num_places, places.rows, kMaxRoundRows);
  check_present(places.slots, "slots");
  check_present(places.table, "table");
}

void check_rows(const RowArrays& rows) {
  check_present(rows.token_ids, "token_ids");
  check_present(rows.positions, "positions");
  check_present(rows.row_slots, "row_slots");
  check_present(rows.segments, "segments");
}

}  // namespace

void lay_out_round(Backend& backend, const LayOutRoundArgs& args) {
  check_places(args.places);
  check_rows(args.out);
  if (args.places.num_places == 0) return;
  TANDEM_DISPATCH(lay_out_round, backend, args);
}

void verify(Backend& backend, const VerifyArgs& args) {
  check_places(args.places);
  TANDEM_CHECK(args.num_stop_ids >= 0 && (args.num_stop_ids == 0 || args.stop_ids != nullptr),
               "{} stop ids", args.num_stop_ids);
  check_present(args.depth, "depth");
  check_present(args.pending_rows, "pending_rows");
  check_present(args.records, "records");
  if (args.last_rows != nullptr) check_rows(args.certain);
  if (args.places.num_places == 0) return;
  TANDEM_DISPATCH(verify, backend, args);
}

void propose(Backend& backend, const ProposeArgs& args) {
  check_places(args.places);
  TANDEM_CHECK(args.num_ranks >= 1 && args.index >= 0 && args.index < kMaxRoundRows,
               "draft {} from {} ranks", args.index, args.num_ranks);
  check_present(args.best, "best");
  check_rows(args.next);
  if (args.places.num_places == 0) return;
  TANDEM_DISPATCH(propose, backend, args);
}

}  // namespace tandem::ops
