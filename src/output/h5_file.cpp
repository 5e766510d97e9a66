#include "output/h5_file.h"

#include <hdf5.h>

#include <algorithm>
#include <cstring>

namespace tandem {
namespace {

// Bytes of an uncompressed chunk: large enough that a million rows make few chunks, small enough
// that rewriting the last, partly filled chunk at every flush is cheap.
constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
constexpr std::size_t kSmallestTextWidth = 16;
constexpr unsigned kDeflateLevel = 4;
constexpr hsize_t kMatrixColumns = 4;  // of a chunk: draft depths are small

H5Handle property_list(hid_t kind, const std::string& where) {
  return {TANDEM_CHECK_H5(H5Pcreate(kind), where), H5Pclose};
}

H5Handle space_of(const std::vector<hsize_t>& dims, const std::vector<hsize_t>& max_dims,
                  const std::string& where) {
  return {TANDEM_CHECK_H5(
              H5Screate_simple(static_cast<int>(dims.size()), dims.data(), max_dims.data()), where),
          H5Sclose};
}

H5Handle access_list(const std::string& where) {
  auto list = property_list(H5P_FILE_ACCESS, where);
  // Version 1.10 objects: compact chunk indexes, and free space that survives closing (see create).
  TANDEM_CHECK_H5(H5Pset_libver_bounds(list.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), where);
  // Our own lock guards the target, nobody else opens the temporary, and the visible file never
  // changes: HDF5's flock would only fail on file systems without locks.
  TANDEM_CHECK_H5(H5Pset_file_locking(list.get(), false, true), where);
  return list;
}

H5Handle text_type(std::size_t width, const std::string& where) {
  H5Handle type(TANDEM_CHECK_H5(H5Tcopy(H5T_C_S1), where), H5Tclose);
  TANDEM_CHECK_H5(H5Tset_size(type.get(), width), where);
  TANDEM_CHECK_H5(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), where);
  TANDEM_CHECK_H5(H5Tset_cset(type.get(), H5T_CSET_UTF8), where);
  return type;
}

// The boolean of h5py and PyTables' pandas reader: an int8 enum.
H5Handle bool_type(const std::string& where) {
  H5Handle type(TANDEM_CHECK_H5(H5Tenum_create(H5T_NATIVE_INT8), where), H5Tclose);
  std::int8_t value = 0;
  TANDEM_CHECK_H5(H5Tenum_insert(type.get(), "FALSE", &value), where);
  value = 1;
  TANDEM_CHECK_H5(H5Tenum_insert(type.get(), "TRUE", &value), where);
  return type;
}

// A copy, so that every kind is closed alike. kText is text_type's.
H5Handle element_type(ElementType type, const std::string& where) {
  const auto copy = [&where](hid_t native) {
    return H5Handle(TANDEM_CHECK_H5(H5Tcopy(native), where), H5Tclose);
  };
  switch (type) {
    case ElementType::kI8:
      return copy(H5T_NATIVE_INT8);
    case ElementType::kU8:
      return copy(H5T_NATIVE_UINT8);
    case ElementType::kI32:
      return copy(H5T_NATIVE_INT32);
    case ElementType::kI64:
      return copy(H5T_NATIVE_INT64);
    case ElementType::kU64:
      return copy(H5T_NATIVE_UINT64);
    case ElementType::kF64:
      return copy(H5T_NATIVE_DOUBLE);
    case ElementType::kBool:
      return bool_type(where);
    case ElementType::kText:
      break;
  }
  TANDEM_CHECK(false, "{}: text has no element type of fixed size", where);
}

void compress(hid_t list, const std::string& where) {
  TANDEM_CHECK_H5(H5Pset_shuffle(list), where);
  TANDEM_CHECK_H5(H5Pset_deflate(list, kDeflateLevel), where);
  TANDEM_CHECK_H5(H5Pset_fletcher32(list), where);
}

H5Handle link_list(const std::string& where) {
  auto list = property_list(H5P_LINK_CREATE, where);
  TANDEM_CHECK_H5(H5Pset_create_intermediate_group(list.get(), 1), where);
  TANDEM_CHECK_H5(H5Pset_char_encoding(list.get(), H5T_CSET_UTF8), where);
  return list;
}

std::vector<char> pack_texts(const std::vector<std::string>& texts, std::size_t width) {
  std::vector<char> packed(texts.size() * width, '\0');
  for (std::size_t i = 0; i < texts.size(); ++i) {
    TANDEM_CHECK(texts[i].size() <= width, "text of {} bytes in {}", texts[i].size(), width);
    std::memcpy(packed.data() + i * width, texts[i].data(), texts[i].size());
  }
  return packed;
}

}  // namespace

