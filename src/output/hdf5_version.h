// The version of the HDF5 library in use, for people and passports; keeps hdf5.h out of callers.
#pragma once

#include <string>

namespace tandem {

std::string hdf5_version_text();  // "1.10.8"

}  // namespace tandem
