// Tables as lists of columns: a column ties a name, a unit and a description to a member of a row
// struct, which gives its type and carries values both ways. No HDF5 here; h5_table stores the
// columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/error.h"
#include "output/records.h"

namespace tandem {

// Types on disk. kBool is h5py's boolean (an HDF5 enum of FALSE and TRUE); kText is fixed-length
// UTF-8, null padded, as wide as the longest value so far.
enum class ElementType { kI8, kU8, kI32, kI64, kU64, kF64, kBool, kText };

constexpr std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kI32:
      return 4;
    case ElementType::kI64:
    case ElementType::kU64:
    case ElementType::kF64:
      return 8;
    default:
      return 1;
  }
}

std::string_view element_type_name(ElementType type);  // "float64", "text", ...

// What a missing value looks like: netCDF's default fill values, far outside the range of any real
// value, so that an unmasked sum or mean is absurd instead of slightly wrong. Stored as the
// dataset's
// `_FillValue` attribute (which netCDF tools honour) and as its HDF5 fill value.
inline constexpr double kMissingF64 = 9.969209968386869e+36;
inline constexpr std::int64_t kMissingI64 = -9223372036854775806;
inline constexpr std::uint64_t kMissingU64 = 18446744073709551614u;
inline constexpr std::int8_t kMissingI8 = -127;

template <class Row>
using Member = std::variant<double Row::*, std::optional<double> Row::*, std::int64_t Row::*,
                            std::optional<std::int64_t> Row::*, std::uint64_t Row::*, bool Row::*,
                            std::optional<bool> Row::*, std::string Row::*, FinishReason Row::*,
                            StepKind Row::*, LogLevel Row::*>;

inline constexpr std::size_t kNoLimit = static_cast<std::size_t>(-1);

template <class Row>
struct Column {
  std::string_view name;
  std::string_view units;
  std::string_view description;
  Member<Row> member;
  std::size_t max_text_bytes = kNoLimit;  // longer texts are cut, at a character, with "..."
  int since = 1;                          // schema version that introduced it
};

template <class Row>
struct Table {
  std::string_view group;
  std::string_view description;
  std::span<const Column<Row>> columns;
};

// Values of one column (or of one flat ragged dataset) in memory.
struct ColumnData {
  ElementType type = ElementType::kF64;
  std::vector<std::byte> bytes;    // fixed-size types: [rows * element_bytes(type)]
  std::vector<std::string> texts;  // kText: [rows]

  std::size_t rows() const {
    return type == ElementType::kText ? texts.size() : bytes.size() / element_bytes(type);
  }
  template <typename T>
  void add(T value) {
    const auto old = bytes.size();
    bytes.resize(old + sizeof(T));
    std::memcpy(bytes.data() + old, &value, sizeof(T));
  }
  template <typename T>
  T at(std::size_t row) const {
    T value;
    TANDEM_CHECK((row + 1) * sizeof(T) <= bytes.size(), "row {} of {}", row, rows());
    std::memcpy(&value, bytes.data() + row * sizeof(T), sizeof(T));
    return value;
  }
};

std::string_view to_text(FinishReason reason);
std::string_view to_text(StepKind kind);
std::string_view to_text(LogLevel level);
// Throw Error{kConfiguration} for a word that is none of the type's.
void from_text(std::string_view text, FinishReason& out);
void from_text(std::string_view text, StepKind& out);
void from_text(std::string_view text, LogLevel& out);

// The first `max_bytes` of a UTF-8 text, cut at a character and marked with "..." when cut.
std::string clip_text(std::string_view text, std::size_t max_bytes);

