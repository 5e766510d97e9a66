// What the disk and other processes can do to a result file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <numeric>

#include "base/error.h"
#include "output/result_reader.h"
#include "output/result_writer.h"
#include "tests/output/sample_records.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using testing::sample_options;
using testing::sample_request;
using testing::TempDir;
using testing::write_text;

std::string refusal(WriterOptions options) {
  try {
    const ResultWriter writer(std::move(options));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfiguration) << error.what();
    return error.what();
  }
  return "accepted";
}

// A request with tokens that do not compress.
RequestRecord bulky_request(std::int64_t index) {
  constexpr std::size_t kTokens = 100'000;
  auto r = sample_request(index, 0);
  std::uint32_t state = 12345 + static_cast<std::uint32_t>(index);
  for (std::size_t i = 0; i < kTokens; ++i) {
    state = state * 1664525u + 1013904223u;
    r.completion_ids.push_back(static_cast<std::int32_t>(state >> 1));
    r.token_times_s.push_back(10);
    r.token_steps.push_back(1);
    r.logit_hashes.push_back(state * 0x9E3779B97F4A7C15ull);
  }
  return r;
}

// Where in the file the middle of a dataset's first chunk lies.
std::size_t middle_of_chunk(const std::filesystem::path& file, const char* dataset) {
  const hid_t id = H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t data = H5Dopen2(id, dataset, H5P_DEFAULT);
  hsize_t offset = 0;
  unsigned mask = 0;
  haddr_t address = 0;
  hsize_t bytes = 0;
  const hid_t space = H5Dget_space(data);
  EXPECT_GE(H5Dget_chunk_info(data, space, 0, &offset, &mask, &address, &bytes), 0);
  H5Sclose(space);
  H5Dclose(data);
  H5Fclose(id);
  return address + bytes / 2;
}

class SmallFileSystem {
 public:
  explicit SmallFileSystem(std::filesystem::path at) : at_(std::move(at)) {
    std::filesystem::create_directories(at_);
    mounted_ = ::mount("tmpfs", at_.c_str(), "tmpfs", 0, "size=24m") == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  bool make_read_only() {
    return ::mount("tmpfs", at_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=24m") == 0;
  }

 private:
  std::filesystem::path at_;
  bool mounted_ = false;
};

TEST(Disk, FullDiskKeepsTheRowsAndRecovers) {
  const TempDir dir;
  const SmallFileSystem small(dir / "small");
  if (!small.mounted()) GTEST_SKIP() << "may not mount a tmpfs";
  const auto file = dir / "small/a.h5";
  ResultWriter writer(sample_options(file, 2));
  writer.submit(sample_request(0));
  ASSERT_TRUE(writer.flush_now(std::chrono::seconds(60)));
  write_text(dir / "small/ballast", std::string(15u << 20, 'x'));
  writer.submit(bulky_request(1));
  EXPECT_FALSE(writer.flush_now(std::chrono::seconds(60)));
  EXPECT_EQ(read_result(file, {}).requests.size(), 1u);
  std::filesystem::remove(dir / "small/ballast");
  EXPECT_TRUE(writer.flush_now(std::chrono::seconds(60)));
  const auto rows = read_result(file, {.tokens = true}).requests;
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].completion_ids, bulky_request(1).completion_ids);
}

TEST(Disk, FullDiskAtTheEndIsOneClearError) {
  const TempDir dir;
  const SmallFileSystem small(dir / "small");
  if (!small.mounted()) GTEST_SKIP() << "may not mount a tmpfs";
  const auto file = dir / "small/a.h5";
  {
    ResultWriter writer(sample_options(file, 2));
    writer.submit(sample_request(0));
    ASSERT_TRUE(writer.flush_now(std::chrono::seconds(60)));
    write_text(dir / "small/ballast", std::string(15u << 20, 'x'));
    writer.submit(bulky_request(1));
    try {
      writer.finish(ExitCode::kDone);
      FAIL() << "finished on a full disk";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInternal);
      EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos)
          << error.what();
      EXPECT_FALSE(error.text().where.empty());
      EXPECT_FALSE(error.text().remedy.empty());
    }
  }
  EXPECT_EQ(read_result(file, {}).requests.size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(file.string() + ".tmp"));
}

