#include "engine/record_exchange.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "output/result_schema.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr int kTag = 1;
enum class Kind : std::uint8_t { kRequest, kStep, kCanary, kEndOfGroup };

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

json to_json(const std::string& text) {
  return json::binary_t(std::vector<std::uint8_t>(text.begin(), text.end()));  // any bytes
}
template <typename T>
json to_json(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<int>(value);
  } else {
    return value;
  }
}

void from_json(const json& j, std::string& text) {
  const auto& bytes = j.get_binary();
  text.assign(bytes.begin(), bytes.end());
}
template <typename T>
void from_json(const json& j, T& value) {
  if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(j.get<int>());
  } else {
    value = j.get<T>();
  }
}

// A missing value is a missing key.
template <class Row>
json pack(const Row& row, std::span<const Column<Row>> columns) {
  json j = json::object();
  for (const auto& column : columns) {
    std::visit(
        [&](auto member) {
          const auto& value = row.*member;
          if constexpr (IsOptional<std::remove_cvref_t<decltype(value)>>::value) {
            if (value) j[std::string(column.name)] = to_json(*value);
          } else {
            j[std::string(column.name)] = to_json(value);
          }
        },
        column.member);
  }
  return j;
}

template <class Row>
void unpack(const json& j, std::span<const Column<Row>> columns, Row& row) {
  for (const auto& column : columns) {
    const auto it = j.find(std::string(column.name));
    if (it == j.end()) continue;
    std::visit(
        [&](auto member) {
          auto& value = row.*member;
          if constexpr (IsOptional<std::remove_cvref_t<decltype(value)>>::value) {
            value.emplace();
            from_json(*it, *value);
          } else {
            from_json(*it, value);
          }
        },
        column.member);
  }
}

std::string message(Kind kind, const json& body) {
  std::string out(1, static_cast<char>(kind));
  json::to_cbor(body, out);
  return out;
}

json pack_request(const RequestRecord& r) {
  json j = pack<RequestRow>(r, schema::kRequestColumns);
  j["prompt_ids"] = r.prompt_ids;
  j["completion_ids"] = r.completion_ids;
  j["token_times"] = r.token_times_s;
  j["token_steps"] = r.token_steps;
  j["logprobs"] = r.logprobs;
  j["logit_hashes"] = r.logit_hashes;
  j["draft_proposed"] = r.draft_proposed;
  j["draft_accepted"] = r.draft_accepted;
  j["prompt_text"] = to_json(r.prompt_text);
  j["completion_text"] = to_json(r.completion_text);
  return j;
}

RequestRecord unpack_request(const json& j) {
  RequestRecord r;
  unpack<RequestRow>(j, schema::kRequestColumns, r);
  j.at("prompt_ids").get_to(r.prompt_ids);
  j.at("completion_ids").get_to(r.completion_ids);
  j.at("token_times").get_to(r.token_times_s);
  j.at("token_steps").get_to(r.token_steps);
  j.at("logprobs").get_to(r.logprobs);
  j.at("logit_hashes").get_to(r.logit_hashes);
  j.at("draft_proposed").get_to(r.draft_proposed);
  j.at("draft_accepted").get_to(r.draft_accepted);
  from_json(j.at("prompt_text"), r.prompt_text);
  from_json(j.at("completion_text"), r.completion_text);
  return r;
}

}  // namespace

std::string serialize(const MemoryRow& row) {
  std::string out;
  json::to_cbor(pack<MemoryRow>(row, schema::kMemoryColumns), out);
  return out;
}

MemoryRow deserialize_memory_row(const std::string& bytes) {
  MemoryRow row;
  unpack<MemoryRow>(json::from_cbor(bytes), schema::kMemoryColumns, row);
  return row;
}

std::string serialize(const PowerSample& row) {
  std::string out;
  json::to_cbor(pack<PowerSample>(row, schema::kPowerColumns), out);
  return out;
}

PowerSample deserialize_power_sample(const std::string& bytes) {
  PowerSample row;
  unpack<PowerSample>(json::from_cbor(bytes), schema::kPowerColumns, row);
  return row;
}

void ForwardingSink::request_finished(RequestRecord&& record) {
  comm_.post(message(Kind::kRequest, pack_request(record)), 0, kTag);
}

void ForwardingSink::step_finished(const StepRecord& record) {
  comm_.post(message(Kind::kStep, pack<StepRecord>(record, schema::kStepColumns)), 0, kTag);
}

void ForwardingSink::canary_measured(const CanaryRecord& record) {
  comm_.post(message(Kind::kCanary, pack<CanaryRecord>(record, schema::kCanaryColumns)), 0, kTag);
}

void ForwardingSink::end_group() {
  comm_.post(message(Kind::kEndOfGroup, json()), 0, kTag);
  comm_.flush_posts();
}

void RecordReceiver::poll() {
  while (const auto received = comm_.try_receive(kTag)) deliver(received->bytes);
}

void RecordReceiver::deliver(const std::string& bytes) {
  TANDEM_CHECK(!bytes.empty());
  const json body = json::from_cbor(bytes.begin() + 1, bytes.end());
  switch (static_cast<Kind>(bytes.front())) {
    case Kind::kRequest:
      sink_.request_finished(unpack_request(body));
      return;
    case Kind::kStep: {
      StepRecord record;
      unpack<StepRecord>(body, schema::kStepColumns, record);
      sink_.step_finished(record);
      return;
    }
    case Kind::kCanary: {
      CanaryRecord record;
      unpack<CanaryRecord>(body, schema::kCanaryColumns, record);
      sink_.canary_measured(record);
      return;
    }
    case Kind::kEndOfGroup:
      ++groups_ended_;
      return;
  }
  TANDEM_CHECK(false, "record message of unknown kind {}", int{bytes.front()});
}

}  // namespace tandem