H5File H5File::create(const std::filesystem::path& path) {
  h5_silence_errors();
  const auto name = path.string();
  const auto access = access_list(name);
  const auto creation = property_list(H5P_FILE_CREATE, name);
  // A growing chunk moves when it is rewritten. Unless the file remembers its holes, each flush
  // would leave the last chunk of every dataset behind.
  TANDEM_CHECK_H5(H5Pset_file_space_strategy(creation.get(), H5F_FSPACE_STRATEGY_FSM_AGGR, true, 1),
                  name);
  return {H5Handle(TANDEM_CHECK_H5(
                       H5Fcreate(name.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), name),
                   H5Fclose),
          name};
}

H5File H5File::open_for_append(const std::filesystem::path& path) {
  h5_silence_errors();
  const auto name = path.string();
  const auto access = access_list(name);
  return {
      H5Handle(TANDEM_CHECK_H5(H5Fopen(name.c_str(), H5F_ACC_RDWR, access.get()), name), H5Fclose),
      name};
}

H5File H5File::open_for_reading(const std::filesystem::path& path) {
  h5_silence_errors();
  const auto name = path.string();
  const auto access = access_list(name);
  return {H5Handle(TANDEM_CHECK_H5(H5Fopen(name.c_str(), H5F_ACC_RDONLY, access.get()), name),
                   H5Fclose),
          name};
}

void H5File::close() { file_.close(name_); }

void H5File::create_group(std::string_view path) {
  const auto at = where(path);
  const auto links = link_list(at);
  const H5Handle group(TANDEM_CHECK_H5(H5Gcreate2(file_.get(), std::string(path).c_str(),
                                                  links.get(), H5P_DEFAULT, H5P_DEFAULT),
                                       at),
                       H5Gclose);
}

void H5File::create_text_dataset(std::string_view path, std::size_t width) {
  const auto at = where(path);
  const auto creation = property_list(H5P_DATASET_CREATE, at);
  const hsize_t chunk = std::max<hsize_t>(16, kChunkBytes / width);
  TANDEM_CHECK_H5(H5Pset_chunk(creation.get(), 1, &chunk), at);
  compress(creation.get(), at);
  const auto space = space_of({0}, {H5S_UNLIMITED}, at);
  const auto type = text_type(width, at);
  const auto links = link_list(at);
  const H5Handle dataset(
      TANDEM_CHECK_H5(H5Dcreate2(file_.get(), std::string(path).c_str(), type.get(), space.get(),
                                 links.get(), creation.get(), H5P_DEFAULT),
                      at),
      H5Dclose);
}

void H5File::create_dataset(const schema::DatasetInfo& info) {
  const auto at = where(info.path);
  if (info.type == ElementType::kText) {
    create_text_dataset(info.path, kSmallestTextWidth);
  } else {
    const auto type = element_type(info.type, at);
    const auto creation = property_list(H5P_DATASET_CREATE, at);
    const hsize_t chunk = kChunkBytes / element_bytes(info.type);
    TANDEM_CHECK_H5(H5Pset_chunk(creation.get(), 1, &chunk), at);
    compress(creation.get(), at);
    if (info.may_miss) {
      const auto set_fill = [&](const auto& value) {
        TANDEM_CHECK_H5(H5Pset_fill_value(creation.get(), type.get(), &value), at);
      };
      if (info.type == ElementType::kF64) set_fill(kMissingF64);
      if (info.type == ElementType::kI64) set_fill(kMissingI64);
      if (info.type == ElementType::kU64) set_fill(kMissingU64);
      if (info.type == ElementType::kI8) set_fill(kMissingI8);
    }
    const auto space = space_of({0}, {H5S_UNLIMITED}, at);
    const auto links = link_list(at);
    const H5Handle dataset(
        TANDEM_CHECK_H5(H5Dcreate2(file_.get(), info.path.c_str(), type.get(), space.get(),
                                   links.get(), creation.get(), H5P_DEFAULT),
                        at),
        H5Dclose);
    if (info.may_miss) {
      // netCDF wants the attribute in the type of the data.
      const auto scalar = H5Handle(TANDEM_CHECK_H5(H5Screate(H5S_SCALAR), at), H5Sclose);
      const H5Handle attribute(
          TANDEM_CHECK_H5(H5Acreate2(dataset.get(), std::string(schema::kFillAttribute).c_str(),
                                     type.get(), scalar.get(), H5P_DEFAULT, H5P_DEFAULT),
                          at),
          H5Aclose);
      std::uint64_t value = 0;
      TANDEM_CHECK_H5(H5Pget_fill_value(creation.get(), type.get(), &value), at);
      TANDEM_CHECK_H5(H5Awrite(attribute.get(), type.get(), &value), at);
    }
  }
  set_attribute(info.path, "units", info.units);
  set_attribute(info.path, "description", info.description);
  set_attribute(info.path, "since", std::int64_t{info.since});
}

