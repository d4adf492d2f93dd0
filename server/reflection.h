// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_REFLECTION_H_
#define HEADWISE_SERVER_REFLECTION_H_

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>
#include <vector>

namespace headwise {

// gRPC server reflection, v1 and v1alpha, for the named services, which are all in this program's
// descriptor pool. (grpc++_reflection turns itself on wherever it is linked, and needs polling
// threads beside the callback ones.) The services are thread-safe.
std::vector<std::unique_ptr<grpc::Service>> MakeReflectionServices(
    const std::vector<std::string>& services);

}  // namespace headwise

#endif  // HEADWISE_SERVER_REFLECTION_H_
