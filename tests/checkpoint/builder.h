// Small checkpoints made in tests: raw safetensors files with any header, and tensors with known
// contents.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/fault_list.h"
#include "checkpoint/safetensors.h"
#include "tests/support/test_data.h"

namespace tandem::testing {

// A tensor that owns its bytes.
struct OwnedTensor {
  std::string name;
  DType dtype = DType::kF32;
  TensorShape shape;
  std::vector<std::byte> data;

  TensorToWrite view() const { return {name, dtype, shape, data.data()}; }
};

template <typename T>
OwnedTensor make_tensor(std::string name, DType dtype, TensorShape shape,
                        const std::vector<T>& values) {
  OwnedTensor t{std::move(name), dtype, std::move(shape), {}};
  t.data.resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(t.data.data(), values.data(), t.data.size());
  TANDEM_CHECK(t.data.size() ==
               static_cast<std::size_t>(shape_numel(t.shape)) * dtype_bytes(dtype));
  return t;
}

// BF16 values 0, 1, 2, ... + first: small integers are exact, and tell where each element came
// from.
inline OwnedTensor counting_bf16(std::string name, TensorShape shape, int first = 0) {
  std::vector<bf16> values(static_cast<std::size_t>(shape_numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = to_bf16(static_cast<float>((static_cast<int>(i) + first) % 256));
  }
  return make_tensor(std::move(name), DType::kBF16, std::move(shape), values);
}

inline void write_tensors(const std::filesystem::path& path,
                          const std::vector<OwnedTensor>& tensors) {
  std::vector<TensorToWrite> views;
  for (const auto& t : tensors) views.push_back(t.view());
  write_safetensors(path, views);
}

// Length prefix, header text and `data_bytes` zeros; `length` replaces the true header length.
inline void write_raw(const std::filesystem::path& path, const std::string& header,
                      std::size_t data_bytes, std::uint64_t length) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << header << std::string(data_bytes, '\0');
}
inline void write_raw(const std::filesystem::path& path, const std::string& header,
                      std::size_t data_bytes) {
  write_raw(path, header, data_bytes, header.size());
}

// The smallest config.json and tokenizer.json that Checkpoint::open accepts.
inline void write_side_files(const std::filesystem::path& directory,
                             const std::string& config = "{}") {
  write_text(directory / "config.json", config);
  write_text(directory / "tokenizer.json", "{}");
}

inline void write_index(const std::filesystem::path& directory,
                        const std::vector<std::pair<std::string, std::string>>& map) {
  std::string text = R"({"metadata": {"total_size": 1}, "weight_map": {)";
  for (std::size_t i = 0; i < map.size(); ++i) {
    text += (i == 0 ? "\"" : ", \"") + map[i].first + "\": \"" + map[i].second + "\"";
  }
  write_text(directory / "model.safetensors.index.json", text + "}}");
}

inline std::string all_faults(const FaultList& faults) {
  std::string text;
  for (const auto& item : faults.items()) text += item + "\n";
  return text;
}

// The message of the Error that `action` throws; empty if it throws none.
template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace tandem::testing