namespace columns_detail {

template <typename T>
struct Stored {  // enums and text
  static constexpr ElementType kType = ElementType::kText;
  static constexpr bool kOptional = false;
};
template <>
struct Stored<double> {
  static constexpr ElementType kType = ElementType::kF64;
  static constexpr bool kOptional = false;
};
template <>
struct Stored<std::int64_t> {
  static constexpr ElementType kType = ElementType::kI64;
  static constexpr bool kOptional = false;
};
template <>
struct Stored<std::uint64_t> {
  static constexpr ElementType kType = ElementType::kU64;
  static constexpr bool kOptional = false;
};
template <>
struct Stored<bool> {
  static constexpr ElementType kType = ElementType::kBool;
  static constexpr bool kOptional = false;
};
template <>
struct Stored<std::optional<double>> {
  static constexpr ElementType kType = ElementType::kF64;
  static constexpr bool kOptional = true;
};
template <>
struct Stored<std::optional<std::int64_t>> {
  static constexpr ElementType kType = ElementType::kI64;
  static constexpr bool kOptional = true;
};
template <>
struct Stored<std::optional<bool>> {
  static constexpr ElementType kType = ElementType::kI8;
  static constexpr bool kOptional = true;
};

template <class Row, typename Field>
Field field_type(Field Row::*);

}  // namespace columns_detail

template <class Row>
constexpr ElementType column_type(const Column<Row>& column) {
  return std::visit(
      [](auto member) {
        using Field = decltype(columns_detail::field_type(member));
        return columns_detail::Stored<Field>::kType;
      },
      column.member);
}

template <class Row>
constexpr bool column_may_miss(const Column<Row>& column) {
  return std::visit(
      [](auto member) {
        using Field = decltype(columns_detail::field_type(member));
        return columns_detail::Stored<Field>::kOptional;
      },
      column.member);
}

// The column's values of all rows; Derived is Row or a struct derived from it.
template <class Row, class Derived>
ColumnData encode_column(const Column<Row>& column, std::span<const Derived> rows) {
  ColumnData data;
  data.type = column_type(column);
  std::visit(
      [&](auto member) {
        using Field = decltype(columns_detail::field_type(member));
        for (const Row& row : rows) {
          const Field& value = row.*member;
          if constexpr (std::is_same_v<Field, std::string>) {
            data.texts.push_back(clip_text(value, column.max_text_bytes));
          } else if constexpr (std::is_enum_v<Field>) {
            data.texts.emplace_back(to_text(value));
          } else if constexpr (std::is_same_v<Field, bool>) {
            data.add(static_cast<std::int8_t>(value));
          } else if constexpr (std::is_same_v<Field, std::optional<bool>>) {
            data.add(value ? static_cast<std::int8_t>(*value) : kMissingI8);
          } else if constexpr (std::is_same_v<Field, std::optional<double>>) {
            data.add(value.value_or(kMissingF64));
          } else if constexpr (std::is_same_v<Field, std::optional<std::int64_t>>) {
            data.add(value.value_or(kMissingI64));
          } else {
            data.add(value);
          }
        }
      },
      column.member);
  return data;
}

// The reverse; rows.size() == data.rows().
template <class Row, class Derived>
void decode_column(const Column<Row>& column, const ColumnData& data, std::span<Derived> rows) {
  std::visit(
      [&](auto member) {
        using Field = decltype(columns_detail::field_type(member));
        for (std::size_t i = 0; i < rows.size(); ++i) {
          Field& value = static_cast<Row&>(rows[i]).*member;
          if constexpr (std::is_same_v<Field, std::string>) {
            value = data.texts.at(i);
          } else if constexpr (std::is_enum_v<Field>) {
            from_text(data.texts.at(i), value);
          } else if constexpr (std::is_same_v<Field, bool>) {
            value = data.at<std::int8_t>(i) != 0;
          } else if constexpr (std::is_same_v<Field, std::optional<bool>>) {
            const auto stored = data.at<std::int8_t>(i);
            value = stored == kMissingI8 ? Field{} : Field{stored != 0};
          } else if constexpr (std::is_same_v<Field, std::optional<double>>) {
            const auto stored = data.at<double>(i);
            value = stored == kMissingF64 ? Field{} : Field{stored};
          } else if constexpr (std::is_same_v<Field, std::optional<std::int64_t>>) {
            const auto stored = data.at<std::int64_t>(i);
            value = stored == kMissingI64 ? Field{} : Field{stored};
          } else {
            value = data.at<Field>(i);
          }
        }
      },
      column.member);
}

}  // namespace tandem
