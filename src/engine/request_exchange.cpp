#include "engine/request_exchange.h"

#include <nlohmann/json.hpp>

namespace tandem {
namespace {

using nlohmann::json;

json to_json(const SamplingParams& p) {
  return {{"temperature", p.temperature},
          {"top_p", p.top_p},
          {"top_k", p.top_k},
          {"min_p", p.min_p},
          {"seed", p.seed},
          {"max_tokens", p.max_tokens},
          {"stop", p.stop},
          {"stop_scope", static_cast<int>(p.stop_scope)},
          {"ignore_eos", p.ignore_eos}};
}

SamplingParams params_from_json(const json& j) {
  return {.temperature = j.at("temperature"),
          .top_p = j.at("top_p"),
          .top_k = j.at("top_k"),
          .min_p = j.at("min_p"),
          .seed = j.at("seed"),
          .max_tokens = j.at("max_tokens"),
          .stop = j.at("stop"),
          .stop_scope = static_cast<StopScope>(j.at("stop_scope").get<int>()),
          .ignore_eos = j.at("ignore_eos")};
}

// Texts may hold any bytes that the prompt file's JSON could spell; CBOR strings would be checked
// for UTF-8, binary values are not.
json::binary_t to_binary(const std::string& text) {
  return json::binary_t(std::vector<std::uint8_t>(text.begin(), text.end()));
}

std::string to_text(const json& j) {
  const auto& bytes = j.get_binary();
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::string serialize_requests(const std::vector<Request>& requests) {
  json all = json::array();
  for (const auto& r : requests) {
    json j = {{"id", to_binary(r.id)},
              {"prompt_ids", r.prompt_ids},
              {"prompt_text", to_binary(r.prompt_text)},
              {"sampling", to_json(r.sampling)},
              {"tags", to_binary(r.tags)},
              {"line", r.line},
              {"thinking", r.thinking},
              {"invalid_reason", to_binary(r.invalid_reason)}};
    if (r.reference) j["reference"] = to_binary(*r.reference);
    all.push_back(std::move(j));
  }
  std::string out;
  json::to_cbor(all, out);
  return out;
}

std::vector<Request> deserialize_requests(const std::string& bytes) {
  const json all = json::from_cbor(bytes, true, true, json::cbor_tag_handler_t::ignore);
  std::vector<Request> requests;
  requests.reserve(all.size());
  for (const auto& j : all) {
    Request r;
    r.id = to_text(j.at("id"));
    r.prompt_ids = j.at("prompt_ids").get<std::vector<std::int32_t>>();
    r.prompt_text = to_text(j.at("prompt_text"));
    r.sampling = params_from_json(j.at("sampling"));
    r.tags = to_text(j.at("tags"));
    if (j.contains("reference")) r.reference = to_text(j.at("reference"));
    r.line = j.at("line");
    r.thinking = j.at("thinking");
    r.invalid_reason = to_text(j.at("invalid_reason"));
    requests.push_back(std::move(r));
  }
  return requests;
}

std::string sampling_text(const SamplingParams& params) {
  return to_json(params).dump(-1, ' ', true, json::error_handler_t::replace);
}

}  // namespace tandem
