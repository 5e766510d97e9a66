#include "parallel/identity.h"

#include <map>

#include "parallel/string_pairs.h"

namespace tandem {
namespace {

// "rank 0 on spark1, rank 1 on spark2"
std::string name_ranks(const std::vector<int>& ranks, const std::vector<RankPlace>& places) {
  std::vector<std::string> names;
  for (const int r : ranks) {
    names.push_back(fmt::format("rank {} on {}", r, places[static_cast<std::size_t>(r)].host));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::optional<ErrorText> compare_identity(const std::vector<std::vector<IdentityFact>>& facts,
                                          const std::vector<RankPlace>& places) {
  // By fact name in the order of rank 0, then of names only others have: value -> ranks.
  std::vector<std::string> names;
  std::map<std::string, std::map<std::string, std::vector<int>>> ranks_by_value;
  for (const auto& list : facts) {
    for (const auto& fact : list) {
      if (!ranks_by_value.contains(fact.name)) names.push_back(fact.name);
      ranks_by_value[fact.name];
    }
  }
  for (int r = 0; r < static_cast<int>(facts.size()); ++r) {
    for (const auto& name : names) {
      std::string value = "(absent)";
      for (const auto& fact : facts[static_cast<std::size_t>(r)]) {
        if (fact.name == name) value = fact.value;
      }
      ranks_by_value[name][value].push_back(r);
    }
  }

  std::vector<std::string> differences;
  std::vector<std::string> fields;
  for (const auto& name : names) {
    const auto& values = ranks_by_value[name];
    if (values.size() == 1) continue;
    std::vector<std::string> sides;
    for (const auto& [value, ranks] : values) {
      sides.push_back(fmt::format("{} ({})", value, name_ranks(ranks, places)));
    }
    fields.push_back(name);
    differences.push_back(fmt::format("{} is {}", name, fmt::join(sides, " but ")));
  }
  if (differences.empty()) return std::nullopt;
  return ErrorText{
      .what = fmt::format("ranks differ: {}", fmt::join(differences, "; ")),
      .where = "start",
      .expected = "the same on every rank",
      .remedy = fmt::format("bring {} to one state on all hosts", fmt::join(fields, ", "))};
}

void require_same_identity(const HostComm& world, const RankLayout& layout,
                           const std::vector<IdentityFact>& facts) {
  std::vector<std::vector<IdentityFact>> all;
  for (const auto& bytes :
       world.all_gather(pack_pairs(facts, &IdentityFact::name, &IdentityFact::value)))
    all.push_back(unpack_pairs(bytes, &IdentityFact::name, &IdentityFact::value));
  // Everyone compares the same lists, so everyone throws or nobody does.
  if (const auto difference = compare_identity(all, layout.places)) {
    throw Error(ExitCode::kConfiguration, *difference, ErrorScope::kAllRanks);
  }
}

}  // namespace tandem
