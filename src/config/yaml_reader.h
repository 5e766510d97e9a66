// YAML text to a two-level tree of raw values with line numbers. Finds what yaml-cpp lets pass:
// duplicate keys, tabs as indentation, several documents, bytes that are not UTF-8. Knows nothing
// of the keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/raw_value.h"

namespace tandem {

// One "key: value". `children` are filled when the value is a map at the top level; deeper maps are
// RawValue::Kind::kMap without contents, since no key takes one.
struct YamlItem {
  std::string key;
  int line = 0;  // 1-based
  RawValue value;
  std::vector<YamlItem> children;
};

struct YamlDocument {
  std::vector<YamlItem> items;
  std::vector<ErrorText> problems;  // where = "name:line"
};

// `name` stands for the file in the problems. {job} and {time} in plain texts are kept as text,
// also where YAML would read a map: `{file: results/{job}-{time}.h5}`.
YamlDocument read_yaml(std::string_view text, const std::string& name);

// A value on its own, as after --set key=. Throws Error{kConfiguration} if it is not valid YAML.
RawValue read_yaml_value(const std::string& text);

}  // namespace tandem
