// Bad job files: every problem is reported with file, line and key, and all of them at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "config/job_file.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_text;

// The message of the error that `load` must throw.
template <typename Load>
std::string error_of(Load load) {
  try {
    load();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfiguration);
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

struct BadJob {
  const char* name;
  std::string yaml;  // after two lines that give the required keys
  std::string where;
  std::vector<std::string> parts;  // each appears in the message
};

void PrintTo(const BadJob& bad, std::ostream* out) { *out << bad.name; }

class BadJobTest : public ::testing::TestWithParam<BadJob> {};

TEST_P(BadJobTest, IsRefusedWithPlaceAndReason) {
  const auto text = "model: {path: m}\nprompts: {file: p}\n" + GetParam().yaml;
  const auto message = error_of([&] { load_job_text(text, "job.yaml", "/base"); });
  // A single problem starts with its place.
  EXPECT_EQ(message.rfind(GetParam().where + ": ", 0), 0u) << message;
  for (const auto& part : GetParam().parts) EXPECT_THAT(message, HasSubstr(part));
}

const std::vector<BadJob> kBadJobs{
    // Unknown names.
    {"unknown_key",
     "sampling: {max_token: 3}",
     "job.yaml:3: sampling.max_token",
     {"unknown key", "nearest valid key 'sampling.max_tokens'"}},
    {"wrong_section",
     "scheduler:\n  prefix_cache: true\n  page_tokens: 16",
     "job.yaml:5: scheduler.page_tokens",
     {"nearest valid key 'memory.page_tokens'"}},
    {"unknown_section", "sampler: {seed: 1}", "job.yaml:3: sampler", {"unknown key 'sampler'"}},
    {"key_at_top_level",
     "max_tokens: 4",
     "job.yaml:3: max_tokens",
     {"nearest valid key 'sampling.max_tokens'"}},
    {"dotted_key", "memory.reserve: 1GiB", "job.yaml:3: memory.reserve", {"inside its section"}},
    {"no_blank_after_colon",
     "sampling: {seed:1}",
     "job.yaml:3: sampling.seed:1",
     {"blank after ':'"}},
    {"merge_key", "<<: {job: a}", "job.yaml:3: <<", {"unknown key"}},
    // Shape of the file.
    {"duplicate_section",
     "job: a\nmodel: {path: n}",
     "job.yaml:4: model",
     {"duplicate key", "the first is in line 1"}},
    {"duplicate_key",
     "sampling:\n  seed: 1\n  top_k: 2\n  seed: 1",
     "job.yaml:6: sampling.seed",
     {"duplicate key", "line 4"}},
    {"duplicate_in_flow",
     "sampling: {seed: 1, seed: 2}",
     "job.yaml:3: sampling.seed",
     {"duplicate key"}},
    {"tab_indent", "sampling:\n\tseed: 1", "job.yaml:4", {"a tab in the indentation"}},
    {"tab_after_blanks", "sampling:\n  top_k: 1\n  \tseed: 1", "job.yaml:5", {"a tab"}},
    {"section_is_scalar", "sampling: 3", "job.yaml:3: sampling", {"'3' is not a section", "a map"}},
    {"section_is_list", "run: [1]", "job.yaml:3: run", {"a list is not a section"}},
    {"key_is_list", "? [a, b]\n: 1", "job.yaml:3", {"a key that is not a word"}},
    {"two_documents",
     "---\njob: b",
     "job.yaml:3",
     {"after the end of the YAML document", "one document"}},
    {"closing_bracket", "}", "job.yaml:3", {"not valid YAML"}},
    {"syntax", "job: [1, 2", "job.yaml:3", {"not valid YAML"}},
    {"not_utf8", "job: a\n# caf\xe9", "job.yaml:4", {"byte 0xe9 is not UTF-8"}},
    {"zero_byte", std::string("job: a\0b", 8), "job.yaml:3", {"byte 0x00"}},
    // Types.
    {"quoted_number",
     "sampling: {top_p: \".9\"}",
     "job.yaml:3: sampling.top_p",
     {"the quoted text \".9\" is not a number", "(0, 1]"}},
    {"tagged_text",
     "sampling: {top_p: !!str 0.9}",
     "job.yaml:3: sampling.top_p",
     {"is not a number"}},
    {"word_for_number",
     "sampling: {temperature: hot}",
     "job.yaml:3: sampling.temperature",
     {"'hot' is not a finite number", "[0, 100]"}},
    {"nan", "sampling: {temperature: .nan}", "job.yaml:3: sampling.temperature", {"finite"}},
    {"bare_nan", "sampling: {temperature: nan}", "job.yaml:3: sampling.temperature", {"finite"}},
    {"infinity", "sampling: {temperature: .inf}", "job.yaml:3: sampling.temperature", {"finite"}},
    {"bare_infinity",
     "sampling: {temperature: inf}",
     "job.yaml:3: sampling.temperature",
     {"finite"}},
    {"yes_for_bool",
     "output: {steps: yes}",
     "job.yaml:3: output.steps",
     {"'yes' is not true or false"}},
    {"no_for_bool",
     "scheduler: {prefix_cache: no}",
     "job.yaml:3: scheduler.prefix_cache",
     {"'no' is not true or false", "expected true or false"}},
    {"on_for_bool",
     "output:\n  text: on",
     "job.yaml:4: output.text",
     {"'on' is not true or false"}},
    {"capital_bool", "output: {text: True}", "job.yaml:3: output.text", {"true or false"}},
    {"quoted_bool", "output: {text: \"true\"}", "job.yaml:3: output.text", {"quoted text"}},
    {"number_for_bool",
     "output: {text: 1}",
     "job.yaml:3: output.text",
     {"'1' is not true or false"}},
    {"fraction_for_integer",
     "sampling: {max_tokens: 3.0}",
     "job.yaml:3: sampling.max_tokens",
     {"'3.0' is not an integer"}},
    {"exponent_for_integer",
     "sampling: {max_tokens: 1e3}",
     "job.yaml:3: sampling.max_tokens",
     {"not an integer"}},
    {"octal", "sampling: {seed: 010}", "job.yaml:3: sampling.seed", {"plain decimal digits"}},
    {"hexadecimal",
     "sampling: {seed: 0x10}",
     "job.yaml:3: sampling.seed",
     {"plain decimal digits"}},
    {"quoted_integer", "sampling: {seed: '1'}", "job.yaml:3: sampling.seed", {"quoted text"}},
    {"null_for_integer", "sampling: {seed: }", "job.yaml:3: sampling.seed", {"null is not"}},
    {"list_for_integer", "sampling: {seed: [1]}", "job.yaml:3: sampling.seed", {"a list is not"}},
    {"map_for_text", "job: {a: b}", "job.yaml:3: job", {"a map is not a text"}},
    {"auto_without_meaning", "run: {repeats: auto}", "job.yaml:3: run.repeats", {"'auto'"}},
    {"size_without_unit",
     "memory: {reserve: 12}",
     "job.yaml:3: memory.reserve",
     {"'12' has no unit", "KiB, MiB or GiB"}},
    {"decimal_unit", "memory: {kv: 12GB}", "job.yaml:3: memory.kv", {"'12GB'", "or auto"}},
    {"negative_size", "memory: {reserve: -1GiB}", "job.yaml:3: memory.reserve", {"not a size"}},
    {"duration_without_unit",
     "run: {stall_timeout: 60}",
     "job.yaml:3: run.stall_timeout",
     {"'60' is not a duration", "s, m or h"}},
    {"unknown_choice",
     "backend: gpu",
     "job.yaml:3: backend",
     {"'gpu' is not a known choice", "one of auto, cpu, cuda"}},
    {"choice_no",
     "speculative: {method: no}",
     "job.yaml:3: speculative.method",
     {"one of auto, none"}},
    // Ranges.
    {"negative_temperature",
     "sampling: {temperature: -0.1}",
     "job.yaml:3: sampling.temperature",
     {"out of range"}},
    {"huge_number",
     "sampling: {temperature: 1e400}",
     "job.yaml:3: sampling.temperature",
     {"out of range"}},
    {"top_p_zero", "sampling: {top_p: 0}", "job.yaml:3: sampling.top_p", {"(0, 1]"}},
    {"min_p_one", "sampling: {min_p: 1.0}", "job.yaml:3: sampling.min_p", {"[0, 1)"}},
    {"negative_seed", "sampling: {seed: -1}", "job.yaml:3: sampling.seed", {"out of range"}},
    {"seed_too_large",
     "sampling: {seed: 18446744073709551616}",
     "job.yaml:3: sampling.seed",
     {"out of range"}},
    {"integer_overflow",
     "sampling: {max_tokens: 99999999999}",
     "job.yaml:3: sampling.max_tokens",
     {"out of range"}},
    {"max_tokens_zero",
     "sampling: {max_tokens: 0}",
     "job.yaml:3: sampling.max_tokens",
     {"of at least 1"}},
    {"depth_too_large", "speculative: {tokens: 17}", "job.yaml:3: speculative.tokens", {"1 to 16"}},
    {"page_not_power_of_two",
     "memory: {page_tokens: 24}",
     "job.yaml:3: memory.page_tokens",
     {"'24' is not a power of two", "a power of two from 4 to 256"}},
    {"page_too_small", "memory: {page_tokens: 2}", "job.yaml:3: memory.page_tokens", {"4 to 256"}},
    {"tensor_zero", "parallel: {tensor: 0}", "job.yaml:3: parallel.tensor", {"or auto"}},
    {"stall_too_short",
     "run: {stall_timeout: 10ms}",
     "job.yaml:3: run.stall_timeout",
     {"at least 1s"}},
    {"too_many_warmups", "job: b\nrun: {warmup: 1001}", "job.yaml:4: run.warmup", {"0 to 1000"}},
    // Lists.
    {"empty_list", "run: {concurrency: []}", "job.yaml:3: run.concurrency", {"the list is empty"}},
    {"word_in_list",
     "run: {concurrency: [1, two]}",
     "job.yaml:3: run.concurrency",
     {"in the list, 'two' is not an integer"}},
    {"quoted_in_list", "run: {concurrency: [1, \"2\"]}", "job.yaml:3: run.concurrency", {"quoted"}},
    {"zero_in_list", "run: {concurrency: [0]}", "job.yaml:3: run.concurrency", {"out of range"}},
    {"repeated_in_list",
     "run: {concurrency: [2, 2]}",
     "job.yaml:3: run.concurrency",
     {"2 appears twice"}},
    {"list_in_list", "run: {concurrency: [[1]]}", "job.yaml:3: run.concurrency", {"a list is not"}},
    {"list_in_itself",
     "run: {concurrency: &a [*a]}",
     "job.yaml:3: run.concurrency",
     {"a list is not"}},
    {"letters",
     "run: {concurrency: abc}",
     "job.yaml:3: run.concurrency",
     {"'abc' is not an integer"}},
    {"trailing_comma", "run: {concurrency: \"1,\"}", "job.yaml:3: run.concurrency", {"''"}},
    {"empty_stop", "sampling: {stop: [\"\"]}", "job.yaml:3: sampling.stop", {"empty stop string"}},
    {"ambiguous_stop",
     "sampling: {stop: \"a,b\"}",
     "job.yaml:3: sampling.stop",
     {"one text or several", "[\"a\", \"b\"]"}},
    {"null_stop", "sampling: {stop: [null]}", "job.yaml:3: sampling.stop", {"null is not a text"}},
    // Names and paths.
    {"slash_in_job", "job: a/b", "job.yaml:3: job", {"file name"}},
    {"empty_job", "job: \"\"", "job.yaml:3: job", {"file name"}},
    {"unknown_placeholder",
     "output: {file: \"r/{date}.h5\"}",
     "job.yaml:3: output.file",
     {"'{date}' is not a placeholder", "{job} and {time}"}},
    {"open_placeholder",
     "output: {file: \"r/{job.h5\"}",
     "job.yaml:3: output.file",
     {"is not a placeholder"}},
    {"output_is_directory", "output: {file: results/}", "job.yaml:3: output.file", {"no file"}},
    {"empty_output", "output: {file: \"\"}", "job.yaml:3: output.file", {"the path is empty"}},
    // Bases.
    {"missing_base",
     "extends: nowhere.yaml",
     "job.yaml:3: extends",
     {"'/base/nowhere.yaml': no such file"}},
    {"list_of_bases", "extends: [a.yaml]", "job.yaml:3: extends", {"a list is not a file name"}},
    // Keys that must agree.
    {"concurrency_above_sequences",
     "run: {mode: bench, concurrency: [4, 16]}",
     "job.yaml:3: run.concurrency",
     {"asks for 16", "allows 8"}},
    {"sequences_below_default_levels",
     "run: {mode: bench}\nscheduler: {max_sequences: 2}",
     "job.yaml:4: scheduler.max_sequences",
     {"asks for 8", "allows 2"}},
};

INSTANTIATE_TEST_SUITE_P(All, BadJobTest, ::testing::ValuesIn(kBadJobs),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(BadJob, AllProblemsAreListedAtOnce) {
  const auto message = error_of([] {
    load_job_text("model:\n  pth: m\nsampling:\n  top_p: 2\n  seed: x\nextra: 1\n", "j.yaml",
                  "/base", std::vector<std::string>{"run.mode=fast"});
  });
  EXPECT_THAT(message, HasSubstr("7 problems in the configuration\n"));
  EXPECT_THAT(message, HasSubstr("\n  j.yaml:2: model.pth: unknown key"));
  EXPECT_THAT(message, HasSubstr("\n  j.yaml:4: sampling.top_p: '2' is out of range"));
  EXPECT_THAT(message, HasSubstr("\n  j.yaml:5: sampling.seed: 'x' is not an integer"));
  EXPECT_THAT(message, HasSubstr("\n  j.yaml:6: extra: unknown key"));
  EXPECT_THAT(message, HasSubstr("\n  --set run.mode=fast: 'fast' is not a known choice"));
  EXPECT_THAT(message, HasSubstr("\n  j.yaml: missing key 'model.path'"));
  EXPECT_THAT(message, HasSubstr("\n  j.yaml: missing key 'prompts.file'"));
}

TEST(BadJob, ProblemsOfTheBaseNameTheBase) {
  const TempDir dir;
  write_text(dir / "base.yaml", "job: a\nsampling:\n  top_q: 1\n");
  write_text(dir / "job.yaml", "extends: base.yaml\nmodel: {path: m}\nprompts: {file: p}\n");
  const auto message = error_of([&] { load_job(dir / "job.yaml"); });
  EXPECT_EQ(message.rfind((dir / "base.yaml").string() + ":3: sampling.top_q: ", 0), 0u) << message;
}

TEST(BadJob, CycleOfBasesIsNamed) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "sub");
  write_text(dir / "a.yaml", "extends: sub/b.yaml\nmodel: {path: m}\nprompts: {file: p}\n");
  write_text(dir / "sub/b.yaml", "job: b\nextends: ../sub/../a.yaml\n");
  const auto message = error_of([&] { load_job(dir / "a.yaml"); });
  EXPECT_THAT(message, HasSubstr("b.yaml:2: extends: '../sub/../a.yaml' extends itself"));
}

