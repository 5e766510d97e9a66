// One open HDF5 file seen as datasets that grow by rows and attributes: the storage layer under the
// writer, the reader and the redaction. Knows nothing of requests or steps. Every failure throws
// Error{kInternal} with HDF5's own words; the reader turns that into a fault of the user's file.
// Not thread-safe: HDF5's serial library is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "output/columns.h"
#include "output/h5_handle.h"
#include "output/passport.h"
#include "output/result_schema.h"

namespace tandem {

class H5File {
 public:
  static H5File create(const std::filesystem::path& path);  // replaces an existing file
  static H5File open_for_append(const std::filesystem::path& path);
  static H5File open_for_reading(const std::filesystem::path& path);
  H5File(H5File&&) = default;

  // Parents of datasets and of attributed groups are made on the way.
  void create_group(std::string_view path);
  void create_dataset(const schema::DatasetInfo& info);
  // A dataset [rows, columns], both growing: see append_matrix.
  void create_matrix(const schema::DatasetInfo& info);

  bool exists(std::string_view path) const;
  std::vector<std::string> group_names(std::string_view path) const;  // groups directly below
  std::size_t rows(std::string_view path) const;

  // Adds rows at the end. Text wider than the dataset widens it (the dataset is written anew).
  void append(std::string_view path, const ColumnData& data);
  // Makes the dataset hold exactly these rows.
  void replace(std::string_view path, const ColumnData& data);
  // Rows [first, first + count) as the given type.
  ColumnData read(std::string_view path, ElementType type, std::size_t first,
                  std::size_t count) const;
  ColumnData read_all(std::string_view path, ElementType type) const;

  // Integer rows of unequal length, padded with 0 to the widest row of the file.
  void append_matrix(std::string_view path, const std::vector<std::vector<std::int64_t>>& rows);
  std::vector<std::vector<std::int64_t>> read_matrix(std::string_view path) const;

  // Attributes of a group or dataset; setting replaces.
  void set_attribute(std::string_view path, std::string_view name, const Passport::Value& value);
  std::map<std::string, Passport::Value> attributes(std::string_view path) const;

  // Writes everything out; throws if that fails. The destructor only closes.
  void close();

 private:
  H5File(H5Handle file, std::string name) : file_(std::move(file)), name_(std::move(name)) {}
  std::string where(std::string_view path) const { return name_ + ":" + std::string(path); }
  H5Handle open_dataset(std::string_view path) const;
  H5Handle open_object(std::string_view path) const;
  std::size_t text_width(std::string_view path) const;
  void widen_text(std::string_view path, std::size_t width);
  void create_text_dataset(std::string_view path, std::size_t width);
  void write_rows(std::string_view path, const ColumnData& data, std::size_t first);

  H5Handle file_;
  std::string name_;
};

}  // namespace tandem
