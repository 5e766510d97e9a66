#include "kernels/cuda/shared_library.h"

#include <dlfcn.h>

namespace tandem::cuda {

SharedLibrary::SharedLibrary(const char* name) : handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* text = ::dlerror();
  error_ = text != nullptr ? text : name;
}

SharedLibrary::~SharedLibrary() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

void* SharedLibrary::find_symbol(const char* name) {
  void* symbol = handle_ != nullptr ? ::dlsym(handle_, name) : nullptr;
  if (symbol == nullptr && error_.empty()) error_ = std::string("no function ") + name;
  return symbol;
}

}  // namespace tandem::cuda