TEST(BadJob, FileThatExtendsItself) {
  const TempDir dir;
  write_text(dir / "a.yaml", "extends: a.yaml\nmodel: {path: m}\nprompts: {file: p}\n");
  EXPECT_THAT(error_of([&] { load_job(dir / "a.yaml"); }), HasSubstr("a.yaml:1: extends"));
}

TEST(BadJob, FilesThatCannotBeReadGiveOneClearError) {
  const TempDir dir;
  const auto file = dir / "job.yaml";
  const auto message = [&] { return error_of([&] { load_job(file); }); };
  EXPECT_EQ(message(), file.string() + ": no such file; expected a job file (YAML)");
  write_text(file, "");
  EXPECT_EQ(message(), file.string() + ": the file is empty; expected a map of keys");
  write_text(file, "# only a comment\n");
  EXPECT_EQ(message(), file.string() + ": the file is empty; expected a map of keys");
  write_text(file, "- a\n- b\n");
  EXPECT_THAT(message(), HasSubstr(": a list at the top level; expected a map"));
  write_text(file, "just words\n");
  EXPECT_THAT(message(), HasSubstr(": 'just words' at the top level; expected a map"));
  write_text(file, ",\n");  // yaml-cpp finds endless documents in this
  EXPECT_THAT(message(), HasSubstr("job.yaml:1: text after the end of the YAML document"));
  write_text(file, std::string(2 << 20, '#'));
  EXPECT_THAT(message(), HasSubstr("2097152 bytes, too many for a job file"));
  write_text(file, "a: " + std::string(100000, '['));  // must not overflow the stack
  EXPECT_THAT(message(), HasSubstr("not valid YAML"));
  EXPECT_THAT(error_of([&] { load_job(dir.path()); }), HasSubstr("is a directory"));
  EXPECT_THAT(error_of([&] { load_job("/dev/null"); }), HasSubstr("not a regular file"));
}

