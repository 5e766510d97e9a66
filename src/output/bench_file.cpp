#include "output/bench_file.h"

#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "output/bench_schema.h"
#include "output/h5_file.h"
#include "output/result_reader.h"
#include "output/table_io.h"

namespace tandem {
namespace {

// Some hundred rows of each table, and their metadata.
constexpr std::int64_t kAllowanceBytes = std::int64_t{4} << 20;

template <class Row>
void write_table(H5File& file, const Table<Row>& table, const std::vector<Row>& rows) {
  create_table(file, table);
  append_rows(file, table, std::span<const Row>(rows));
}

}  // namespace

BenchFile::BenchFile(std::filesystem::path file, bool overwrite)
    : overwrite_(overwrite), target_(std::move(file), {}) {
  refuse_existing();
  try {
    target_.begin_empty(kAllowanceBytes);
  } catch (const Error& error) {
    target_.discard();
    // Nothing was measured yet: whatever is wrong with the target is a matter of configuration.
    throw Error(ExitCode::kConfiguration, error.text());
  }
}

BenchFile::~BenchFile() { target_.discard(); }

void BenchFile::refuse_existing() const {
  if (overwrite_ || !target_.exists()) return;
  throw Error(ExitCode::kConfiguration,
              {.what = "exists already",
               .where = target_.path().string(),
               .expected = "a new file",
               .remedy = "choose another --output, or replace it with --overwrite"});
}

void BenchFile::write(const BenchContents& contents, ExitCode exit_code) {
  auto file = H5File::create(target_.temporary());
  file.set_attribute("/", schema::kVersionAttribute, schema::kSchemaVersion);
  auto passport = contents.passport;
  passport.set("end_utc", utc_now_iso8601());
  passport.set("exit_status", exit_status_text(exit_code));
  write_passport(file, schema::kPassportGroup, passport);
  write_table(file, schema::kBenchRanks, contents.ranks);
  std::visit([&](const auto& rows) { write_table(file, schema::bench_table(rows), rows); },
             contents.rows);
  file.close();
  refuse_existing();  // again: somebody may have put a file there in the meantime
  target_.publish();
}

bool is_bench_file(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return false;
  try {
    return H5File::open_for_reading(file).exists(schema::kBenchGroup);
  } catch (const Error&) {
    return false;
  }
}

BenchContents read_bench_file(const std::filesystem::path& path) {
  return as_file_fault(path, [&] {
    const auto file = H5File::open_for_reading(path);
    check_version(file, path);
    BenchContents contents;
    contents.passport = read_passport(file, schema::kPassportGroup);
    contents.ranks = read_rows(file, schema::kBenchRanks);
    if (file.exists(schema::kBenchMemory.group)) {
      contents.rows = read_rows(file, schema::kBenchMemory);
    } else if (file.exists(schema::kBenchGemm.group)) {
      contents.rows = read_rows(file, schema::kBenchGemm);
    } else {
      contents.rows = read_rows(file, schema::kBenchCollective);
    }
    return contents;
  });
}

}  // namespace tandem