void H5File::create_matrix(const schema::DatasetInfo& info) {
  const auto at = where(info.path);
  const auto type = element_type(info.type, at);
  const auto creation = property_list(H5P_DATASET_CREATE, at);
  const hsize_t chunk[2] = {kChunkBytes / element_bytes(info.type) / kMatrixColumns,
                            kMatrixColumns};
  TANDEM_CHECK_H5(H5Pset_chunk(creation.get(), 2, chunk), at);
  compress(creation.get(), at);
  const auto space = space_of({0, 0}, {H5S_UNLIMITED, H5S_UNLIMITED}, at);
  const auto links = link_list(at);
  const H5Handle dataset(
      TANDEM_CHECK_H5(H5Dcreate2(file_.get(), info.path.c_str(), type.get(), space.get(),
                                 links.get(), creation.get(), H5P_DEFAULT),
                      at),
      H5Dclose);
  set_attribute(info.path, "units", info.units);
  set_attribute(info.path, "description", info.description);
  set_attribute(info.path, "since", std::int64_t{info.since});
}

bool H5File::exists(std::string_view path) const {
  // H5Lexists fails, rather than answers no, when a parent is missing.
  std::string prefix;
  std::size_t begin = 1;
  while (begin <= path.size()) {
    const auto end = std::min(path.find('/', begin), path.size());
    prefix = path.substr(0, end);
    if (TANDEM_CHECK_H5(H5Lexists(file_.get(), prefix.c_str(), H5P_DEFAULT), where(path)) == 0) {
      return false;
    }
    begin = end + 1;
  }
  return true;
}

std::vector<std::string> H5File::group_names(std::string_view path) const {
  const auto at = where(path);
  const H5Handle group(
      TANDEM_CHECK_H5(H5Gopen2(file_.get(), std::string(path).c_str(), H5P_DEFAULT), at), H5Gclose);
  H5G_info_t info;
  TANDEM_CHECK_H5(H5Gget_info(group.get(), &info), at);
  std::vector<std::string> names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const auto length = TANDEM_CHECK_H5(H5Lget_name_by_idx(group.get(), ".", H5_INDEX_NAME,
                                                           H5_ITER_INC, i, nullptr, 0, H5P_DEFAULT),
                                        at);
    std::string name(static_cast<std::size_t>(length), '\0');
    TANDEM_CHECK_H5(H5Lget_name_by_idx(group.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(),
                                       name.size() + 1, H5P_DEFAULT),
                    at);
    const H5Handle object(TANDEM_CHECK_H5(H5Oopen(group.get(), name.c_str(), H5P_DEFAULT), at),
                          H5Oclose);
    if (H5Iget_type(object.get()) == H5I_GROUP) names.push_back(name);
  }
  return names;
}

H5Handle H5File::open_dataset(std::string_view path) const {
  return {
      TANDEM_CHECK_H5(H5Dopen2(file_.get(), std::string(path).c_str(), H5P_DEFAULT), where(path)),
      H5Dclose};
}

H5Handle H5File::open_object(std::string_view path) const {
  return {
      TANDEM_CHECK_H5(H5Oopen(file_.get(), std::string(path).c_str(), H5P_DEFAULT), where(path)),
      H5Oclose};
}

