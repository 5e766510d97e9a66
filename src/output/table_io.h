// Tables and ragged data between row structs and an H5File: the one place that knows how /requests,
// /tokens, /text and /acceptance hang together.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "output/h5_file.h"
#include "output/records.h"
#include "output/result_schema.h"
#include "output/resume.h"

namespace tandem {

template <class Row>
std::string column_path(const Table<Row>& table, const Column<Row>& column) {
  return fmt::format("{}/{}", table.group, column.name);
}

// Throws Error{kConfiguration} if the file is of a later schema version than this program knows.
void check_version(const H5File& file, const std::filesystem::path& path);

// The datasets of a table, empty, with their attributes.
template <class Row>
void create_table(H5File& file, const Table<Row>& table) {
  for (const auto& info : schema::table_datasets(table)) file.create_dataset(info);
  file.set_attribute(table.group, "description", std::string(table.description));
}

// Every dataset of a run's file, empty, with its attributes; offsets start with their 0.
void create_layout(H5File& file);

template <class Row, class Derived>
void append_rows(H5File& file, const Table<Row>& table, std::span<const Derived> rows) {
  if (rows.empty()) return;
  for (const auto& column : table.columns) {
    file.append(column_path(table, column), encode_column(column, rows));
  }
}

template <class Row>
void replace_rows(H5File& file, const Table<Row>& table, std::span<const Row> rows) {
  for (const auto& column : table.columns) {
    file.replace(column_path(table, column), encode_column(column, rows));
  }
}

template <class Row, class Derived = Row>
std::vector<Derived> read_rows(const H5File& file, const Table<Row>& table) {
  const auto num_rows = file.rows(column_path(table, table.columns.front()));
  std::vector<Derived> rows(num_rows);
  for (const auto& column : table.columns) {
    const auto path = column_path(table, column);
    TANDEM_CHECK(file.rows(path) == num_rows, "{} has {} rows, its table {}", path, file.rows(path),
                 num_rows);
    decode_column(column, file.read_all(path, column_type(column)), std::span<Derived>(rows));
  }
  return rows;
}

// The rows of /requests with everything ragged that belongs to them.
void append_requests(H5File& file, std::span<const RequestRecord> records);

// Offsets [requests + 1], checked: from 0, never falling, ending at the length of `flat`.
std::vector<std::int64_t> read_offsets(const H5File& file, const schema::Dataset& offsets,
                                       const schema::Dataset& flat);

template <typename T>
std::vector<T> read_flat(const H5File& file, const schema::Dataset& flat) {
  const auto data = file.read_all(flat.path, flat.type);
  std::vector<T> values(data.rows());
  TANDEM_CHECK(data.bytes.size() == values.size() * sizeof(T), "{}", flat.path);
  if (!values.empty()) std::memcpy(values.data(), data.bytes.data(), data.bytes.size());
  return values;
}

// Passport and run facts as attributes (the prompts of the facts are the table /prompts).
void write_passport(H5File& file, std::string_view group, const Passport& passport);
Passport read_passport(const H5File& file, std::string_view group);
void write_facts(H5File& file, const RunFacts& facts);
RunFacts read_facts(const H5File& file);

}  // namespace tandem