TEST(BadJob, OverridesAreCheckedLikeTheFile) {
  const auto message = [](const std::string& text) {
    return error_of([&] {
      load_job_text("model: {path: m}\nprompts: {file: p}\n", "j", "/base", std::vector{text});
    });
  };
  EXPECT_THAT(message("sampling.seed"), HasSubstr("--set sampling.seed: no '='"));
  EXPECT_THAT(message("sampling.sed=1"), HasSubstr("nearest valid key 'sampling.seed'"));
  EXPECT_THAT(message("sampling={seed: 1}"), HasSubstr("a section cannot be set"));
  EXPECT_THAT(message("extends=a.yaml"), HasSubstr("only inside a job file"));
  EXPECT_THAT(message("sampling.top_p=\".9\""),
              HasSubstr("--set sampling.top_p=\".9\": the quoted"));
  EXPECT_THAT(message("sampling.seed="), HasSubstr("null is not an integer"));
  EXPECT_THAT(message("sampling.seed=[1"), HasSubstr("not valid YAML"));
  EXPECT_THAT(message("model.path="), HasSubstr("the path is empty"));
  EXPECT_THAT(message("model.path=null"), HasSubstr("null is not a text"));
  EXPECT_THAT(message("=1"), HasSubstr("unknown key ''"));
}

}  // namespace
}  // namespace tandem
