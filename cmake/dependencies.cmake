# SPDX-License-Identifier: Apache-2.0
#
# All of them are Debian 13 packages (deploy/packages-build.txt). Targets to link:
# absl::…  protobuf::libprotobuf  gRPC::grpc++  gRPC::grpc++_reflection  DNNL::dnnl  headwise_openmp  hwy::hwy
# nlohmann_json::nlohmann_json  prometheus-cpp::core  OpenSSL::Crypto  ZLIB::ZLIB  Threads::Threads
# and for tests: GTest::gtest_main  GTest::gmock  benchmark::benchmark

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(Protobuf REQUIRED)

include(cmake/re2.cmake)
find_package(gRPC CONFIG REQUIRED)

find_package(dnnl CONFIG REQUIRED)
find_package(hwy CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)

# The OpenMP runtime that Debian's oneDNN is linked with, for omp_set_num_threads alone: none of our code is
# compiled with -fopenmp, and clang must not bring a second runtime.
add_library(headwise_openmp INTERFACE)
target_link_libraries(headwise_openmp INTERFACE gomp)

if(HEADWISE_TESTS)
  find_package(GTest CONFIG REQUIRED)
  find_package(benchmark CONFIG REQUIRED)
endif()
