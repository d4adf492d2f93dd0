# SPDX-License-Identifier: Apache-2.0
# find_package(headwise-client) gives the target headwise::client; its headers are <client/client.h> and the
# generated <headwise/v1/….pb.h>.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(ZLIB)
find_dependency(absl CONFIG)
find_dependency(Protobuf)
include("${CMAKE_CURRENT_LIST_DIR}/re2.cmake")
find_dependency(gRPC CONFIG)
find_dependency(nlohmann_json CONFIG)
include("${CMAKE_CURRENT_LIST_DIR}/headwise-client-targets.cmake")
