#include "tests/models/reference_data.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/support/test_data.h"

namespace tandem::testing {

ReferenceTensors::ReferenceTensors(const std::string& model)
    : header_(read_safetensors_header(test_data("reference/" + model + ".safetensors"))) {}

bool ReferenceTensors::has(const std::string& name) const {
  return std::any_of(header_.tensors.begin(), header_.tensors.end(),
                     [&](const TensorInfo& t) { return t.name == name; });
}

const TensorInfo& ReferenceTensors::info(const std::string& name) const {
  const auto it = std::find_if(header_.tensors.begin(), header_.tensors.end(),
                               [&](const TensorInfo& t) { return t.name == name; });
  TANDEM_CHECK(it != header_.tensors.end(), "no reference tensor {}", name);
  return *it;
}

std::vector<char> ReferenceTensors::bytes(const TensorInfo& t) const {
  std::ifstream in(header_.path, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(t.begin));
  std::vector<char> out(t.bytes);
  in.read(out.data(), static_cast<std::streamsize>(out.size()));
  TANDEM_CHECK(in.good());
  return out;
}

std::vector<float> ReferenceTensors::floats(const std::string& name) const {
  const auto& t = info(name);
  const auto raw = bytes(t);
  std::vector<float> out(static_cast<std::size_t>(shape_numel(t.shape)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (t.dtype == DType::kF32) {
      std::memcpy(&out[i], raw.data() + 4 * i, 4);
      continue;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, raw.data() + 2 * i, 2);
    out[i] = t.dtype == DType::kBF16 ? to_float(bf16{bits}) : f16_to_float(bits);
  }
  return out;
}

std::vector<std::int32_t> ReferenceTensors::ints(const std::string& name) const {
  const auto& t = info(name);
  const auto raw = bytes(t);
  std::vector<std::int32_t> out(static_cast<std::size_t>(shape_numel(t.shape)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (t.dtype == DType::kI32) {
      std::memcpy(&out[i], raw.data() + 4 * i, 4);
    } else {
      std::int16_t value = 0;
      std::memcpy(&value, raw.data() + 2 * i, 2);
      out[i] = value;
    }
  }
  return out;
}

TensorShape ReferenceTensors::shape(const std::string& name) const { return info(name).shape; }

ReferenceRounds reference_rounds(const std::string& model, const std::string& task) {
  const auto json = nlohmann::json::parse(read_text(test_data("reference/acceptance.json")));
  const auto& entry = json.at("models").at(model).at(task);
  return {.drafts = entry.at("drafts"),
          .accepted = entry.at("accepted_per_round"),
          .acceptance_by_position = entry.at("acceptance_by_position")};
}

double reference_bf16_error(const std::string& model, const std::string& prompt) {
  const auto json = nlohmann::json::parse(read_text(test_data("reference/reference.json")));
  return json.at(model).at("prompts").at(prompt).at("bf16_last8");
}

}  // namespace tandem::testing
