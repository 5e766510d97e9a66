# Warnings, definitions and sanitizers in one interface target; helper functions that keep the
# CMakeLists.txt of the folders down to their lists of sources.
add_library(tandem_options INTERFACE)
target_include_directories(tandem_options INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
target_compile_options(tandem_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic
                       -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-psabi>)
# GCC 12 sees overlapping copies in std::string's operator+ when it optimizes with -O3 (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(tandem_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
# Contracting a*b+c into one rounding must be decided in the code (std::fma, hn::MulAdd), never by
# the optimizer: results have to agree between compilers, architectures and inlining decisions.
target_compile_options(tandem_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(TANDEM_WARNINGS_AS_ERRORS)
  target_compile_options(tandem_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(TANDEM_SANITIZE)
  target_compile_options(tandem_options INTERFACE -fsanitize=${TANDEM_SANITIZE}
                         -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(tandem_options INTERFACE -fsanitize=${TANDEM_SANITIZE})
endif()

# tandem_library(<folder> SOURCES ... PUBLIC ... PRIVATE ...): static library tandem_<folder>.
function(tandem_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  if(ARG_SOURCES)
    add_library(tandem_${name} STATIC ${ARG_SOURCES})
    target_link_libraries(tandem_${name} PUBLIC tandem_options ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  else()
    add_library(tandem_${name} INTERFACE)
    target_link_libraries(tandem_${name} INTERFACE tandem_options ${ARG_PUBLIC})
  endif()
endfunction()

# tandem_test(<folder> SOURCES ... LIBS ... [LABEL unit]): one GoogleTest binary per folder.
# Tests run with the source tree's tests/data as TANDEM_TEST_DATA. Those of label unit are also what the
# target unit_tests builds.
function(tandem_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;LIBS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE tandem_test_support ${ARG_LIBS} GTest::gmock
                        GTest::gtest_main)
  add_test(NAME ${ARG_LABEL}.${name} COMMAND ${name}_test)
  if(ARG_LABEL STREQUAL unit)
    if(NOT TARGET unit_tests)
      add_custom_target(unit_tests)
    endif()
    add_dependencies(unit_tests ${name}_test)
  endif()
  set_tests_properties(${ARG_LABEL}.${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()
