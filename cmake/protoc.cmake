# SPDX-License-Identifier: Apache-2.0
find_program(HEADWISE_PROTOC protoc REQUIRED)
find_program(HEADWISE_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)

# headwise_protoc(OUTPUTS ROOT INTO FILE [GRPC]): C++ of ROOT/FILE.proto below the folder INTO, with stubs of its services
# where GRPC is given. Sets OUTPUTS to what is made.
function(headwise_protoc outputs root into file)
  set(made ${into}/${file}.pb.cc ${into}/${file}.pb.h)
  set(plugin)
  if("GRPC" IN_LIST ARGN)
    list(APPEND made ${into}/${file}.grpc.pb.cc ${into}/${file}.grpc.pb.h)
    set(plugin --grpc_out=${into} --plugin=protoc-gen-grpc=${HEADWISE_GRPC_PLUGIN})
  endif()
  file(MAKE_DIRECTORY ${into})
  add_custom_command(
    OUTPUT ${made}
    COMMAND ${HEADWISE_PROTOC} -I ${root} --cpp_out=${into} ${plugin} ${root}/${file}.proto
    DEPENDS ${root}/${file}.proto
    VERBATIM)
  set(${outputs} ${made} PARENT_SCOPE)
endfunction()
