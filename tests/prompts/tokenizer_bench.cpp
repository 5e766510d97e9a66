// Encoding and decoding speed on one core. Without arguments: the tiny checkpoint and synthetic
// prompts; TANDEM_BENCH_CHECKPOINT names another checkpoint folder.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "prompts/tokenizer.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer instance = [] {
    const char* dir = std::getenv("TANDEM_BENCH_CHECKPOINT");
    return Tokenizer::load(dir != nullptr ? std::filesystem::path(dir)
                                          : testing::test_data("tiny-qwen3.8"));
  }();
  return instance;
}

// Prompts of about 2 KB: 20,000 made-up words drawn by Zipf's law, which is what makes a word cache
// behave as on text, with digits, punctuation and line breaks between.
std::vector<std::string> english_prompts(int count) {
  std::mt19937 random(11);
  std::vector<std::string> words(20000);
  for (std::string& word : words)
    for (int n = 2 + static_cast<int>(random() % 9); n > 0; --n)
      word += static_cast<char>('a' + random() % 26);
  std::vector<double> weights(words.size());
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 1.0 / static_cast<double>(i + 1);
  std::discrete_distribution<std::size_t> zipf(weights.begin(), weights.end());
  std::vector<std::string> prompts(static_cast<std::size_t>(count));
  for (std::string& prompt : prompts)
    while (prompt.size() < 2000) {
      prompt += words[zipf(random)];
      const auto dice = random() % 20;
      prompt += dice == 0 ? ".\n" : dice == 1 ? ", " : dice == 2 ? " 1984 " : " ";
    }
  return prompts;
}

std::vector<std::string> chinese_prompts(int count) {
  std::mt19937 random(12);
  std::vector<std::string> prompts(static_cast<std::size_t>(count));
  for (std::string& prompt : prompts)
    while (prompt.size() < 2000) {
      const std::uint32_t c = 0x4E00 + static_cast<std::uint32_t>(random() % 3000);
      prompt += static_cast<char>(0xE0 | c >> 12);
      prompt += static_cast<char>(0x80 | (c >> 6 & 0x3F));
      prompt += static_cast<char>(0x80 | (c & 0x3F));
      if (random() % 12 == 0) prompt += "\uff0c";
    }
  return prompts;
}

void encode_all(benchmark::State& state, const std::vector<std::string>& prompts) {
  std::size_t bytes = 0;
  for (auto _ : state)
    for (const std::string& prompt : prompts) {
      benchmark::DoNotOptimize(tokenizer().encode(prompt));
      bytes += prompt.size();
    }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes));
}

void BM_EncodeEnglish10kPrompts(benchmark::State& state) {
  static const auto prompts = english_prompts(10000);
  encode_all(state, prompts);
}
BENCHMARK(BM_EncodeEnglish10kPrompts)->Unit(benchmark::kMillisecond);

void BM_EncodeChinese10kPrompts(benchmark::State& state) {
  static const auto prompts = chinese_prompts(10000);
  encode_all(state, prompts);
}
BENCHMARK(BM_EncodeChinese10kPrompts)->Unit(benchmark::kMillisecond);

void BM_EncodeOneWord(benchmark::State& state) {
  const std::string word(static_cast<std::size_t>(state.range(0)), 'a');
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer().encode(word));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_EncodeOneWord)->Arg(1 << 10)->Arg(1 << 20)->Unit(benchmark::kMillisecond);

void BM_Decode(benchmark::State& state) {
  const auto ids = tokenizer().encode(english_prompts(1).front());
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer().decode(ids, SpecialTokens::kSkip));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(ids.size()));
}
BENCHMARK(BM_Decode);

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
