#include "parallel/rank_layout.h"

#include <unistd.h>

#include <map>

#include "base/error.h"
#include "parallel/host_info.h"

namespace tandem {
namespace {

[[noreturn]] void refuse(std::string what, std::string expected, std::string remedy) {
  throw Error(ExitCode::kConfiguration, {.what = std::move(what),
                                         .where = "parallel",
                                         .expected = std::move(expected),
                                         .remedy = std::move(remedy)});
}

}  // namespace

RankLayout make_rank_layout(int rank, const ParallelSection& parallel,
                            std::vector<RankPlace> places) {
  const auto size = static_cast<int>(places.size());
  TANDEM_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  const int data = parallel.data;
  if (data < 1) refuse(fmt::format("data is {}", data), "a positive number", {});
  if (parallel.tensor && *parallel.tensor < 1) {
    refuse(fmt::format("tensor is {}", *parallel.tensor), "auto or a positive number", {});
  }
  if (!parallel.tensor && size % data != 0) {
    refuse(fmt::format("{} ranks cannot be divided into {} replicas", size, data),
           fmt::format("a number of ranks that is a multiple of data: {}", data),
           fmt::format("start {} ranks or change parallel.data", (size / data + 1) * data));
  }
  const int tensor = parallel.tensor.value_or(size / data);
  if (tensor * data != size) {
    refuse(fmt::format("tensor {} x data {} = {} ranks, but {} were started", tensor, data,
                       tensor * data, size),
           "tensor x data = ranks",
           fmt::format("start mpirun with -np {} or change the keys", tensor * data));
  }

  std::map<std::string, int> ranks_of_host;
  for (auto& place : places) place.local_rank = ranks_of_host[place.host_id]++;
  for (auto& place : places) place.ranks_on_host = ranks_of_host[place.host_id];
  return {.rank = rank,
          .size = size,
          .tensor = tensor,
          .data = data,
          .tensor_rank = rank % tensor,
          .replica = rank / tensor,
          .num_hosts = static_cast<int>(ranks_of_host.size()),
          .places = std::move(places)};
}

RankLayout agree_rank_layout(const HostComm& world, const ParallelSection& parallel) {
  const auto hosts = world.all_gather(host_name());
  const auto ids = world.all_gather(host_id());
  const auto pids = world.all_gather(static_cast<long>(getpid()));
  std::vector<RankPlace> places(hosts.size());
  for (std::size_t r = 0; r < places.size(); ++r) {
    places[r].host = hosts[r];
    places[r].host_id = ids[r];
    places[r].pid = pids[r];
  }
  return world.together([&] { return make_rank_layout(world.rank(), parallel, places); });
}

RankLayout plan_rank_layout(int ranks, const ParallelSection& parallel) {
  std::vector<RankPlace> places(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    auto& place = places[static_cast<std::size_t>(r)];
    place.host = fmt::format("host{}", r);
    place.host_id = place.host;
  }
  return make_rank_layout(0, parallel, std::move(places));
}

std::string render_rank_map(const RankLayout& layout) {
  std::string text;
  for (int r = 0; r < layout.size; ++r) {
    const auto& place = layout.places[static_cast<std::size_t>(r)];
    text += fmt::format("rank {} -> {} (pid {}, replica {}, tensor {} of {})\n", r, place.host,
                        place.pid, r / layout.tensor, r % layout.tensor, layout.tensor);
  }
  return text;
}

}  // namespace tandem
