#include "parallel/transport.h"

#include "base/error.h"

namespace tandem {

TransportEvidence mpi_transport(const RankLayout& layout) {
  if (layout.size == 1) return {.name = "single rank", .is_rdma = false};
  if (!layout.spans_hosts()) return {.name = "mpi, ranks of one host", .is_rdma = false};
  // MPI does not say which network its messages took.
  return {.name = "mpi between hosts, network unknown", .is_rdma = false};
}

void enforce_transport(TransportRequire require, const RankLayout& layout,
                       const TransportEvidence& evidence) {
  const bool rdma_wanted = require == TransportRequire::kRdma ||
                           (require == TransportRequire::kAuto && layout.spans_hosts());
  if (!rdma_wanted || evidence.is_rdma) return;
  throw Error(
      ExitCode::kTransport,
      {.what = "RDMA is required and not proven: the ranks communicate by " + evidence.name,
       .where = "transport.require",
       .expected = "a transport known to be RDMA",
       .remedy = "set transport.require: any to run on this transport; the result file says so"});
}

}  // namespace tandem
