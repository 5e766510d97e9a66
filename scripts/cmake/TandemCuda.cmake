# The CUDA compiler, and the GPUs that kernels are compiled for: machine code for each target by name
# (the letter a: with the instructions of that chip alone), and one portable PTX for later chips. The
# program refuses a GPU without machine code unless it is told to let the driver compile the PTX.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "90a-real;121a-real;90-virtual" CACHE STRING "CUDA targets")
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
# CMake 3.25.1, as Debian 12 ships it, does not know that nvcc compiles C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit 13.0 REQUIRED)

# For targets that hold .cu files. As in host code, the source decides where a*b+c rounds once (fmaf);
# the optimizer would decide it per instantiation, and rows of differently sized batches would differ.
add_library(tandem_cuda_options INTERFACE)
target_compile_options(tandem_cuda_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false --expt-relaxed-constexpr -lineinfo -Xcompiler=-Wall,-Wextra,-Wno-psabi>)
if(TANDEM_WARNINGS_AS_ERRORS)
  target_compile_options(tandem_cuda_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
target_link_libraries(tandem_cuda_options INTERFACE CUDA::cudart_static)

# TANDEM_WITH_CUDA=1 is defined for the few targets that ask which backends there are (tandem_kernels,
# its tests), not for all: every other object is the same with and without CUDA, and a compiler cache
# that has seen one build knows it for the other.
