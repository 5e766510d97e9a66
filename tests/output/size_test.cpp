// 20,000 rows: the file must stay small and the writing cheap (F36).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <random>

#include "output/result_reader.h"
#include "output/result_writer.h"
#include "tests/output/sample_records.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using testing::sample_options;
using testing::sample_request;
using testing::TempDir;

constexpr std::int64_t kRows = 20'000;
constexpr std::int64_t kTokens = 20;
constexpr double kMostOfRaw = 1.3;

// The values alone, as a plain binary dump of the columns would hold them.
double raw_bytes(const RequestRecord& r) {
  const double columns = 21 * 8 + 4 + 4 + static_cast<double>(r.id.size() + r.tags.size() + 6);
  const double tokens = static_cast<double>(r.prompt_ids.size() * 4) +
                        static_cast<double>(r.completion_ids.size() * (4 + 8 + 8));
  const double text = static_cast<double>(r.prompt_text.size() + r.completion_text.size());
  return columns + tokens + text + 4 * 8 + 4 * 8;
}

// Writes kRows requests with a flush every `per_flush`; gives the file's size over the raw size.
double write_rows(const std::filesystem::path& file, std::int64_t per_flush) {
  double raw = 0;
  std::mt19937 random(1);
  const auto start = std::chrono::steady_clock::now();
  {
    ResultWriter writer(sample_options(file, kRows));
    for (std::int64_t i = 0; i < kRows; ++i) {
      auto record = sample_request(i, kTokens);
      // Random token ids and noise in the last digits of the times: neither compresses well.
      for (auto& id : record.completion_ids) id = static_cast<std::int32_t>(random() % 248'000);
      for (auto& time : record.token_times_s)
        time += 1e-10 * static_cast<double>(random() % 100'000);
      std::sort(record.token_times_s.begin(), record.token_times_s.end());
      raw += raw_bytes(record) + 16;  // and its line in /prompts
      writer.submit(std::move(record));
      if ((i + 1) % per_flush == 0) {
        EXPECT_TRUE(writer.flush_now(std::chrono::seconds(60)));
      }
    }
    writer.finish(ExitCode::kDone);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const auto size = static_cast<double>(std::filesystem::file_size(file));
  std::cout << kRows << " rows, a flush every " << per_flush << ": " << size / 1e6 << " MB, "
            << size / raw << " of the raw bytes, " << took.count() << " s\n";
  return size / raw;
}

TEST(Size, TwentyThousandRows) {
  const TempDir dir;
  EXPECT_LT(write_rows(dir / "few.h5", kRows), kMostOfRaw);
  EXPECT_EQ(read_result(dir / "few.h5", {}).requests.size(), std::size_t{kRows});
}

// A long job flushes hundreds of times; holes left by chunks that moved must be used again.
TEST(Size, ManyFlushesLeaveNoHoles) {
  const TempDir dir;
  EXPECT_LT(write_rows(dir / "many.h5", 100), kMostOfRaw);
}

TEST(Size, AnEmptyResultIsSmall) {
  const TempDir dir;
  { const ResultWriter writer(sample_options(dir / "a.h5", 1)); }
  constexpr std::uintmax_t kMostBytes = 400'000;
  EXPECT_LT(std::filesystem::file_size(dir / "a.h5"), kMostBytes);
}

}  // namespace
}  // namespace tandem
