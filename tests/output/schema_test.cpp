// The table in the code, the page people read and a written file must say the same; and the file
// must be readable with h5py alone.
#include "output/result_schema.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "output/bench_schema.h"
#include "output/h5_file.h"
#include "output/result_writer.h"
#include "tests/output/sample_records.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using testing::sample_options;
using testing::sample_request;
using testing::TempDir;

std::string page_line(const schema::DatasetInfo& info) {
  return fmt::format("| `{}` | {}{} | {} | {} | {} | {} |", info.path, element_type_name(info.type),
                     info.may_miss ? ", may miss" : "", info.shape, info.units, info.since,
                     info.description);
}

// Of both kinds of file.
std::vector<schema::DatasetInfo> everything() {
  auto all = schema::all_datasets();
  for (auto& info : schema::all_bench_datasets()) all.push_back(std::move(info));
  return all;
}

TEST(Schema, PageListsEveryDataset) {
  std::set<std::string> page;
  std::istringstream text(testing::read_text(testing::source_dir() / "results/README.md"));
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("| `/")) page.insert(line);
  }
  for (const auto& info : everything()) {
    EXPECT_EQ(page.erase(page_line(info)), 1u) << "results/README.md lacks the line\n"
                                               << page_line(info);
  }
  for (const auto& line : page) ADD_FAILURE() << "no such dataset in the schema: " << line;
}

TEST(Schema, NamesAreUnique) {
  std::set<std::string> seen;
  for (const auto& info : everything()) {
    EXPECT_TRUE(seen.insert(info.path).second) << info.path;
    EXPECT_FALSE(info.units.empty()) << info.path;
    EXPECT_FALSE(info.description.empty()) << info.path;
    EXPECT_EQ(info.description.find('|'), std::string::npos) << info.path;
  }
}

TEST(Schema, WrittenFileFollowsTheTable) {
  const TempDir dir;
  {
    ResultWriter writer(sample_options(dir / "a.h5", 1));
    writer.submit(sample_request(0));
    writer.finish(ExitCode::kDone);
  }
  const auto file = H5File::open_for_reading(dir / "a.h5");
  EXPECT_EQ(std::get<std::int64_t>(file.attributes("/").at("schema_version")),
            schema::kSchemaVersion);
  for (const auto& info : schema::all_datasets()) {
    ASSERT_TRUE(file.exists(info.path)) << info.path;
    const auto attributes = file.attributes(info.path);
    EXPECT_EQ(std::get<std::string>(attributes.at("units")), info.units) << info.path;
    EXPECT_EQ(std::get<std::string>(attributes.at("description")), info.description) << info.path;
    EXPECT_EQ(std::get<std::int64_t>(attributes.at("since")), info.since) << info.path;
    EXPECT_EQ(attributes.contains("_FillValue"), info.may_miss) << info.path;
  }
}

// Runs a script under the system's Python; -1 if it or h5py is absent.
int run_python(const std::string& script, const TempDir& dir) {
  if (std::system("/usr/bin/python3 -c 'import h5py' > /dev/null 2>&1") != 0) return -1;
  testing::write_text(dir / "check.py", script);
  return std::system(
      fmt::format("cd {} && /usr/bin/python3 check.py", dir.path().string()).c_str());
}

TEST(Schema, ReadsWithH5pyAlone) {
  const TempDir dir;
  {
    ResultWriter writer(sample_options(dir / "a.h5", 2));
    writer.submit(sample_request(0));
    auto unasked = sample_request(1, 1);
    unasked.tags.clear();
    writer.submit(std::move(unasked));
    MemoryRow memory;
    memory.rss_bytes = 5;
    writer.submit(memory);
    writer.submit(GroupRecord{.concurrency = 2, .start_s = 0.1, .end_s = 1.1});
    writer.finish(ExitCode::kDone);
  }
  const int status = run_python(R"(
import h5py, numpy as np

f = h5py.File("a.h5")
r = f["requests"]
assert list(r["id"].asstr()[:]) == ["request-0", "request-1"]
assert list(r["tags"].asstr()[:]) == ['{"task":"count"}', ""]
assert list(r["finish_reason"].asstr()[:]) == ["length", "length"]
assert r["warmup"].dtype == bool and not r["warmup"][:].any()
assert list(r["completion_tokens"][:]) == [8, 1]

def column(d):
    """Missing values masked."""
    return np.ma.masked_equal(d[:], d.attrs["_FillValue"]) if "_FillValue" in d.attrs else d[:]

speed = column(r["decode_tokens_per_s"])
assert list(speed.mask) == [False, True], speed
assert abs(speed.mean() - 7 / 0.03) < 1e-6
assert column(r["json_valid"]).mask.all()
assert column(f["memory/rss_bytes"])[0] == 5 and column(f["memory/swap_used_bytes"]).mask.all()
assert column(f["tokens/logit_hash"]).mask.all()

o = f["tokens/completion_offsets"][:]
assert list(f["tokens/completion_ids"][o[1]:o[2]]) == [100]
o = f["text/completion_offsets"][:]
text = [f["text/completion"][a:b].tobytes().decode() for a, b in zip(o, o[1:])]
assert text == ["eins zwei drei \u20ac 0", "eins zwei drei \u20ac 1"], text
assert f["acceptance/proposed"].shape == (2, 2)
assert (f["acceptance/accepted"][:] <= f["acceptance/proposed"][:]).all()
assert isinstance(f["passport"].attrs["job"], str) and f["passport"].attrs["job"] == "sample"
assert f["summary/completion_tokens"][0] == 9 and f["summary/tokens_per_s"][0] == 9.0

def check(name, d):
    if isinstance(d, h5py.Dataset):
        assert d.attrs["units"] and d.attrs["description"], name
        assert d.dtype.kind != "f" or np.isfinite(d[:]).all(), name
f.visititems(check)
)",
                                dir);
  if (status == -1) GTEST_SKIP() << "no h5py for /usr/bin/python3";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tandem
