// The bookkeeping of rounds: a few integers a place, by the calling thread.
#include "kernels/ops/verify.h"

#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops/check.h"
#include "kernels/ops/verify_place.h"

namespace tandem::cpu {

void lay_out_round(CpuBackend&, const ops::LayOutRoundArgs& args) {
  for (int place = 0; place < args.places.num_places; ++place) ops::lay_out_place(args, place);
}

void verify(CpuBackend&, const ops::VerifyArgs& args) {
  for (int place = 0; place < args.places.num_places; ++place) {
    if (ops::place_has_rows(args.places, place)) {
      const ops::RoundSlot& slot = args.places.table[args.places.slots[place]];
      TANDEM_CHECK(slot.num_drafts >= 0 && slot.num_drafts < args.places.rows,
                   "slot {}: {} drafts in {} rows", args.places.slots[place], slot.num_drafts,
                   args.places.rows);
      TANDEM_CHECK(args.sampled != nullptr || slot.known_next != ops::kSampled,
                   "slot {}: nothing was sampled", args.places.slots[place]);
    }
    ops::verify_place(args, place);
  }
}

void propose(CpuBackend&, const ops::ProposeArgs& args) {
  for (int place = 0; place < args.places.num_places; ++place) ops::propose_place(args, place);
}

}  // namespace tandem::cpu
