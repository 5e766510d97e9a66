// Attributes of H5File: text as variable-length UTF-8 (a str in h5py), numbers as 64 bit, lists of
// text as one-dimensional arrays.
#include <hdf5.h>

#include <memory>

#include "output/h5_file.h"

namespace tandem {
namespace {

H5Handle attribute_text_type(const std::string& where) {
  H5Handle type(TANDEM_CHECK_H5(H5Tcopy(H5T_C_S1), where), H5Tclose);
  TANDEM_CHECK_H5(H5Tset_size(type.get(), H5T_VARIABLE), where);
  TANDEM_CHECK_H5(H5Tset_cset(type.get(), H5T_CSET_UTF8), where);
  return type;
}

H5Handle scalar_space(const std::string& where) {
  return {TANDEM_CHECK_H5(H5Screate(H5S_SCALAR), where), H5Sclose};
}

// One attribute, its value at `data` in the memory layout of `type`.
void write_attribute(hid_t object, const std::string& name, hid_t type, hid_t space,
                     const void* data, const std::string& where) {
  if (TANDEM_CHECK_H5(H5Aexists(object, name.c_str()), where) > 0) {
    TANDEM_CHECK_H5(H5Adelete(object, name.c_str()), where);
  }
  const H5Handle attribute(
      TANDEM_CHECK_H5(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT),
                      where),
      H5Aclose);
  if (data != nullptr) TANDEM_CHECK_H5(H5Awrite(attribute.get(), type, data), where);
}

std::vector<std::string> read_texts(hid_t attribute, hid_t stored, std::size_t count,
                                    const std::string& where) {
  std::vector<std::string> texts;
  if (H5Tis_variable_str(stored) > 0) {
    std::vector<char*> raw(count, nullptr);
    const auto type = attribute_text_type(where);
    TANDEM_CHECK_H5(H5Aread(attribute, type.get(), raw.data()), where);
    for (char* text : raw) {
      texts.emplace_back(text == nullptr ? "" : text);
      H5free_memory(text);
    }
    return texts;
  }
  const auto width = H5Tget_size(stored);
  std::vector<char> packed(count * width);
  TANDEM_CHECK_H5(H5Aread(attribute, stored, packed.data()), where);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string cell(packed.data() + i * width, width);
    texts.emplace_back(cell.c_str());
  }
  return texts;
}

}  // namespace

void H5File::set_attribute(std::string_view path, std::string_view name,
                           const Passport::Value& value) {
  const auto at = where(path) + "@" + std::string(name);
  const auto object = open_object(path);
  const std::string key(name);
  if (const auto* text = std::get_if<std::string>(&value)) {
    // A NUL would silently end the text for every reader.
    TANDEM_CHECK(text->find('\0') == std::string::npos, "{}: text with a NUL", at);
    const char* raw = text->c_str();
    write_attribute(object.get(), key, attribute_text_type(at).get(), scalar_space(at).get(), &raw,
                    at);
  } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    write_attribute(object.get(), key, H5T_NATIVE_INT64, scalar_space(at).get(), integer, at);
  } else if (const auto* number = std::get_if<double>(&value)) {
    write_attribute(object.get(), key, H5T_NATIVE_DOUBLE, scalar_space(at).get(), number, at);
  } else {
    std::vector<const char*> raw;
    for (const auto& item : std::get<std::vector<std::string>>(value)) raw.push_back(item.c_str());
    const hsize_t count = raw.size();
    const H5Handle space(TANDEM_CHECK_H5(H5Screate_simple(1, &count, nullptr), at), H5Sclose);
    write_attribute(object.get(), key, attribute_text_type(at).get(), space.get(),
                    raw.empty() ? nullptr : raw.data(), at);
  }
}

std::map<std::string, Passport::Value> H5File::attributes(std::string_view path) const {
  const auto at = where(path);
  const auto object = open_object(path);
  H5O_info_t info;
  TANDEM_CHECK_H5(H5Oget_info(object.get(), &info), at);
  std::map<std::string, Passport::Value> values;
  for (hsize_t i = 0; i < info.num_attrs; ++i) {
    const H5Handle attribute(
        TANDEM_CHECK_H5(H5Aopen_by_idx(object.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i,
                                       H5P_DEFAULT, H5P_DEFAULT),
                        at),
        H5Aclose);
    const auto length = TANDEM_CHECK_H5(H5Aget_name(attribute.get(), 0, nullptr), at);
    std::string name(static_cast<std::size_t>(length), '\0');
    TANDEM_CHECK_H5(H5Aget_name(attribute.get(), name.size() + 1, name.data()), at);
    const H5Handle space(TANDEM_CHECK_H5(H5Aget_space(attribute.get()), at), H5Sclose);
    const auto count =
        static_cast<std::size_t>(TANDEM_CHECK_H5(H5Sget_simple_extent_npoints(space.get()), at));
    const bool scalar = H5Sget_simple_extent_type(space.get()) == H5S_SCALAR;
    const H5Handle type(TANDEM_CHECK_H5(H5Aget_type(attribute.get()), at), H5Tclose);
    const auto kind = H5Tget_class(type.get());
    if (kind == H5T_STRING) {
      auto texts = count == 0 ? std::vector<std::string>{}
                              : read_texts(attribute.get(), type.get(), count, at);
      if (scalar) {
        values[name] = texts.at(0);
      } else {
        values[name] = std::move(texts);
      }
    } else if (kind == H5T_INTEGER && count == 1) {
      std::int64_t value = 0;
      TANDEM_CHECK_H5(H5Aread(attribute.get(), H5T_NATIVE_INT64, &value), at);
      values[name] = value;
    } else if (kind == H5T_FLOAT && count == 1) {
      double value = 0;
      TANDEM_CHECK_H5(H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, &value), at);
      values[name] = value;
    }  // other kinds are not ours; a reader of ours has no use for them
  }
  return values;
}

}  // namespace tandem
