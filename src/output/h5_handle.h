// HDF5 identifiers that close themselves, and the check that turns HDF5's error stack into an
// Error. Includes hdf5.h: only .cpp files of output/ may include this header, except for
// hdf5_version.h.
#pragma once

#include <hdf5.h>

#include <string>
#include <utility>

#include "base/error.h"

namespace tandem {

// Owns one identifier together with the function that closes it.
class H5Handle {
 public:
  using Closer = herr_t (*)(hid_t);

  H5Handle() = default;
  H5Handle(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  H5Handle(H5Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), closer_(other.closer_) {}
  H5Handle& operator=(H5Handle&& other) noexcept {
    if (this != &other) {
      reset();
      id_ = std::exchange(other.id_, H5I_INVALID_HID);
      closer_ = other.closer_;
    }
    return *this;
  }
  ~H5Handle() { reset(); }

  hid_t get() const { return id_; }
  // Closes now and throws on failure: for files, where closing writes.
  void close(const std::string& where);

 private:
  void reset() noexcept;

  hid_t id_ = H5I_INVALID_HID;
  Closer closer_ = nullptr;
};

// Makes HDF5 keep its error stack for us instead of printing it. Called by every entry point.
void h5_silence_errors();

// HDF5's error stack as one line, innermost cause last; clears it.
std::string h5_error_stack();

[[noreturn]] void h5_check_failed(const char* expression, const std::string& where);

// Passes a non-negative HDF5 result on, throws Error{kInternal} with HDF5's own words otherwise.
template <typename T>
T h5_checked(T result, const char* expression, const std::string& where) {
  if (result < 0) [[unlikely]]
    h5_check_failed(expression, where);
  return result;
}

}  // namespace tandem

#define TANDEM_CHECK_H5(call, where) ::tandem::h5_checked((call), #call, (where))
