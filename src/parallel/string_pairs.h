// Things that are two strings each, on their way between ranks: first, second, first, second, each
// ended by a zero byte, which neither contains.
#pragma once

#include <string>
#include <vector>

namespace tandem {

template <class T>
std::string pack_pairs(const std::vector<T>& items, std::string T::*first, std::string T::*second) {
  std::string bytes;
  for (const T& item : items) bytes += item.*first + '\0' + item.*second + '\0';
  return bytes;
}

template <class T>
std::vector<T> unpack_pairs(const std::string& bytes, std::string T::*first,
                            std::string T::*second) {
  std::vector<T> items;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto first_end = bytes.find('\0', at);
    const auto second_end = bytes.find('\0', first_end + 1);
    T& item = items.emplace_back();
    item.*first = bytes.substr(at, first_end - at);
    item.*second = bytes.substr(first_end + 1, second_end - first_end - 1);
    at = second_end + 1;
  }
  return items;
}

}  // namespace tandem