std::size_t H5File::rows(std::string_view path) const {
  const auto at = where(path);
  const auto dataset = open_dataset(path);
  const H5Handle space(TANDEM_CHECK_H5(H5Dget_space(dataset.get()), at), H5Sclose);
  const auto num_dims = TANDEM_CHECK_H5(H5Sget_simple_extent_ndims(space.get()), at);
  TANDEM_CHECK(num_dims >= 1, "{}: a scalar where a table column was expected", at);
  std::vector<hsize_t> dims(static_cast<std::size_t>(num_dims));
  TANDEM_CHECK_H5(H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr), at);
  return dims[0];
}

std::size_t H5File::text_width(std::string_view path) const {
  const auto at = where(path);
  const auto dataset = open_dataset(path);
  const H5Handle type(TANDEM_CHECK_H5(H5Dget_type(dataset.get()), at), H5Tclose);
  TANDEM_CHECK(H5Tget_class(type.get()) == H5T_STRING && H5Tis_variable_str(type.get()) == 0,
               "{}: not a dataset of fixed-length text", at);
  return H5Tget_size(type.get());
}

void H5File::widen_text(std::string_view path, std::size_t width) {
  const auto old = read_all(path, ElementType::kText);
  const auto old_attributes = attributes(path);
  TANDEM_CHECK_H5(H5Ldelete(file_.get(), std::string(path).c_str(), H5P_DEFAULT), where(path));
  create_text_dataset(path, width);
  for (const auto& [name, value] : old_attributes) set_attribute(path, name, value);
  append(path, old);
}

void H5File::append(std::string_view path, const ColumnData& data) {
  if (data.rows() == 0) return;
  if (data.type == ElementType::kText) {
    std::size_t longest = 0;
    for (const auto& text : data.texts) longest = std::max(longest, text.size());
    const auto width = text_width(path);
    if (longest > width) widen_text(path, std::max(longest, width + width / 2));
  }
  write_rows(path, data, rows(path));
}

void H5File::replace(std::string_view path, const ColumnData& data) {
  {
    const auto dataset = open_dataset(path);
    const hsize_t none = 0;
    TANDEM_CHECK_H5(H5Dset_extent(dataset.get(), &none), where(path));
  }
  append(path, data);
}

void H5File::write_rows(std::string_view path, const ColumnData& data, std::size_t first) {
  const auto at = where(path);
  const hsize_t count = data.rows();
  const hsize_t start = first;
  const hsize_t total = start + count;
  const auto dataset = open_dataset(path);
  TANDEM_CHECK_H5(H5Dset_extent(dataset.get(), &total), at);
  const H5Handle target(TANDEM_CHECK_H5(H5Dget_space(dataset.get()), at), H5Sclose);
  TANDEM_CHECK_H5(
      H5Sselect_hyperslab(target.get(), H5S_SELECT_SET, &start, nullptr, &count, nullptr), at);
  const auto source = space_of({count}, {count}, at);
  if (data.type == ElementType::kText) {
    const H5Handle type(TANDEM_CHECK_H5(H5Dget_type(dataset.get()), at), H5Tclose);
    const auto packed = pack_texts(data.texts, H5Tget_size(type.get()));
    TANDEM_CHECK_H5(
        H5Dwrite(dataset.get(), type.get(), source.get(), target.get(), H5P_DEFAULT, packed.data()),
        at);
    return;
  }
  const auto type = element_type(data.type, at);
  TANDEM_CHECK_H5(H5Dwrite(dataset.get(), type.get(), source.get(), target.get(), H5P_DEFAULT,
                           data.bytes.data()),
                  at);
}

ColumnData H5File::read_all(std::string_view path, ElementType type) const {
  return read(path, type, 0, rows(path));
}

