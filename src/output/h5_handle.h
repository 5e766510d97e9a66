// HDF5 identifiers that close themselves, and the check that turns HDF5's error stack into an
// Error. Spells hid_t and herr_t as the integers they are (checked in the .cpp), so that hdf5.h
// stays out of headers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"

namespace tandem {

// Owns one identifier together with the function that closes it.
class H5Handle {
 public:
  using Closer = int (*)(std::int64_t);

  H5Handle() = default;
  H5Handle(std::int64_t id, Closer closer) : id_(id), closer_(closer) {}
  H5Handle(H5Handle&& other) noexcept
      : id_(std::exchange(other.id_, kInvalid)), closer_(other.closer_) {}
  H5Handle& operator=(H5Handle&& other) noexcept;
  ~H5Handle() { reset(); }

  std::int64_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }
  // Closes now and throws on failure: for files, where closing writes.
  void close(const std::string& where);

 private:
  static constexpr std::int64_t kInvalid = -1;
  void reset() noexcept;

  std::int64_t id_ = kInvalid;
  Closer closer_ = nullptr;
};

// Makes HDF5 keep its error stack for us instead of printing it (per thread, so at every entry).
void h5_silence_errors();

// HDF5's error stack of this thread as one line, outermost cause first; clears it.
std::string h5_error_stack();

[[noreturn]] void h5_check_failed(const char* expression, const std::string& where);

// Passes a non-negative HDF5 result on, throws Error{kInternal} with HDF5's own words otherwise.
template <typename T>
T h5_checked(T result, const char* expression, const std::string& where) {
  if (result < 0) [[unlikely]]
    h5_check_failed(expression, where);
  return result;
}

// The HDF5 library in use: "1.10.8".
std::string hdf5_version_text();

}  // namespace tandem

#define TANDEM_CHECK_H5(call, where) ::tandem::h5_checked((call), #call, (where))
