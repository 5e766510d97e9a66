#include "output/h5_handle.h"

#include <hdf5.h>

#include <concepts>

#include "base/log.h"

namespace tandem {

static_assert(std::same_as<hid_t, std::int64_t> && std::same_as<herr_t, int>,
              "h5_handle.h spells HDF5's integer types out");

H5Handle& H5Handle::operator=(H5Handle&& other) noexcept {
  if (this != &other) {
    reset();
    id_ = std::exchange(other.id_, kInvalid);
    closer_ = other.closer_;
  }
  return *this;
}

void H5Handle::close(const std::string& where) {
  if (!valid()) return;
  if (closer_(std::exchange(id_, kInvalid)) < 0) h5_check_failed("close", where);
}

void H5Handle::reset() noexcept {
  if (!valid()) return;
  if (closer_(std::exchange(id_, kInvalid)) < 0) {
    // Only while another error is under way, or for a read-only object: nothing more can be lost.
    try {
      log_warning("HDF5 could not close an object: {}", h5_error_stack());
    } catch (...) {
    }
  }
}

void h5_silence_errors() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

std::string h5_error_stack() {
  std::string text;
  const auto append = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    auto& line = *static_cast<std::string*>(out);
    if (!line.empty()) line += "; ";
    line += fmt::format("{}: {}", error->func_name, error->desc);
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, append, &text);
  H5Eclear2(H5E_DEFAULT);
  return text.empty() ? "no error stack" : text;
}

void h5_check_failed(const char* expression, const std::string& where) {
  throw Error(ExitCode::kInternal,
              {.what = fmt::format("HDF5 failed in {} ({})", expression, h5_error_stack()),
               .where = where});
}

std::string hdf5_version_text() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace tandem
