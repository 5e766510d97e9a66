// Catching NCCL's log whatever the user set. The test writes as NCCL does: it opens the file that
// the environment names.
#include "parallel/nccl_log_capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>

namespace tandem {
namespace {

using ::testing::HasSubstr;

class CaptureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}) unsetenv(name);
    user_file_ = std::filesystem::temp_directory_path() /
                 ("tandem-nccl-log-test." + std::to_string(getpid()));
    std::filesystem::remove(user_file_);
  }
  void TearDown() override { SetUp(); }

  static std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "(unset)" : value;
  }
  std::string read_user_file() const {
    std::ifstream in(user_file_);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }

  std::filesystem::path user_file_;
};

// NCCL's own end of it.
class Writer {
 public:
  Writer() : file_(std::fopen(std::getenv("NCCL_DEBUG_FILE"), "w"), std::fclose) {}
  bool open() const { return file_ != nullptr; }
  void write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), file_.get());
    std::fflush(file_.get());
  }

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

TEST_F(CaptureTest, ReadsEverythingThoughTheUserAskedForNothing) {
  NcclLogCapture capture;
  EXPECT_EQ(variable("NCCL_DEBUG"), "INFO");
  EXPECT_THAT(variable("NCCL_DEBUG_SUBSYS"), HasSubstr("INIT,NET,P2P,SHM"));
  Writer nccl;
  ASSERT_TRUE(nccl.open());
  nccl.write("first\n");
  const auto begin = capture.size();
  EXPECT_EQ(begin, 6);
  nccl.write("second\nthi");
  EXPECT_EQ(capture.text(begin), "second\nthi");
  capture.restore_environment();
  for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}) {
    EXPECT_EQ(variable(name), "(unset)");
  }
  nccl.write("rd\n");
  EXPECT_EQ(capture.text(begin), "second\nthird\n") << "also after the environment is back";
}

TEST_F(CaptureTest, PassesOnWhatTheUserAskedFor) {
  setenv("NCCL_DEBUG", "warn", 1);
  setenv("NCCL_DEBUG_SUBSYS", "COLL", 1);
  setenv("NCCL_DEBUG_FILE", user_file_.c_str(), 1);
  NcclLogCapture capture;
  EXPECT_EQ(variable("NCCL_DEBUG_SUBSYS"), "INIT,NET,P2P,SHM,ENV,COLL");
  Writer nccl;
  ASSERT_TRUE(nccl.open());
  nccl.write("a:1:2 [0] NCCL INFO chatter\na:1:2 [0] NCCL WARN trouble\na:1:2 [0] NCCL WARN cut");
  capture.forward();
  EXPECT_EQ(read_user_file(), "a:1:2 [0] NCCL WARN trouble\n");
  nccl.write(" off\n");
  capture.forward();
  capture.forward();
  EXPECT_EQ(read_user_file(), "a:1:2 [0] NCCL WARN trouble\na:1:2 [0] NCCL WARN cut off\n");
  capture.restore_environment();
  EXPECT_EQ(variable("NCCL_DEBUG"), "warn");
  EXPECT_EQ(variable("NCCL_DEBUG_FILE"), user_file_.string());
}

TEST_F(CaptureTest, ALongLogIsPassedOnWholeAndDoesNotStayInMemory) {
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_FILE", user_file_.c_str(), 1);
  NcclLogCapture capture;
  Writer nccl;
  ASSERT_TRUE(nccl.open());
  const std::string line = std::string(1023, 'x') + "\n";
  for (int i = 0; i < 10; ++i) {
    for (int k = 0; k < 1024; ++k) nccl.write(line);
    capture.forward();
  }
  EXPECT_EQ(std::filesystem::file_size(user_file_), 10u << 20);
  EXPECT_EQ(capture.size(), 10 << 20) << "places in the log stay valid";
  EXPECT_NE(capture.text(0).front(), 'x') << "the beginning was dropped";
  nccl.write("last\n");
  EXPECT_EQ(capture.text(10 << 20), "last\n");
}

TEST(NcclVerbosityTest, FollowsNcclsWords) {
  EXPECT_EQ(nccl_verbosity(""), NcclVerbosity::kNothing);
  EXPECT_EQ(nccl_verbosity("none"), NcclVerbosity::kNothing);
  EXPECT_EQ(nccl_verbosity("Version"), NcclVerbosity::kVersion);
  EXPECT_EQ(nccl_verbosity("WARN"), NcclVerbosity::kWarnings);
  EXPECT_EQ(nccl_verbosity("trace"), NcclVerbosity::kEverything);
  EXPECT_TRUE(wanted_by(NcclVerbosity::kVersion, "NCCL version 2.28.9+cuda13.0"));
  EXPECT_FALSE(wanted_by(NcclVerbosity::kVersion, "a:1:2 [0] NCCL WARN x"));
  EXPECT_FALSE(wanted_by(NcclVerbosity::kNothing, "NCCL version 2.28.9+cuda13.0"));
}

TEST(NcclSubsystems, AreAddedToTheUsers) {
  EXPECT_EQ(nccl_subsystems(""), "INIT,NET,P2P,SHM,ENV");
  EXPECT_EQ(nccl_subsystems("COLL,TUNING"), "INIT,NET,P2P,SHM,ENV,COLL,TUNING");
  EXPECT_EQ(nccl_subsystems("^INIT"), "INIT,NET,P2P,SHM,ENV");
}

TEST(NcclFile, ExpandsHostAndProcess) {
  EXPECT_EQ(expand_nccl_file("log.%h.%p", "spark1.local", 4711), "log.spark1.4711");
  EXPECT_EQ(expand_nccl_file("100%%.%x%", "h", 1), "100%.%x%");
}

}  // namespace
}  // namespace tandem
