#include "output/redact.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "output/result_reader.h"
#include "output/result_writer.h"
#include "output/scrub.h"
#include "tests/output/sample_records.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using testing::sample_options;
using testing::sample_request;
using testing::TempDir;

TEST(Scrubber, HidesWhatPointsAtPeopleAndMachines) {
  Scrubber scrubber;
  scrubber.add_host("node1.lab.org");
  scrubber.add_user("ada");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"rank 0 on node1.lab.org, rank 1 on node1", "rank 0 on <host>, rank 1 on <host>"},
      {"node10 is another", "node10 is another"},
      {"ada@node1:22", "<user>@<host>:22"},
      {"tcp://192.168.1.17:4711,10.0.0.2", "tcp:<path>,<address>"},
      {"listening on 192.168.1.17:4711", "listening on <address>"},
      {"GID fe80::1ff:fe23:4567:890a index 3", "GID <address> index 3"},
      {"mac aa:bb:cc:dd:ee:ff", "mac <address>"},
      {"path: /home/ada/models/Qwen", "path: <path>"},
      {"file=\"../models/x.h5\" and prompts/four.jsonl", "file=\"<path>\" and <path>"},
      {"PATH=/usr/bin:/opt/x", "PATH=<path>"},
      {"~/jobs", "<path>"},
      {"41.5 tokens/s at 12:34:56Z with HDF5 1.10.8",
       "41.5 tokens/s at 12:34:56Z with HDF5 1.10.8"},
      {"0000:01:00.0", "0000:01:00.0"},
      {"accepted 3/4 of canada", "accepted 3/4 of canada"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(scrubber.scrub(text), expected);
}

TEST(Redact, NoByteOfTheCopyPointsAtTheAuthor) {
  const TempDir dir;
  {
    auto options = sample_options(dir / "a.h5", 2);
    options.passport.set("ranks.map",
                         "rank 0 -> spark-one.lab.example (pid 1)\n"
                         "rank 1 -> spark-two.lab.example (pid 2)\n");
    options.passport.set("config", "model:\n  path: /home/ada/models/Qwen3.8-27B\n  load: auto\n");
    options.passport.set("checkpoint_path", "relative-models/Qwen");
    options.passport.set("env.NCCL_SOCKET_IFNAME", "enp1s0f0np0");
    options.passport.set("env.OMPI_MCA_orte_hnp_uri", "1.0;tcp://10.11.12.13:40001");
    options.facts.token_keys["model.path"] = "/home/ada/models/Qwen3.8-27B";
    ResultWriter writer(std::move(options));
    writer.submit(sample_request(0));
    auto failed = sample_request(1, 0);
    failed.finish_reason = FinishReason::kError;
    failed.error_class = "never_fits";
    failed.error_text = "spark-two has too few pages, see /var/log/tandem";
    writer.submit(std::move(failed));
    LogEvent event;
    event.text = "rank 1 (spark-two.lab.example, 10.11.12.13) answered ada";
    writer.submit(event);
    writer.finish(ExitCode::kSomeFailed);
  }
  {
    auto options = sample_options(dir / "a.h5", 2);
    options.existing = ExistingFile::kResume;
    options.passport.set("host", "late-host");
    ResultWriter(std::move(options)).finish(ExitCode::kDone);
  }
  redact_result(dir / "a.h5", dir / "shared.h5");

  const auto before = testing::read_text(dir / "a.h5");
  const auto after = testing::read_text(dir / "shared.h5");
  // Deflated text columns do not show in the bytes, so the values are searched as well, below.
  for (const std::string secret :
       {"spark-one", "lab.example", "/home/ada", "10.11.12.13", "late-host", "relative-models"}) {
    EXPECT_NE(before.find(secret), std::string::npos) << secret << " was never there";
    EXPECT_EQ(after.find(secret), std::string::npos) << secret;
  }
  const auto copy = read_result(dir / "shared.h5",
                                {.tokens = true, .text = true, .steps = true, .samples = true});
  EXPECT_EQ(copy.log.at(0).text, "rank 1 (<host>, <address>) answered <user>");
  EXPECT_EQ(copy.requests.at(1).error_text, "<host> has too few pages, see <path>");
  EXPECT_EQ(copy.sessions.at(0).host, "<host>");
  EXPECT_EQ(copy.sessions.at(1).host, "<host>");
  EXPECT_EQ(copy.passport.text("user"), "<user>");
  EXPECT_EQ(copy.passport.text("ranks.map"),
            "rank 0 -> <host> (pid 1)\nrank 1 -> <host> (pid 2)\n");
  EXPECT_EQ(copy.passport.text("config"), "model:\n  path: <path>\n  load: auto\n");
  EXPECT_EQ(copy.passport.text("env.NCCL_SOCKET_IFNAME"), "enp1s0f0np0");
  EXPECT_EQ(copy.facts.token_keys.at("model.path"), "<path>");
  // All that was measured is still there.
  const auto original = read_result(dir / "a.h5", {.tokens = true, .text = true});
  ASSERT_EQ(copy.requests.size(), original.requests.size());
  EXPECT_EQ(copy.requests[0].completion_ids, original.requests[0].completion_ids);
  EXPECT_EQ(copy.requests[0].completion_text, original.requests[0].completion_text);
  EXPECT_EQ(copy.requests[0].ttft_s, original.requests[0].ttft_s);
  EXPECT_EQ(copy.requests[0].draft_accepted, original.requests[0].draft_accepted);
  EXPECT_EQ(copy.summary.size(), original.summary.size());
}

TEST(Redact, NeverReplacesAFile) {
  const TempDir dir;
  { ResultWriter(sample_options(dir / "a.h5", 1)).finish(ExitCode::kDone); }
  EXPECT_THROW(redact_result(dir / "a.h5", dir / "a.h5"), Error);
  testing::write_text(dir / "b.h5", "x");
  EXPECT_THROW(redact_result(dir / "a.h5", dir / "b.h5"), Error);
  EXPECT_EQ(testing::read_text(dir / "b.h5"), "x");
}

}  // namespace
}  // namespace tandem
