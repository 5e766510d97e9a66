# Cross-compiles for 64-bit Arm with Debian's compiler: cmake --toolchain scripts/cmake/aarch64-linux-gnu.cmake
# with TANDEM_SYSROOT in the environment: a folder with the unpacked arm64 packages (scripts/debian_check.sh
# makes one). Tests run under qemu's user-mode emulation.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT "$ENV{TANDEM_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L "${CMAKE_SYSROOT}")

set(triple aarch64-linux-gnu)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${CMAKE_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR} "${CMAKE_SYSROOT}/usr/lib/${triple}/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig")
# CMake asks the wrappers mpicxx and h5cc, which name the paths of the machine that builds.
set(MPI_SKIP_COMPILER_WRAPPER ON)
set(openmpi "${CMAKE_SYSROOT}/usr/lib/${triple}/openmpi")
foreach(language C CXX)
  set(MPI_${language}_HEADER_DIR "${openmpi}/include" CACHE PATH "")
  set(MPI_${language}_LIB_NAMES mpi CACHE STRING "")
endforeach()
set(MPI_mpi_LIBRARY "${openmpi}/lib/libmpi.so" CACHE FILEPATH "")
set(hdf5 "${CMAKE_SYSROOT}/usr/lib/${triple}/hdf5/serial")
set(HDF5_ROOT "${hdf5}")
list(APPEND CMAKE_INCLUDE_PATH /usr/include/hdf5/serial)
# Libraries that libraries need: Debian keeps some outside the linker's own search path.
add_link_options("LINKER:-rpath-link,${openmpi}/lib" "LINKER:-rpath-link,${hdf5}"
                 "LINKER:-rpath-link,${CMAKE_SYSROOT}/usr/lib/${triple}")
