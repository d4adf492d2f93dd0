# SPDX-License-Identifier: Apache-2.0
#
# headwise_flags    every target of ours links it (PRIVATE): include root, warnings, sanitizers
# headwise_version  "headwise/version.h": the version of the project and the build type
# headwise_malloc   every executable that serves or sends large messages links it: tcmalloc, or nothing under a sanitizer

add_library(headwise_flags INTERFACE)
target_include_directories(headwise_flags INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
target_compile_options(headwise_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough -Werror
  -Wno-missing-field-initializers  # designated initialisers name what differs from the default
  # A multiply and an add stay two roundings unless the code asks for a fused one: the same bits whatever the
  # compiler decides to vectorise.
  -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(headwise_flags INTERFACE -Wthread-safety -Wthread-safety-beta)
endif()

configure_file(${PROJECT_SOURCE_DIR}/cmake/version.h.in ${PROJECT_BINARY_DIR}/include/headwise/version.h @ONLY)
add_library(headwise_version INTERFACE)
target_include_directories(headwise_version INTERFACE "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>")

# No -march: binaries run on every x86-64, and the kernels choose their instructions at run time.

if(HEADWISE_SANITIZE STREQUAL "address")
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all)
  # Debian's Abseil is built without sanitizers: without this its containers change their layout under ASan.
  target_compile_definitions(headwise_flags INTERFACE NDEBUG_SANITIZER)
elseif(HEADWISE_SANITIZE STREQUAL "thread")
  set(sanitizers -fsanitize=thread)
elseif(NOT HEADWISE_SANITIZE STREQUAL "")
  message(FATAL_ERROR "HEADWISE_SANITIZE: must be address, thread or empty; was ${HEADWISE_SANITIZE}")
endif()
if(sanitizers)
  # Not only our targets: a library of generated code linked into a sanitized program must be sanitized too.
  add_compile_options(${sanitizers} -fno-omit-frame-pointer)
  add_link_options(${sanitizers})
endif()

if(HEADWISE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR NOT HEADWISE_SANITIZE STREQUAL "address")
    message(FATAL_ERROR "HEADWISE_FUZZ: must go with clang and HEADWISE_SANITIZE=address (--preset fuzz)")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)  # the code under test tells the fuzzer where it went
endif()

# ccache is a matter of speed only: what is built doesn't depend on it.
find_program(HEADWISE_CCACHE ccache)
if(HEADWISE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${HEADWISE_CCACHE}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)  # lets ccache see through precompiled headers
  endif()
endif()

add_library(headwise_malloc INTERFACE)
if(NOT sanitizers)
  find_library(HEADWISE_TCMALLOC tcmalloc_minimal REQUIRED)
  # Nothing names tcmalloc's symbols, so the linker must be told to keep it.
  target_link_options(headwise_malloc INTERFACE
    "LINKER:--push-state,--no-as-needed,${HEADWISE_TCMALLOC},--pop-state")
endif()
