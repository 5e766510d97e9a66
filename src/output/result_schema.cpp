#include "output/result_schema.h"

#include "output/bench_schema.h"

namespace tandem::schema {
namespace {

template <class Row>
void add_table(std::vector<DatasetInfo>& all, const Table<Row>& table) {
  for (auto& info : table_datasets(table)) all.push_back(std::move(info));
}

}  // namespace

std::vector<DatasetInfo> all_datasets() {
  std::vector<DatasetInfo> all;
  for_each_table([&all](const auto& table) { add_table(all, table); });
  for (const Dataset* flat : kFlatDatasets) {
    all.push_back({.path = std::string(flat->path),
                   .type = flat->type,
                   .shape = std::string(flat->shape),
                   .units = std::string(flat->units),
                   .description = std::string(flat->description),
                   .may_miss = flat->may_miss,
                   .since = flat->since});
  }
  return all;
}

std::vector<DatasetInfo> all_bench_datasets() {
  std::vector<DatasetInfo> all;
  add_table(all, kBenchRanks);
  add_table(all, kBenchMemory);
  add_table(all, kBenchGemm);
  add_table(all, kBenchCollective);
  return all;
}

}  // namespace tandem::schema
