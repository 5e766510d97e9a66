#include "bench/bench_rows.h"

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "base/error.h"
#include "output/bench_schema.h"

namespace tandem {
namespace {

BenchContents contents_of(const BenchConditions& conditions) {
  BenchContents contents;
  contents.ranks = {
      {.rank = conditions.rank, .host = conditions.host, .backend = conditions.backend}};
  return contents;
}

std::optional<double> best_bytes_per_s(const std::vector<MemoryBenchResult>& results,
                                       MemoryTraffic traffic) {
  const MemoryBenchResult* best = best_of(results, traffic);
  return best != nullptr ? std::optional(best->bytes_per_s()) : std::nullopt;
}

std::string packed(const ColumnData& column) {
  if (column.type != ElementType::kText)
    return {reinterpret_cast<const char*>(column.bytes.data()), column.bytes.size()};
  std::string bytes;
  for (const std::string& text : column.texts) bytes += text + '\0';
  return bytes;
}

void unpack(std::string_view bytes, ColumnData& column) {
  if (column.type != ElementType::kText) {
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
    column.bytes.insert(column.bytes.end(), begin, begin + bytes.size());
    return;
  }
  while (!bytes.empty()) {
    const auto end = bytes.find('\0');
    column.texts.emplace_back(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
  }
}

template <class Row>
std::vector<Row> gather_rows(const HostComm& world, const Table<Row>& table,
                             const std::vector<Row>& own) {
  std::vector<Row> rows;
  for (const auto& column : table.columns) {
    ColumnData all;
    all.type = column_type(column);
    for (const auto& part : world.gather(packed(encode_column(column, std::span<const Row>(own)))))
      unpack(part, all);
    rows.resize(all.rows());
    decode_column(column, all, std::span<Row>(rows));
  }
  return rows;
}

template <class Value>
Value integer_of(const Passport& passport, const std::string& key) {
  const auto found = passport.values().find(key);
  const auto* value =
      found == passport.values().end() ? nullptr : std::get_if<std::int64_t>(&found->second);
  TANDEM_CHECK(value != nullptr, "{} has no integer {}", schema::kPassportGroup, key);
  return static_cast<Value>(*value);
}

std::vector<MemoryBenchResult> results_of(const BenchRankRow& rank,
                                          const std::vector<BenchMemoryRow>& rows) {
  std::vector<MemoryBenchResult> results;
  for (const BenchMemoryRow& row : rows) {
    if (row.rank != rank.rank) continue;
    results.push_back({.traffic = traffic_named(row.traffic),
                       .method = row.method,
                       .bytes = row.bytes,
                       .seconds = row.seconds,
                       .correct = row.correct});
  }
  return results;
}

std::vector<GemmBenchResult> results_of(const BenchRankRow& rank,
                                        const std::vector<BenchGemmRow>& rows) {
  std::vector<GemmBenchResult> results;
  for (const BenchGemmRow& row : rows) {
    if (row.rank != rank.rank) continue;
    results.push_back({.format = format_named(row.format),
                       .shape = {.out_features = row.out_features,
                                 .in_features = row.in_features,
                                 .name = row.linear},
                       .num_rows = static_cast<int>(row.rows),
                       .bytes = row.bytes,
                       .seconds = row.seconds,
                       .error = row.error.value_or(HUGE_VAL)});
  }
  return results;
}

std::string table_text(const BenchRankRow& rank, const std::vector<BenchMemoryRow>& rows) {
  return memory_table(results_of(rank, rows));
}

std::string table_text(const BenchRankRow& rank, const std::vector<BenchGemmRow>& rows) {
  return gemm_table(results_of(rank, rows),
                    {.read_bytes_per_s = rank.read_bytes_per_s.value_or(0),
                     .matrix = {.flops_per_s = rank.matrix_flops_per_s.value_or(0),
                                .source = rank.matrix_rate_source}});
}

std::string table_text(const BenchRankRow& /*rank*/, const std::vector<BenchCollectiveRow>& rows) {
  std::vector<CollectiveBenchResult> results;
  for (const BenchCollectiveRow& row : rows) {
    results.push_back({.collective = collective_named(row.collective),
                       .bytes = row.bytes,
                       .num_ranks = static_cast<int>(row.num_ranks),
                       .seconds = row.seconds,
                       .correct = row.correct});
  }
  return collective_table(results);
}

}  // namespace

BenchContents memory_contents(const BenchConditions& conditions,
                              const std::vector<MemoryBenchResult>& results) {
  BenchContents contents = contents_of(conditions);
  contents.ranks[0].read_bytes_per_s = best_bytes_per_s(results, MemoryTraffic::kRead);
  contents.ranks[0].copy_bytes_per_s = best_bytes_per_s(results, MemoryTraffic::kCopy);
  auto& rows = contents.rows.emplace<std::vector<BenchMemoryRow>>();
  for (const MemoryBenchResult& r : results) {
    rows.push_back({.rank = conditions.rank,
                    .traffic = std::string(traffic_name(r.traffic)),
                    .method = r.method,
                    .bytes = r.bytes,
                    .seconds = r.seconds,
                    .bytes_per_s = r.bytes_per_s(),
                    .correct = r.correct});
  }
  return contents;
}

BenchContents gemm_contents(const BenchConditions& conditions,
                            const std::vector<GemmBenchResult>& results, const GemmBounds& bounds) {
  BenchContents contents = contents_of(conditions);
  const bool matrix_rate = bounds.matrix.flops_per_s > 0;
  contents.ranks[0].read_bytes_per_s = bounds.read_bytes_per_s;
  if (matrix_rate) contents.ranks[0].matrix_flops_per_s = bounds.matrix.flops_per_s;
  contents.ranks[0].matrix_rate_source = bounds.matrix.source;
  auto& rows = contents.rows.emplace<std::vector<BenchGemmRow>>();
  for (const GemmBenchResult& r : results) {
    BenchGemmRow& row = rows.emplace_back(
        BenchGemmRow{.rank = conditions.rank,
                     .format = std::string(format_name(r.format)),
                     .linear = r.shape.name,
                     .out_features = r.shape.out_features,
                     .in_features = r.shape.in_features,
                     .rows = r.num_rows,
                     .bytes = r.bytes,
                     .seconds = r.seconds,
                     .bytes_per_s = r.bytes_per_s(),
                     .share_of_read_bandwidth = r.bytes_per_s() / bounds.read_bytes_per_s,
                     .flops_per_s = r.flops_per_s(),
                     .correct = r.correct()});
    if (matrix_rate) row.share_of_matrix_rate = r.flops_per_s() / bounds.matrix.flops_per_s;
    if (std::isfinite(r.error)) row.error = r.error;
  }
  return contents;
}

BenchContents collective_contents(const BenchConditions& conditions,
                                  const std::vector<CollectiveBenchResult>& results) {
  BenchContents contents = contents_of(conditions);
  auto& rows = contents.rows.emplace<std::vector<BenchCollectiveRow>>();
  if (conditions.rank != 0) return contents;
  for (const CollectiveBenchResult& r : results) {
    rows.push_back({.collective = std::string(collective_name(r.collective)),
                    .bytes = r.bytes,
                    .num_ranks = r.num_ranks,
                    .seconds = r.seconds,
                    .bytes_per_s = r.bytes_per_s(),
                    .bus_bytes_per_s = r.bus_bytes_per_s(),
                    .correct = r.correct});
  }
  return contents;
}

BenchContents gather_contents(const HostComm& world, const BenchContents& own) {
  BenchContents all;
  all.ranks = gather_rows(world, schema::kBenchRanks, own.ranks);
  std::visit(
      [&](const auto& rows) { all.rows = gather_rows(world, schema::bench_table(rows), rows); },
      own.rows);
  return all;
}

void add_bench(const char* benchmark, const BenchConditions& conditions, Passport& passport) {
  passport.set("bench.name", benchmark);
  passport.set("bench.groups", std::int64_t{conditions.repeats.groups});
  passport.set("bench.runs_per_group", std::int64_t{conditions.repeats.runs});
  passport.set("bench.statistic", kBenchStatistic);
  passport.set("backend", conditions.backend);
  if (!conditions.transport.empty()) passport.set("collectives", conditions.transport);
}

std::string contents_text(const BenchContents& contents) {
  const Passport& passport = contents.passport;
  // Collectives are measured by all ranks together.
  const bool together = std::holds_alternative<std::vector<BenchCollectiveRow>>(contents.rows);
  BenchConditions conditions{
      .program = program_text(passport.text("program_version"), passport.text("git_revision")),
      .host = "",
      .num_ranks = integer_of<int>(passport, "ranks.count"),
      .backend = "",
      .transport = passport.text("collectives"),
      .repeats = {.groups = integer_of<int>(passport, "bench.groups"),
                  .runs = integer_of<int>(passport, "bench.runs_per_group")}};
  std::string out;
  for (const BenchRankRow& rank : contents.ranks) {
    if (together && rank.rank != 0) continue;
    conditions.rank = static_cast<int>(rank.rank);
    conditions.host = rank.host;
    conditions.backend = rank.backend;
    out += conditions_text(conditions);
    out += std::visit([&](const auto& rows) { return table_text(rank, rows); }, contents.rows);
  }
  return out;
}

}  // namespace tandem
