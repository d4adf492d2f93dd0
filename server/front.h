// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_FRONT_H_
#define HEADWISE_SERVER_FRONT_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/call.h"
#include "server/health.h"
#include "server/health_service.h"
#include "server/oip_service.h"
#include "server/oip_statistics.h"
#include "server/options.h"
#include "server/security.h"
#include "server/service.h"
#include "server/startup.h"

namespace headwise {

// What a front is made of; all of it outlives the front.
struct FrontParts {
  const ServerOptions* options = nullptr;
  const Security* security = nullptr;
  const Startup* startup = nullptr;
  HealthBoard* health = nullptr;
  grpc::ResourceQuota* quota = nullptr;
  OipStatistics* oip_statistics = nullptr;
};

// A gRPC server with all services, at the addresses of one flag. Thread-safe once started.
class Front {
 public:
  // `flag` names `listen` in messages. INVALID_ARGUMENT for what is no address, UNAVAILABLE if one
  // can't be had.
  static absl::StatusOr<std::unique_ptr<Front>> Start(const FrontParts& parts,
                                                      const Services& services, const char* flag,
                                                      const std::string& listen);

  // By commas, with the ports that the system chose.
  std::string Addresses() const;
  // Ends what is left after a second.
  void Stop();
  grpc::Server* grpc_server() { return grpc_.get(); }

 private:
  explicit Front(const FrontParts& parts, const Services& services)
      : parts_(parts),
        services_(services),
        service_(&services_, parts.startup),
        oip_service_(services, parts.startup, parts.oip_statistics,
                     [health = parts.health] { return health->Check("") == Health::kServing; }),
        health_service_(parts.health) {}
  absl::Status AddPorts(const char* flag, const std::string& listen, grpc::ServerBuilder* builder);
  void SetLimits(grpc::ServerBuilder* builder) const;
  void RegisterServices(grpc::ServerBuilder* builder);
  absl::Status Bind(const char* flag, const std::string& listen);

  const FrontParts parts_;
  const Services services_;
  HeadwiseService service_;
  OipService oip_service_;
  HealthService health_service_;
  std::vector<std::unique_ptr<grpc::Service>> reflection_;
  std::vector<std::string> addresses_;
  std::vector<int> ports_;  // as many; what gRPC bound
  std::unique_ptr<grpc::Server> grpc_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_FRONT_H_