ColumnData H5File::read(std::string_view path, ElementType type, std::size_t first,
                        std::size_t count) const {
  const auto at = where(path);
  ColumnData data;
  data.type = type;
  if (count == 0) return data;
  const auto dataset = open_dataset(path);
  const H5Handle space(TANDEM_CHECK_H5(H5Dget_space(dataset.get()), at), H5Sclose);
  TANDEM_CHECK(H5Sget_simple_extent_ndims(space.get()) == 1, "{}: not one-dimensional", at);
  const hsize_t start = first;
  const hsize_t length = count;
  TANDEM_CHECK_H5(
      H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &length, nullptr), at);
  const auto memory = space_of({length}, {length}, at);
  if (type == ElementType::kText) {
    const auto width = text_width(path);
    const H5Handle stored(TANDEM_CHECK_H5(H5Dget_type(dataset.get()), at), H5Tclose);
    std::vector<char> packed(count * width);
    TANDEM_CHECK_H5(
        H5Dread(dataset.get(), stored.get(), memory.get(), space.get(), H5P_DEFAULT, packed.data()),
        at);
    data.texts.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::string_view cell(packed.data() + i * width, width);
      const auto last = cell.find_last_not_of('\0');
      data.texts.emplace_back(cell.substr(0, last == std::string_view::npos ? 0 : last + 1));
    }
    return data;
  }
  data.bytes.resize(count * element_bytes(type));
  const auto memory_type = element_type(type, at);
  TANDEM_CHECK_H5(H5Dread(dataset.get(), memory_type.get(), memory.get(), space.get(), H5P_DEFAULT,
                          data.bytes.data()),
                  at);
  return data;
}

void H5File::append_matrix(std::string_view path,
                           const std::vector<std::vector<std::int64_t>>& new_rows) {
  if (new_rows.empty()) return;
  const auto at = where(path);
  const auto dataset = open_dataset(path);
  hsize_t dims[2] = {0, 0};
  {
    const H5Handle space(TANDEM_CHECK_H5(H5Dget_space(dataset.get()), at), H5Sclose);
    TANDEM_CHECK_H5(H5Sget_simple_extent_dims(space.get(), dims, nullptr), at);
  }
  hsize_t width = dims[1];
  for (const auto& row : new_rows) width = std::max<hsize_t>(width, row.size());
  const hsize_t start[2] = {dims[0], 0};
  const hsize_t count[2] = {new_rows.size(), width};
  const hsize_t total[2] = {dims[0] + count[0], width};
  TANDEM_CHECK_H5(H5Dset_extent(dataset.get(), total), at);
  if (width == 0) return;
  std::vector<std::int64_t> packed(count[0] * width, 0);
  for (std::size_t i = 0; i < new_rows.size(); ++i) {
    std::copy(new_rows[i].begin(), new_rows[i].end(),
              packed.begin() + static_cast<std::ptrdiff_t>(i * width));
  }
  const H5Handle target(TANDEM_CHECK_H5(H5Dget_space(dataset.get()), at), H5Sclose);
  TANDEM_CHECK_H5(H5Sselect_hyperslab(target.get(), H5S_SELECT_SET, start, nullptr, count, nullptr),
                  at);
  const auto source = space_of({count[0], count[1]}, {count[0], count[1]}, at);
  TANDEM_CHECK_H5(H5Dwrite(dataset.get(), H5T_NATIVE_INT64, source.get(), target.get(), H5P_DEFAULT,
                           packed.data()),
                  at);
}

std::vector<std::vector<std::int64_t>> H5File::read_matrix(std::string_view path) const {
  const auto at = where(path);
  const auto dataset = open_dataset(path);
  const H5Handle space(TANDEM_CHECK_H5(H5Dget_space(dataset.get()), at), H5Sclose);
  TANDEM_CHECK(H5Sget_simple_extent_ndims(space.get()) == 2, "{}: not two-dimensional", at);
  hsize_t dims[2] = {0, 0};
  TANDEM_CHECK_H5(H5Sget_simple_extent_dims(space.get(), dims, nullptr), at);
  std::vector<std::vector<std::int64_t>> result(dims[0], std::vector<std::int64_t>(dims[1]));
  if (dims[0] * dims[1] == 0) return result;
  std::vector<std::int64_t> packed(dims[0] * dims[1]);
  TANDEM_CHECK_H5(
      H5Dread(dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, packed.data()), at);
  for (std::size_t i = 0; i < dims[0]; ++i) {
    std::copy_n(packed.begin() + static_cast<std::ptrdiff_t>(i * dims[1]), dims[1],
                result[i].begin());
  }
  return result;
}

}  // namespace tandem