// The same without a mount: the limit on file sizes stops the writer where a full disk would.
TEST(Disk, FileSizeLimit) {
  const TempDir dir;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{6u << 20, 6u << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 1;
    try {
      ResultWriter writer(sample_options(dir / "a.h5", 2));
      writer.submit(sample_request(0));
      if (!writer.flush_now(std::chrono::seconds(60))) ::_exit(2);
      writer.submit(bulky_request(1));
      if (writer.flush_now(std::chrono::seconds(60))) ::_exit(3);
      writer.finish(ExitCode::kDone);
    } catch (const Error& error) {
      const bool clear = std::string(error.what()).find("File too large") != std::string::npos;
      code = clear ? 0 : 4;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read_result(dir / "a.h5", {}).requests.size(), 1u);
}

TEST(Disk, BackPressureEndsInAnErrorWhenNothingCanBeWritten) {
  const TempDir dir;
  auto options = sample_options(dir / "a.h5", 2);
  options.max_pending_bytes = 1u << 20;
  bool broken = false;
  options.before_step = [&broken](std::string_view step) {
    if (broken && step == "copy") {
      throw Error(ExitCode::kInternal, {.what = "Input/output error"});
    }
  };
  ResultWriter writer(std::move(options));
  for (int i = 0; i < 3; ++i) writer.submit(bulky_request(i));  // each beyond the bound: waits
  broken = true;
  EXPECT_THROW(for (int i = 3; i < 6; ++i) writer.submit(bulky_request(i)), Error);
  broken = false;
}

TEST(Disk, ExistingFileIsKept) {
  const TempDir dir;
  write_text(dir / "a.h5", "somebody's result");
  const auto text = refusal(sample_options(dir / "a.h5", 1));
  EXPECT_NE(text.find("exists already"), std::string::npos) << text;
  EXPECT_NE(text.find("--overwrite"), std::string::npos) << text;
  EXPECT_EQ(testing::read_text(dir / "a.h5"), "somebody's result");
  EXPECT_FALSE(std::filesystem::exists(dir / "a.h5.lock"));

  auto options = sample_options(dir / "a.h5", 1);
  options.existing = ExistingFile::kOverwrite;
  EXPECT_EQ(refusal(std::move(options)), "accepted");
  EXPECT_TRUE(read_result(dir / "a.h5", {}).requests.empty());
}

TEST(Disk, BadTargets) {
  const TempDir dir;
  EXPECT_NE(refusal(sample_options(dir.path(), 1)).find("is a folder"), std::string::npos);
  write_text(dir / "plain", "x");
  EXPECT_NE(refusal(sample_options(dir / "plain/a.h5", 1)).find("cannot create the folder"),
            std::string::npos);
  EXPECT_EQ(refusal(sample_options(dir / "new/folders/a.h5", 1)), "accepted");
}

TEST(Disk, ReadOnlyFileSystem) {
  const TempDir dir;
  SmallFileSystem small(dir / "small");
  if (!small.mounted() || !small.make_read_only()) GTEST_SKIP() << "may not mount a tmpfs";
  EXPECT_NE(refusal(sample_options(dir / "small/a.h5", 1)).find("Read-only file system"),
            std::string::npos);
}

TEST(Disk, UnwritableFolder) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const TempDir dir;
  std::filesystem::permissions(
      dir.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_NE(refusal(sample_options(dir / "a.h5", 1)).find("Permission denied"), std::string::npos);
  std::filesystem::permissions(dir.path(), std::filesystem::perms::owner_all);
}

TEST(Disk, SecondWriterNamesTheFirst) {
  const TempDir dir;
  int ready[2];
  int done[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(done), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const ResultWriter writer(sample_options(dir / "a.h5", 1));
    char byte = 0;
    if (::write(ready[1], "r", 1) != 1 || ::read(done[0], &byte, 1) != 1) ::_exit(1);
    ::_exit(0);  // without giving the lock back, like a process that dies
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  auto options = sample_options(dir / "a.h5", 1);
  options.existing = ExistingFile::kOverwrite;
  EXPECT_NE(refusal(options).find("process " + std::to_string(pid) + " is writing this result"),
            std::string::npos);
  ASSERT_EQ(::write(done[1], "d", 1), 1);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(refusal(options), "accepted") << "the lock outlived its process";
}

// A reader that holds HDF5's own lock on the visible file does not disturb the writer (F35).
TEST(Disk, ReadersDoNotDisturb) {
  const TempDir dir;
  ResultWriter writer(sample_options(dir / "a.h5", 1));
  const int reader = ::open((dir / "a.h5").c_str(), O_RDONLY);
  ASSERT_EQ(::flock(reader, LOCK_SH | LOCK_NB), 0);
  writer.submit(sample_request(0));
  EXPECT_TRUE(writer.flush_now(std::chrono::seconds(60)));
  ::close(reader);
  EXPECT_EQ(read_result(dir / "a.h5", {}).requests.size(), 1u);
}

TEST(Disk, DamagedFilesAreOneClearError) {
  const TempDir dir;
  {
    ResultWriter writer(sample_options(dir / "good.h5", 1));
    writer.submit(sample_request(0));
    writer.finish(ExitCode::kDone);
  }
  const auto good = testing::read_text(dir / "good.h5");
  const auto expect_refused = [&](const std::string& name, const std::string& bytes) {
    write_text(dir / name, bytes);
    try {
      read_result(dir / name, {.tokens = true, .text = true, .steps = true, .samples = true});
      ADD_FAILURE() << name << " was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfiguration);
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  };
  expect_refused("empty.h5", "");
  expect_refused("text.h5", "{\"not\": \"hdf5\"}");
  expect_refused("half.h5", good.substr(0, good.size() / 2));
  expect_refused("tail.h5", good.substr(0, good.size() - 1));
  auto flipped = good;
  flipped.at(middle_of_chunk(dir / "good.h5", "/tokens/time_s")) ^= 1;
  expect_refused("flipped.h5", flipped);
  try {
    read_result(dir / "none.h5", {});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no such file"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tandem
