// Reads what NCCL writes about its connections (NCCL_DEBUG=INFO): over which path each rank sends
// to each, and which network adapters it found. Text in, facts out; how the text is got hold of is
// nccl_log_capture's. Spellings of NCCL 2.4 to 2.28 are known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parallel/transport.h"

namespace tandem {

struct NcclLogFacts {
  std::vector<PathSighting> paths;   // in the order written
  std::vector<std::string> devices;  // "NET/IB [0]mlx5_0:1/RoCE", each once
};

// Lines that are cut short, run into each other or mean something else are left out: they prove
// nothing. A last line without its end is not read.
NcclLogFacts parse_nccl_log(std::string_view text);

// "NET/IB/0/GDRDMA" -> kRdma; kUnknown for what is none of NCCL's paths.
PathKind classify_nccl_path(std::string_view path);

}  // namespace tandem
