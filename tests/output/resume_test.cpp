#include "output/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "output/result_reader.h"
#include "output/result_writer.h"
#include "tests/output/sample_records.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::sample_id;
using testing::sample_options;
using testing::sample_request;
using testing::TempDir;

void write_session(const std::filesystem::path& file, std::int64_t first, std::int64_t last,
                   ExistingFile existing, ExitCode exit_code) {
  auto options = sample_options(file, 4);
  options.existing = existing;
  if (existing == ExistingFile::kResume) options.passport.set("host", "spark-two");
  ResultWriter writer(std::move(options));
  GroupRecord group;
  group.concurrency = 2;
  group.start_s = 0.1;
  writer.submit(group);
  for (auto i = first; i < last; ++i) writer.submit(sample_request(i));
  if (exit_code == ExitCode::kDone) {
    group.end_s = 1.1;
    writer.submit(group);
  }
  writer.finish(exit_code);
}

TEST(Resume, SecondSessionCompletesTheFile) {
  const TempDir dir;
  write_session(dir / "a.h5", 0, 2, ExistingFile::kRefuse, ExitCode::kInterrupted);
  const auto plan = plan_resume(dir / "a.h5", sample_options({}, 4).facts);
  EXPECT_EQ(plan.session, 2);
  EXPECT_THAT(plan.completed,
              ElementsAre(WorkKey{sample_id(0), 2, 0, false}, WorkKey{sample_id(1), 2, 0, false}));
  write_session(dir / "a.h5", 2, 4, ExistingFile::kResume, ExitCode::kDone);

  const auto contents = read_result(dir / "a.h5", {.tokens = true});
  ASSERT_EQ(contents.requests.size(), 4u);
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto& row = contents.requests[static_cast<std::size_t>(i)];
    EXPECT_EQ(row.id, sample_id(i));
    EXPECT_EQ(row.session, i < 2 ? 1 : 2);
    EXPECT_EQ(row.completion_ids, sample_request(i).completion_ids);
  }
  ASSERT_EQ(contents.sessions.size(), 2u);
  EXPECT_EQ(contents.sessions[0].exit_status, "interrupted");
  EXPECT_EQ(contents.sessions[1].exit_status, "done");
  EXPECT_EQ(contents.sessions[1].host, "spark-two");
  EXPECT_EQ(contents.passport.text("host"), "spark-one.lab.example");
  EXPECT_EQ(contents.passport.text("exit_status"), "done");
  EXPECT_EQ(contents.later_passports.at(2).text("host"), "spark-two");
  ASSERT_EQ(contents.groups.size(), 2u);

  // Session 1 lasted from 0.1 to its last token at 0.25, session 2 from 0.1 to 1.1: 32 tokens.
  ASSERT_GE(contents.summary.size(), 1u);
  EXPECT_EQ(contents.summary[0].session, 0);
  EXPECT_EQ(contents.summary[0].requests, 4);
  EXPECT_EQ(contents.summary[0].runs, 1);
  EXPECT_NEAR(contents.summary[0].wall_s.value(), 0.15 + 1.0, 1e-9);
  EXPECT_NEAR(contents.summary[0].tokens_per_s.value(), 32 / 1.15, 1e-9);
  const auto second = std::find_if(contents.summary.begin(), contents.summary.end(),
                                   [](const SummaryRow& s) { return s.session == 2; });
  ASSERT_NE(second, contents.summary.end());
  EXPECT_NEAR(second->tokens_per_s.value(), 16.0, 1e-9);
  EXPECT_EQ(plan_resume(dir / "a.h5", sample_options({}, 4).facts).completed.size(), 4u);
}

// After a kill the first session's end stays open and its exit status "running".
TEST(Resume, KilledSessionStaysMarked) {
  const TempDir dir;
  {
    ResultWriter writer(sample_options(dir / "a.h5", 4));
    writer.submit(sample_request(0));
  }
  write_session(dir / "a.h5", 1, 4, ExistingFile::kResume, ExitCode::kDone);
  const auto contents = read_result(dir / "a.h5", {});
  EXPECT_EQ(contents.sessions[0].exit_status, "running");
  EXPECT_FALSE(contents.sessions[0].exit_code.has_value());
  EXPECT_TRUE(contents.sessions[0].end_utc.empty());
  EXPECT_FALSE(contents.summary[0].tokens_per_s.has_value())
      << "session 1 has no wall time: its tokens over session 2's time would be too fast";
}

TEST(Resume, EveryDifferenceIsListed) {
  const TempDir dir;
  write_session(dir / "a.h5", 0, 2, ExistingFile::kRefuse, ExitCode::kInterrupted);
  auto facts = sample_options({}, 4).facts;
  facts.token_keys["sampling.seed"] = "1";
  facts.token_keys.erase("speculative.method");
  facts.token_keys["sampling.top_k"] = "5";
  facts.checkpoint_identity = "other";
  facts.tokenizer_sha256 = "beef";
  facts.program_version = "0.2.0";
  facts.num_ranks = 1;
  facts.prompts[1].content_hash = 99;
  facts.prompts[2].id = "renamed";
  facts.prompts.pop_back();
  try {
    plan_resume(dir / "a.h5", facts);
    FAIL() << "resumed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfiguration);
    const std::string text = error.what();
    for (const auto* line :
         {"sampling.seed: the file has '0', this run '1'",
          "speculative.method: the file has 'mtp', this run does not",
          "sampling.top_k: this run has '5', the file does not",
          "checkpoint: the file has 'model.safetensors 1234 abcd', this run 'other'",
          "tokenizer SHA-256: the file has 'feed', this run 'beef'",
          "program version: the file has '0.1.0', this run '0.2.0'",
          "ranks: the file has '2', this run '1'",
          "prompt 'request-1': tokens or sampling parameters differ",
          "prompt 'renamed': not in the file", "prompt 'request-2': only in the file",
          "prompt 'request-3': only in the file"}) {
      EXPECT_THAT(text, HasSubstr(line));
    }
  }
}

TEST(Resume, RankCountMayDifferWhereItCannotMatter) {
  RunFacts stored;
  stored.num_ranks = 2;
  RunFacts now = stored;
  now.num_ranks = 4;
  EXPECT_THAT(compare_run_facts(stored, now), ElementsAre(HasSubstr("ranks")));
  now.rank_invariant = true;
  EXPECT_EQ(compare_run_facts(stored, now).size(), 1u) << "both runs must be rank invariant";
  stored.rank_invariant = true;
  EXPECT_TRUE(compare_run_facts(stored, now).empty());
}

TEST(Resume, ManyDifferentPromptsAreCounted) {
  RunFacts stored;
  RunFacts now;
  for (std::int64_t i = 0; i < 100; ++i) stored.prompts.push_back({sample_id(i), 1});
  const auto differences = compare_run_facts(stored, now);
  EXPECT_EQ(differences.size(), 21u);
  EXPECT_EQ(differences.back(), "80 more prompts differ");
}

TEST(Resume, ContentHashSeesTokensAndSampling) {
  const std::vector<std::int32_t> ids{1, 2, 3};
  const std::vector<std::int32_t> other{1, 2, 4};
  const auto hash = prompt_content_hash(ids, "max_tokens=8");
  EXPECT_EQ(hash, prompt_content_hash(ids, "max_tokens=8"));
  EXPECT_NE(hash, prompt_content_hash(other, "max_tokens=8"));
  EXPECT_NE(hash, prompt_content_hash(ids, "max_tokens=9"));
}

}  // namespace
}  // namespace tandem
