#include "parallel/gpu_assignment.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "parallel/string_pairs.h"

namespace tandem {
namespace {

using GpuOfHost = std::pair<std::string, std::string>;  // host id, GPU id

[[noreturn]] void refuse(const RankLayout& layout, int holder, int rank, const VisibleGpu& gpu,
                         std::size_t num_visible) {
  throw Error(
      ExitCode::kConfiguration,
      {.what = fmt::format(
           "ranks {} and {} on {} would use the same GPU, {} ({}): rank {} sees {}", holder, rank,
           layout.places[static_cast<std::size_t>(rank)].host, gpu.name, gpu.id, rank,
           num_visible == 1 ? "no other" : fmt::format("{}, all taken", num_visible)),
       .where = "parallel",
       .expected = "one rank a GPU",
       .remedy = "start as many ranks on each host as it has GPUs and check CUDA_VISIBLE_DEVICES; "
                 "on two boxes with one GPU each the hostfile needs slots=1; parallel.collectives: "
                 "host lets ranks share a GPU, slowly"});
}

}  // namespace

std::vector<int> assign_gpus(const RankLayout& layout,
                             const std::vector<std::vector<VisibleGpu>>& gpus, GpuSharing sharing) {
  TANDEM_CHECK(gpus.size() == layout.places.size());
  std::map<GpuOfHost, int> holders;
  std::vector<int> ordinals;
  for (int rank = 0; rank < layout.size; ++rank) {
    const auto& place = layout.places[static_cast<std::size_t>(rank)];
    const auto& visible = gpus[static_cast<std::size_t>(rank)];
    const auto free = std::find_if(visible.begin(), visible.end(), [&](const VisibleGpu& gpu) {
      return !holders.contains({place.host_id, gpu.id});
    });
    if (free != visible.end()) {
      holders[{place.host_id, free->id}] = rank;
      ordinals.push_back(static_cast<int>(free - visible.begin()));
    } else if (visible.empty()) {
      ordinals.push_back(0);
    } else if (sharing == GpuSharing::kAllow) {
      ordinals.push_back(place.local_rank % static_cast<int>(visible.size()));
    } else {
      const auto& gpu = visible.front();
      refuse(layout, holders.at({place.host_id, gpu.id}), rank, gpu, visible.size());
    }
  }
  return ordinals;
}

int agree_gpu(const HostComm& world, const RankLayout& layout, GpuSharing sharing) {
  const auto own =
      world.together([] { return pack_pairs(visible_gpus(), &VisibleGpu::id, &VisibleGpu::name); });
  std::vector<std::vector<VisibleGpu>> gpus;
  for (const auto& bytes : world.all_gather(own))
    gpus.push_back(unpack_pairs(bytes, &VisibleGpu::id, &VisibleGpu::name));
  return world.together(
      [&] { return assign_gpus(layout, gpus, sharing)[static_cast<std::size_t>(layout.rank)]; });
}

}  // namespace tandem
