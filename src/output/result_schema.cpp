#include "output/result_schema.h"

namespace tandem::schema {

std::vector<DatasetInfo> all_datasets() {
  std::vector<DatasetInfo> all;
  for_each_table([&all](const auto& table) {
    for (const auto& column : table.columns) {
      all.push_back({.path = fmt::format("{}/{}", table.group, column.name),
                     .type = column_type(column),
                     .shape = "rows",
                     .units = std::string(column.units),
                     .description = std::string(column.description),
                     .may_miss = column_may_miss(column),
                     .since = column.since});
    }
  });
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

}  // namespace tandem::schema
